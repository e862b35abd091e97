"""The files in which driver, firmware and CANN keep their versions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from tengtune.host.place import Place

ROOT = "/usr/local/Ascend"
INSTALL = "/etc/ascend_install.info"
_HOMES = ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME")
_USUAL = ("cann", "ascend-toolkit/latest", "nnae/latest")
_KERNELS = "opp/built-in/op_impl/ai_core/tbe/kernel"
_MARK = re.compile(r"V\d+R\d+C(\d+)")


def read_pairs(text: str) -> dict[str, str]:
    """Lines "key=value"."""
    pairs = (line.strip().partition("=") for line in text.splitlines() if not line.lstrip().startswith("#"))
    return {key.strip(): value.strip() for key, equals, value in pairs if equals and value.strip()}


@dataclass(frozen=True)
class Release:
    """What a version file says. marks: Innerversion's number ("C19") and those it says it works with."""

    path: str
    version: str | None
    mark: str | None = None
    marks: tuple[str, ...] = ()
    firmware: tuple[str, str] | None = None
    arch: str | None = None


def read_release(text: str, path: str = "") -> Release:
    """A version.info or ascend_toolkit_install.info."""
    found = read_pairs(text)
    inner = _MARK.search(found.get("Innerversion", found.get("innerversion", "")))
    marks = tuple(f"C{number}" for number in _MARK.findall(found.get("compatible_version", "")))
    bounds = re.fullmatch(r"\[\s*([\w.]+)\s*,\s*([\w.]+)\s*\]", found.get("compatible_version_fw", ""))
    return Release(
        path,
        found.get("Version", found.get("version")),
        f"C{inner[1]}" if inner else None,
        marks,
        (bounds[1], bounds[2]) if bounds else None,
        found.get("arch"),
    )


@dataclass(frozen=True)
class Config:
    """version.cfg: CANN's version, and whether its compiled operators (kernels) are installed."""

    version: str | None
    kernels: bool


def read_config(text: str) -> Config:
    """A version.cfg: lines "runtime_running_version=[7.6.0.1.220:8.0.0]"."""
    found = read_pairs(text)
    runtime = next((found[key] for key in found if key.startswith(("runtime_", "toolkit_"))), "")
    match = re.fullmatch(r"\[[^:\]]*:([^\]]+)\]", runtime)
    return Config(match[1] if match else None, any(key.startswith("opp_kernel") for key in found))


@dataclass(frozen=True)
class Cann:
    """An installed CANN. kernels: the chips it has compiled operators of, None where there is no folder of
    them; config: its version.cfg; set_env: the script that makes it the shell's."""

    home: str
    release: Release
    kernels: tuple[str, ...] | None
    config: Config | None
    set_env: str | None

    @property
    def version(self) -> str | None:
        """Its version, by either file."""
        return self.release.version or (self.config.version if self.config else None)


def driver_root(place: Place) -> str:
    """Where driver and firmware were installed."""
    return read_pairs(place.read(INSTALL) or "").get("Driver_Install_Path_Param", ROOT)


def release_of(place: Place, part: str) -> Release | None:
    """The driver or firmware that is installed; None where its file is not there, without a version where it
    cannot be read."""
    path = f"{driver_root(place)}/{part}/version.info"
    text = place.read(path)
    if text is None:
        return Release(path, None) if place.exists(path) else None
    return read_release(text, path)


def find_cann(place: Place, environment: Mapping[str, str]) -> Cann | None:
    """The CANN that a program would use: the shell's, else that of the usual folders."""
    for home in _candidates(environment):
        release = _install_info(place, home)
        text = place.read(f"{home}/version.cfg")
        config = None if text is None else read_config(text)
        if release is None and config is None:
            continue
        names = place.names(f"{home}/{_KERNELS}")
        kernels = tuple(name for name in names if name.startswith("ascend"))
        return Cann(
            home,
            release or Release(f"{home}/version.cfg", None),
            kernels if place.exists(f"{home}/{_KERNELS}") else None,
            config,
            _set_env(place, home),
        )
    return None


def _candidates(environment: Mapping[str, str]) -> Iterator[str]:
    for name in _HOMES:
        if environment.get(name):
            yield environment[name]
    own = environment.get("HOME")
    for root in (ROOT, f"{own}/Ascend") if own else (ROOT,):
        for part in _USUAL:
            yield f"{root}/{part}"


def _install_info(place: Place, home: str) -> Release | None:
    for name in place.names(home):
        path = f"{home}/{name}/ascend_toolkit_install.info"
        if name.endswith("-linux") and (text := place.read(path)) is not None:
            return read_release(text, path)
    text = place.read(path := f"{home}/compiler/version.info")  # nnae has no other
    return None if text is None else read_release(text, path)


def _set_env(place: Place, home: str) -> str | None:
    places = (PurePosixPath(home), PurePosixPath(home).parent)
    return next((str(each / "set_env.sh") for each in places if place.exists(str(each / "set_env.sh"))), None)


def is_sourced(place: Place, cann: Cann, environment: Mapping[str, str]) -> bool:
    """Whether this shell is set up for that CANN: its home is known and its libraries are on the path."""
    if not any(environment.get(name) for name in _HOMES):
        return False
    home, _ = place.followed(cann.home)
    paths = [path for path in environment.get("LD_LIBRARY_PATH", "").split(":") if path]
    real = [PurePosixPath(place.followed(path)[0]) for path in paths]  # latest/ and 8.0.0/ are one install
    return any(path.name == "lib64" and path.is_relative_to(home) for path in real)
