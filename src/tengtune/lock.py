"""One writer at a time: a lock file that the kernel frees when its holder dies, so none is ever left over.

The file says who holds it; it is removed when it is freed. On a file system without locks, or where no file
may be made, the work goes on without.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shlex
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tengtune.ui.console import Console
from tengtune.ui.problems import BUSY, Problem, os_errors

WAIT_S = 1.0
"""A command that only finds everything up to date holds the lock for less."""
POLL_S = 0.02

_TAKEN = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)
_NO_FILE = (errno.EROFS, errno.EACCES, errno.EPERM)

_held: set[Path] = set()
"""What this process holds: whoever holds it may ask for it again."""
_told: set[Path] = set()


def beside(out: Path) -> Path:
    """The lock file of an output, a file or a folder."""
    return Path(f"{out.absolute()}.lock")


@contextmanager
def held(path: Path, console: Console | None = None) -> Iterator[None]:
    """Hold the lock file `path` while the block runs; its folder is made if need be, and goes again if
    nothing was put into it.

    Problem `lock.busy` (exit code 5) when another process holds it and does not free it within WAIT_S. To
    the console it is said, once, that there are no locks here.
    """
    path = path.absolute()
    if path in _held:
        yield
        return
    made = [folder for folder in path.parents if not folder.exists()]
    descriptor = _take(path, console)
    if descriptor is None:
        yield
        return
    _held.add(path)
    try:
        yield
    finally:
        _held.discard(path)
        with suppress(OSError):
            path.unlink()
        os.close(descriptor)
        with suppress(OSError):  # what was written into them stays
            for folder in made:
                folder.rmdir()


def _take(path: Path, console: Console | None) -> int | None:
    """The descriptor that holds the lock; None where there are no locks, which is said once."""
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            descriptor = _open(path)
        except FileNotFoundError:
            if time.monotonic() > deadline:
                raise
            continue  # its last holder removed the folder it had made
        except OSError as error:
            if error.errno not in _NO_FILE:
                with os_errors(path):
                    raise
            _tell(path, console, error)
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            if error.errno not in _TAKEN:
                _tell(path, console, error)
                return None
            if time.monotonic() > deadline:
                raise _busy(path) from None
            time.sleep(POLL_S)
            continue
        if _is_still(path, descriptor):
            _sign(descriptor)
            return descriptor
        os.close(descriptor)  # its last holder removed the file while we waited for it


def _open(path: Path) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)


def _is_still(path: Path, descriptor: int) -> bool:
    """Whether the name leads to the open file, not to none or to another's."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _sign(descriptor: int) -> None:
    """Write down who holds the lock; on a full disk it holds without."""
    command = shlex.join(["tengtune", *sys.argv[1:]])
    holder = {"pid": os.getpid(), "host": socket.gethostname(), "command": command}
    with suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(holder).encode(), 0)


def _busy(path: Path) -> Problem:
    try:
        holder = json.loads(path.read_text(encoding="utf-8"))
        values = {key: holder[key] for key in ("pid", "host", "command")}
    except (OSError, ValueError, KeyError, TypeError):  # freed, or not signed yet
        values = dict.fromkeys(("pid", "host", "command"), "?")
    return Problem("lock.busy", where=path, exit_code=BUSY, **values)


def _tell(path: Path, console: Console | None, error: OSError) -> None:
    if console is not None and path not in _told:
        _told.add(path)
        console.warn("lock.none", folder=path.parent, reason=os.strerror(error.errno or 0))
