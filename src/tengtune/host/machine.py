"""The machine itself: system, processor, C library, memory, disk."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from tengtune.host.place import Output, Place
from tengtune.host.versions import read_pairs

ARCH, LIBC = ("uname", "-m"), ("ldd", "--version")
LIBSTDCXX = ("/usr/lib/x86_64-linux-gnu/libstdc++.so.6", "/usr/lib64/libstdc++.so.6")
_MOST_LIBRARY = 16 << 20


@dataclass(frozen=True)
class Machine:
    """What could be read; memory and disk in bytes, None where nothing tells."""

    system: str | None
    cpu: str | None
    cores: int | None
    arch: str | None
    glibc: str | None
    glibcxx: str | None
    memory: int | None
    available: int | None
    disk_free: int | None
    disk_total: int | None


def disk_query(place: Place, folder: Path) -> tuple[str, ...]:
    """The command that tells how full the disk of a folder is; of a saved host its one of that name."""
    return ("df", "-Pk") if place.folder is not None else ("df", "-Pk", str(folder))


def read(place: Place, arch: Output, libc: Output, disk: Output) -> Machine:
    """From /proc, /etc/os-release and three commands' outputs."""
    release = read_pairs(place.read("/etc/os-release") or "")
    cpuinfo = place.read("/proc/cpuinfo") or ""
    meminfo = place.read("/proc/meminfo") or ""
    model = re.search(r"^(?:model name|Model Name|Hardware)\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    available, limit = _kilobytes(meminfo, "MemAvailable"), _limit(place)
    disk_total, disk_free = _disk(disk.text)
    name = re.fullmatch(r"\s*([\w]{3,20})\s*", arch.text)
    return Machine(
        release.get("PRETTY_NAME", "").strip("\"'") or None,
        model[1].strip() if model else None,
        len(re.findall(r"^processor\s*:", cpuinfo, re.MULTILINE)) or None,
        name[1] if name else None,
        glibc(libc.text),
        _glibcxx(place),
        memory(place),
        min(filter(None, (available, limit)), default=None),
        disk_free,
        disk_total,
    )


def memory(place: Place) -> int | None:
    """Bytes of memory, or what a container may use at most of it."""
    total = _kilobytes(place.read("/proc/meminfo") or "", "MemTotal")
    return min(filter(None, (total, _limit(place))), default=None)


def glibc(text: str) -> str | None:
    """The version in what `ldd --version` prints."""
    lines = text.splitlines()
    match = re.search(r"(?:GLIBC|GNU libc|glibc).*?(\d+\.\d+)\s*$", lines[0]) if lines else None
    return match[1] if match else None


def _glibcxx(place: Place) -> str | None:
    """The newest version of its symbols that the system's libstdc++ has."""
    path = next((path for path in map(place.path, LIBSTDCXX) if path.is_file()), None)
    try:
        data = path.read_bytes() if path and path.stat().st_size < _MOST_LIBRARY else b""
    except OSError:
        return None
    numbers = [int(number) for number in re.findall(rb"GLIBCXX_3\.4\.(\d{1,3})\0", data)]
    return f"3.4.{max(numbers)}" if numbers else None


def _kilobytes(text: str, key: str) -> int | None:
    match = re.search(rf"^{key}:\s+(\d{{1,15}}) kB$", text, re.MULTILINE)
    return int(match[1]) * 1024 if match else None


def _limit(place: Place) -> int | None:
    """What a container may use at most (cgroup 2 or 1)."""
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        text = (place.read(path) or "").strip()
        if re.fullmatch(r"[0-9]{1,16}", text):  # "max", or a number of 19 digits: no limit
            return int(text)
    return None


def _disk(text: str) -> tuple[int | None, int | None]:
    """(total, free) by the last row of `df -Pk`."""
    rows = re.findall(r"^\S.*?\s(\d{1,15})\s+\d+\s+(\d{1,15})\s+\d+%\s", text, re.MULTILINE)
    return (int(rows[-1][0]) * 1024, int(rows[-1][1]) * 1024) if rows else (None, None)
