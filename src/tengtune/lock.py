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
import stat
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
MAX_COMMAND, MAX_BYTES = 4000, 2**16
"""Characters of a command that are written down, and what a lock file can have at most."""

_SIGNED = ("pid", "host", "command")
_TAKEN = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)
_NO_FILE = (errno.EROFS, errno.EACCES, errno.EPERM)

_held: dict[Path, int] = {}
"""What this process holds, with its descriptor: whoever holds it may ask for it again."""
_told: set[Path] = set()


def descriptors() -> list[int]:
    """What a child process must inherit to hold this process's locks as well, for as long as it lives."""
    return list(_held.values())


def beside(out: Path) -> Path:
    """The lock file of an output, a file or a folder."""
    return Path(f"{out.absolute()}.lock")


@contextmanager
def held(path: Path, console: Console | None = None) -> Iterator[None]:
    """Hold the lock file `path` while the block runs; its folder is made if need be, and goes again if
    nothing was put into it.

    Problem `lock.busy` (exit code 5) when another process holds it and does not free it within WAIT_S;
    `lock.not_ours` when a link, a folder or a file of somebody's has this name, which is then left as it is.
    To the console it is said, once, that there are no locks here.
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
    _held[path] = descriptor
    try:
        yield
    finally:
        _held.pop(path, None)
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
            if error.errno in (errno.ELOOP, errno.EISDIR):
                raise Problem("lock.not_ours", where=path) from error
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
            if not _is_ours(descriptor):
                os.close(descriptor)
                raise Problem("lock.not_ours", where=path)
            _sign(descriptor)
            return descriptor
        os.close(descriptor)  # its last holder removed the file while we waited for it


def _open(path: Path) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)


def _is_still(path: Path, descriptor: int) -> bool:
    """Whether the name leads to the open file, not to none or to another's."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _is_ours(descriptor: int) -> bool:
    """Whether the file is empty, or says what a killed holder wrote into it."""
    info = os.fstat(descriptor)
    if not stat.S_ISREG(info.st_mode) or info.st_size > MAX_BYTES:
        return False
    content = os.pread(descriptor, MAX_BYTES, 0)
    try:
        holder = json.loads(content or b"null")
    except (ValueError, RecursionError):
        return False
    return not content or (isinstance(holder, dict) and holder.keys() == set(_SIGNED))


def _sign(descriptor: int) -> None:
    """Write down who holds the lock; on a full disk it holds without."""
    command = shlex.join(["tengtune", *sys.argv[1:]])[:MAX_COMMAND]
    holder = dict(zip(_SIGNED, (os.getpid(), socket.gethostname(), command), strict=True))
    with suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(holder).encode(), 0)


def _busy(path: Path) -> Problem:
    try:
        holder = json.loads(path.read_text(encoding="utf-8"))
        values = {key: holder[key] for key in _SIGNED}
    except (OSError, ValueError, KeyError, TypeError):  # freed, or not signed yet
        values = dict.fromkeys(_SIGNED, "?")
    return Problem("lock.busy", where=path, exit_code=BUSY, **values)


def _tell(path: Path, console: Console | None, error: OSError) -> None:
    if console is not None and path not in _told:
        _told.add(path)
        console.warn("lock.none", folder=path.parent, reason=os.strerror(error.errno or 0))
