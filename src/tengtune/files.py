"""Writing so that a name that exists is whole: aside first, flushed to the disk, then renamed."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from tengtune.ui.lists import listed, size
from tengtune.ui.problems import Problem, os_errors

PARTIAL = ".partial"
"""Suffix of what is being written; a rerun removes what a killed one left."""


def as_text(name: str) -> str:
    """A name as the system gave it, as the text its bytes are in UTF-8, whatever the locale; as it is where
    they are none."""
    try:
        return os.fsencode(name).decode("utf-8")
    except UnicodeError:
        return name


def as_name(text: str) -> str:
    """The other way round: what the system's calls take so that the name on the disk is the text in UTF-8."""
    return os.fsdecode(text.encode("utf-8", "surrogateescape"))


def working_names(path: Path) -> tuple[Path, Path]:
    """What an output is called while it is written, and what it replaces while it goes: removed if there."""
    return path.with_name(path.name + PARTIAL), path.with_name(path.name + ".old" + PARTIAL)


@contextmanager
def atomic_file(path: Path, mode: str = "wb") -> Iterator[IO[Any]]:
    """Open `<path>.partial` for writing; on success flush it to the disk and rename it to `path`.

    On an error nothing is left under either name; operating-system errors become Problems.
    """
    partial, _ = working_names(path)
    with os_errors(path):
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if path.exists() and not path.is_file():  # /dev/null would become a file
            raise Problem("io.out_not_plain", where=path)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.unlink(missing_ok=True)  # a link there would be followed
        try:
            # Names of files that the locale cannot hold go out as the bytes they are (os.fsdecode).
            text: dict[str, Any] = {} if "b" in mode else {"encoding": "utf-8", "errors": "surrogateescape"}
            with open(partial, mode.replace("w", "x"), **text) as stream:
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(partial, path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


def write_text(path: Path, text: str) -> None:
    """Write a small text file atomically."""
    with atomic_file(path, "w") as stream:
        stream.write(text)


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Give `<path>.partial`, an empty folder; on success it replaces `path`, on an error it goes.

    A folder that stands at `path` is moved aside only when the new one is whole, then deleted.
    """
    partial, old = working_names(path)
    with os_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        remove(partial)
        partial.mkdir()
        try:
            yield partial
            for file in partial.rglob("*"):
                if file.is_file():
                    sync_file(file)
                else:
                    sync_folder(file)
            sync_folder(partial)
            remove(old)
            if path.exists():
                os.replace(path, old)
            os.replace(partial, path)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        remove(old)
        sync_folder(path.parent)


def require_file(path: Path) -> None:
    """Problem unless `path` is a plain file that may be read."""
    with os_errors(path):
        open_plain(path).close()


def open_plain(path: Path) -> IO[bytes]:
    """Open a plain file for reading: OSError as `open` has it, Problem for a pipe or a device, which may
    never end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe would wait for its writer
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    raise Problem("io.not_plain", where=path)


def refuse_taken(*folders: Path) -> None:
    """Problem where a name for a folder of ours is taken by something else, which would be replaced."""
    for folder in folders:
        if os.path.lexists(folder) and not folder.is_dir():
            raise Problem("io.name_taken", where=folder)


def refuse_full(out: Path, area: str) -> None:
    """Problem where an output that is made anew would replace something: `io.out_is_file` for a file,
    `<area>.out_exists`, with what is in it, for a folder."""
    with os_errors(out):
        if not out.exists():
            return
        if not out.is_dir():
            raise Problem("io.out_is_file", where=out, size=size(out.stat().st_size))
        if names := sorted(each.name for each in out.iterdir()):
            raise Problem(f"{area}.out_exists", where=out, found=listed(names))


def remove(path: Path) -> None:
    """Delete a file or a folder if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def sync_file(path: Path) -> None:
    """Flush a file's contents to the disk."""
    with open(path, "rb") as stream:
        os.fsync(stream.fileno())


def sync_folder(path: Path) -> None:
    """Flush a folder's entries to the disk, so that a rename in it survives a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def free_bytes(path: Path) -> int:
    """Free space on the disk that holds `path` or its nearest existing parent."""
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free
