"""The Python packages that matter on a card, looked up without importing any of them."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from tengtune.host.place import Place

NAMES = ("torch", "torch_npu", "mindspore", "tiktoken", "tokenizers")
_MACHINES = {0x3E: "x86_64", 0xB7: "aarch64", 0x03: "i686", 0x28: "armv7l", 0xF3: "riscv64"}
_LIBRARIES = ("", "lib")
_MOST_NAMES = 400

_SITES = (
    *("usr/lib", "usr/lib64", "usr/local/lib", "usr/local/lib64", "usr/local/*/lib", "opt/*/lib"),
    *("opt/*/*/lib", "root/*/lib", "root/*/envs/*/lib", "home/*/*/lib", "home/*/*/envs/*/lib"),
)


@dataclass(frozen=True)
class Package:
    """An installed package. torch: the torch its metadata asks for; machine: what its libraries were built
    for, None where none was found."""

    name: str
    version: str
    torch: str | None
    machine: str | None


@dataclass(frozen=True)
class Python:
    """An interpreter ("3.11") and what it can import of NAMES."""

    version: str | None
    packages: Mapping[str, Package]


def read(place: Place, environment: Mapping[str, str]) -> Python:
    """This interpreter, or the one of a saved host: that of its virtual environment, else the first that has
    a package of ours."""
    if place.folder is None:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        return Python(version, _packages([Path(path or ".") for path in sys.path]))
    found = [Python(_version(site), _packages([site])) for site in _sites(place, environment)]
    return next((each for each in found if each.packages), found[0] if found else Python(None, {}))


def _sites(place: Place, environment: Mapping[str, str]) -> Iterator[Path]:
    root = place.path("/")
    prefix = environment.get("VIRTUAL_ENV") or environment.get("CONDA_PREFIX")
    if prefix:
        yield from _below(place.path(f"{prefix}/lib"))
    for pattern in _SITES:
        for folder in sorted(root.glob(pattern)):
            yield from _below(folder)


def _below(folder: Path) -> list[Path]:
    return sorted([*folder.glob("python3*/site-packages"), *folder.glob("python3*/dist-packages")])


def _version(site: Path) -> str | None:
    match = re.fullmatch(r"python(3\.\d{1,3})", site.parent.name)
    return match[1] if match else None


def _packages(sites: list[Path]) -> dict[str, Package]:
    """The packages in the folders of a path; the first of a name counts."""
    found: dict[str, Package] = {}
    for site in sites:
        for name in NAMES:
            if name not in found and (package := _package(site, name)):
                found[name] = package
    return found


def written(python: Python) -> dict[str, bytes]:
    """Files that `read` takes for the same interpreter and packages; a name that ends in "/" is a folder."""
    if python.version is None:
        return {}
    site = f"usr/lib/python{python.version}/site-packages"
    files = {f"{site}/": b""}
    numbers = {machine: number for number, machine in _MACHINES.items()}
    for package in python.packages.values():
        text = f"Metadata-Version: 2.1\nName: {package.name}\nVersion: {package.version}\n"
        text += f"Requires-Dist: torch=={package.torch}\n" if package.torch else ""
        files[f"{site}/{package.name}-{package.version}.dist-info/METADATA"] = text.encode()
        if package.machine:
            number = numbers.get(package.machine) or int(package.machine.removeprefix("ELF "))
            head = b"\x7fELF\x02\x01\x01" + bytes(11) + number.to_bytes(2, "little")
            files[f"{site}/{package.name}/lib.so"] = head
    return files


def _package(site: Path, name: str) -> Package | None:
    """One package by its .dist-info; a damaged one is as good as none."""
    for info in sorted(site.glob(f"{name.replace('_', '[_-]')}-*.dist-info")):
        try:
            distribution = metadata.Distribution.at(info)
            version, needs = distribution.metadata["Version"], distribution.requires or []
        except Exception:  # what a broken file makes of the parser is its own affair
            continue
        if version:
            pins = (re.match(r"torch\s*\(?==\s*([\w.+]+)", need) for need in needs)
            torch = next((pin[1].partition("+")[0] for pin in pins if pin), None)
            return Package(name, str(version), torch, _machine(site / name))
    return None


def _machine(folder: Path) -> str | None:
    """What the first shared library of a package was built for."""
    for part in _LIBRARIES:
        try:
            names = sorted(os.listdir(folder / part))[:_MOST_NAMES]
        except (OSError, ValueError):
            continue
        for name in names:
            if ".so" in name and (machine := elf_machine(folder / part / name)):
                return machine
    return None


def elf_machine(path: Path) -> str | None:
    """What an ELF file was built for; None for anything else."""
    try:
        with open(path, "rb") as stream:
            head = stream.read(20)
    except (OSError, ValueError):
        return None
    if len(head) < 20 or head[:4] != b"\x7fELF":
        return None
    number = int.from_bytes(head[18:20], "little" if head[5] == 1 else "big")
    return _MACHINES.get(number, f"ELF {number}")
