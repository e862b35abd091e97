"""Where a host is read: this machine, or a folder that stands for another one's root.

In such a folder files lie as they do below /. What a command prints lies in bin/, in a file named as the
command with its words joined by "_" (`npu-smi_info.txt`), or is printed by an executable bin/<program> that
stands in for it.
"""

from __future__ import annotations

import codecs
import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Literal

MOST_BYTES = 4 << 20
"""More than any file or output that is read here has."""
_LINKS, _STEPS = 40, 512
"""Links, and parts of names, that are followed for one name."""
_AT_ONCE = 16
_LOOK_S = 0.2
"""How often a command that goes on is looked at."""
_TOOLS = ("usr/local/bin", "usr/local/sbin", "usr/local/Ascend/driver/tools", "usr/sbin", "usr/bin")
"""Where the vendor's tools lie when PATH does not lead there."""

Fault = Literal["missing", "hangs", "failed"]


@dataclass(frozen=True)
class Output:
    """What a command printed, and why that may not be all: it is not there, hangs, or ended with an error."""

    text: str
    fault: Fault | None = None


def saved_as(command: Sequence[str]) -> str:
    """The file in bin that holds what a command printed."""
    return f"{'_'.join(command).replace('/', '_')}.txt"


@dataclass(frozen=True)
class Place:
    """A host's root. seconds: a command that has not ended by then is taken to hang. links, faults: of a host
    that was packed, its links by their names, and what was amiss with commands, by their files in bin."""

    folder: Path | None = None
    seconds: float = 10.0
    links: Mapping[str, str] = field(default_factory=dict)
    faults: Mapping[str, Fault] = field(default_factory=dict)

    def path(self, name: str) -> Path:
        """Where a file of the host, "/etc/hccn.conf", lies here; links are followed inside its root."""
        return Path(name) if self.folder is None else self.folder / self.followed(name)[0][1:]

    def followed(self, name: str) -> tuple[str, dict[str, str]]:
        """A name of the host with its links followed, and these: where each is, and what it leads to."""
        root = self.folder or Path("/")
        parts = [part for part in reversed(PurePosixPath(name).parts) if part != "/"]
        here, met = PurePosixPath("/"), dict[str, str]()
        for _ in range(_STEPS):
            if not parts:
                break
            part = parts.pop()
            there = here.parent if part == ".." else here / part
            target = None if part == ".." else self._target(root, str(there))
            if target is None or len(met) > _LINKS:
                here = there
                continue
            met[str(there)] = target
            here = PurePosixPath("/") if target.startswith("/") else here
            parts += [part for part in reversed(PurePosixPath(target).parts) if part != "/"]
        return str(here), met

    def _target(self, root: Path, name: str) -> str | None:
        """What a link of the host leads to; None for anything else."""
        if name in self.links:
            return self.links[name]
        try:
            return os.readlink(root / name[1:])
        except (OSError, ValueError):
            return None

    def read(self, name: str) -> str | None:
        """A file's text; None where it cannot be read."""
        try:
            path = self.path(name)
            if not path.is_file():  # a pipe would be waited for
                return None
            with open(path, "rb") as stream:
                return decoded(stream.read(MOST_BYTES))
        except (OSError, ValueError):
            return None

    def exists(self, name: str) -> bool:
        """Whether there is a file or folder of that name."""
        try:
            return self.path(name).exists()
        except (OSError, ValueError):
            return False

    def names(self, name: str) -> list[str]:
        """What a folder holds, sorted; nothing where it cannot be read."""
        try:
            return sorted(os.listdir(self.path(name)))
        except (OSError, ValueError):
            return []

    def run_all(self, commands: Iterable[Sequence[str]]) -> dict[tuple[str, ...], Output]:
        """What each command prints; all run at once."""
        wanted = list(dict.fromkeys(tuple(command) for command in commands))
        if not wanted:
            return {}
        with ThreadPoolExecutor(min(len(wanted), _AT_ONCE)) as pool:
            return dict(zip(wanted, pool.map(self.run, wanted), strict=True))

    def run(self, command: Sequence[str]) -> Output:
        """What a command prints, errors included: npu-smi writes them to either stream."""
        if self.folder is not None:
            name = saved_as(command)
            saved = self.read(f"/bin/{name}")
            if saved is not None:
                return Output(saved, self.faults.get(name))
        program = self._program(command[0])
        return _run([program, *command[1:]], self.seconds) if program else Output("", "missing")

    def _program(self, name: str) -> str | None:
        if self.folder is not None:
            stand_in = self.folder.absolute() / "bin" / name
            return str(stand_in) if stand_in.is_file() and os.access(stand_in, os.X_OK) else None
        return shutil.which(name) or shutil.which(name, path=os.pathsep.join(f"/{path}" for path in _TOOLS))


def decoded(data: bytes) -> str:
    """Text of a file: UTF-8, or UTF-16 where its mark says so."""
    coding = "utf-16" if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig"
    return data.decode(coding, "replace")


def _run(command: Sequence[str], seconds: float) -> Output:
    """What a command prints. One that hangs, or prints without end, is killed with all that it started, and
    is not waited for: inside a driver's call a process may not die."""
    environment = os.environ | {"LC_ALL": "C"}
    end = time.monotonic() + seconds
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
    except (OSError, ValueError):
        return Output("", "missing")
    assert process.stdout is not None
    with process.stdout as pipe:
        text, whole = _printed(process, pipe.fileno(), end)
    fault: Fault | None = "hangs"
    with suppress(subprocess.TimeoutExpired):
        if whole:
            fault = "failed" if process.wait(max(0.0, end - time.monotonic())) else None
    if fault == "hangs":
        kill(process)
    return Output(text.decode("utf-8", "replace"), fault)


def _printed(process: subprocess.Popen[bytes], pipe: int, end: float) -> tuple[bytes, bool]:
    """What a process prints, and whether that is all. What it started may hold the pipe open after its end,
    which is not waited for."""
    text = b""
    while len(text) < MOST_BYTES and (left := end - time.monotonic()) > 0:
        ended = process.poll() is not None
        ready, _, _ = select.select([pipe], [], [], 0 if ended else min(left, _LOOK_S))
        piece = os.read(pipe, 1 << 16) if ready else b""
        if not piece and (ready or ended):
            return text, True
        text += piece
    return text[:MOST_BYTES], False


def kill(process: subprocess.Popen[bytes]) -> None:
    """End a process that began a session of its own, with all that it started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(1.0)
    except (OSError, subprocess.TimeoutExpired):
        pass
