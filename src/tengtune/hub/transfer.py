"""One file from a hub into a folder: resumed where it was cut, hashed as it comes, named when it is right."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tengtune import files
from tengtune.files import PARTIAL
from tengtune.hub.base import Digest, Hub, Interrupted, RemoteFile
from tengtune.hub.record import PIECE, pieces, sha256_of
from tengtune.ui import language
from tengtune.ui.problems import FAILED_RUN, UNFIT_MACHINE, Problem, os_errors

WAITS = (1.0, 2.0, 4.0, 8.0, 16.0)
"""Seconds before each new try of a file that does not get on; progress starts the count anew."""
SLOW_SECONDS, SLOW_BYTES = 60.0, 65_536
"""A connection that brings less than SLOW_BYTES in SLOW_SECONDS is given up and made anew."""


class LeftOff(Exception):
    """Another file has failed: this one leaves off."""


@dataclass
class Watch:
    """What a transfer reports to. advance gets bytes as they come (negative: taken back); say gets a message
    code and its values; stop ends all transfers at their next piece."""

    advance: Callable[[int], None]
    say: Callable[..., None]
    stop: threading.Event


@dataclass(frozen=True)
class Source:
    """A model at a revision on a hub."""

    hub: Hub
    repo: str
    pin: str


def partial_of(folder: Path, name: str) -> Path:
    """Where a file stands until it is whole."""
    return folder / (name + PARTIAL)


def kept_bytes(folder: Path, file: RemoteFile) -> int:
    """The bytes an earlier run left of a file."""
    partial = partial_of(folder, file.name)
    there = partial.stat().st_size if partial.is_file() else 0
    return there if there <= file.size else 0


def fetch(source: Source, file: RemoteFile, folder: Path, watch: Watch) -> str:
    """Bring `file` into `folder`; its sha256.

    What an earlier run left as `<name>.partial` is hashed and gone on from; if the whole then has the wrong
    hash, the file is fetched once from its beginning. Problem: wrong hash, full disk, a connection that keeps
    breaking (what came stays for the next run).
    """
    partial = partial_of(folder, file.name)
    if partial.is_symlink():
        partial.unlink()  # it would be followed, and another file overwritten
    with (
        _disk(partial),
        open(partial, "r+b", buffering=PIECE, opener=_create) as stream,
    ):
        part = _Part(stream, file, watch)
        kept = part.keep()
        _complete(source, part)
        if kept and part.digest.fault():
            watch.say("download.restart", file=file.name)
            part.rewind()
            _complete(source, part)
        fault = part.digest.fault()
        stream.flush()
        os.fsync(stream.fileno())
    if fault is not None:
        partial.unlink()
        raise Problem(
            "download.wrong_hash",
            where=partial,
            exit_code=FAILED_RUN,
            file=file.name,
            expected=fault[0],
            found=fault[1],
        )
    _name(partial, folder / file.name)
    return part.digest.sha256


def _create(path: str, flags: int) -> int:
    """Open for reading and writing; "r+b" wants the file to be there and "w+b" empties it."""
    return os.open(path, flags | os.O_CREAT, 0o666)


def link(original: Path, file: RemoteFile, folder: Path, watch: Watch) -> str | None:
    """Give a verified file of this machine a second name in `folder`; its sha256, or None where the file
    system has no such links (another disk) and it must be copied."""
    sha256 = sha256_of(original, watch.advance)
    if file.sha256 and sha256 != file.sha256:
        raise Problem("download.mirror_damaged", where=original.parent, files=file.name)
    # A name of its own: a `.partial` is written to when it is resumed, and so would the original be.
    aside = folder / f"{file.name}.link{PARTIAL}"
    aside.unlink(missing_ok=True)
    try:
        os.link(original.resolve(), aside)
    except OSError:
        watch.advance(-file.size)
        return None
    with _disk(aside):
        _name(aside, folder / file.name)
        aside.unlink(missing_ok=True)  # renaming between two names of one file does nothing
        partial_of(folder, file.name).unlink(missing_ok=True)
    return sha256


def _name(partial: Path, target: Path) -> None:
    with os_errors(target):
        os.replace(partial, target)
        files.sync_folder(target.parent)


class _Part:
    """A file as far as it has come: its bytes on the disk and their hashes."""

    def __init__(self, stream: IO[bytes], file: RemoteFile, watch: Watch) -> None:
        self.stream, self.file, self.watch = stream, file, watch
        self.digest = Digest(file)

    def keep(self) -> int:
        """Take over what an earlier run left, unless it is longer than the file; the number of bytes."""
        if os.fstat(self.stream.fileno()).st_size > self.file.size:
            self.stream.truncate(0)
        for data in pieces(self.stream, self.watch.advance):
            self.digest.update(data)
        return self.digest.size

    def rewind(self) -> None:
        """Forget what came so far."""
        self.watch.advance(-self.digest.size)
        self.stream.seek(0)
        self.stream.truncate(0)
        self.digest = Digest(self.file)

    def take(self, chunks: Iterator[bytes]) -> None:
        """Add bytes until the file is full, or has too many: then its size is wrong, the rest unwanted."""
        since, received = time.monotonic(), 0
        for data in chunks:
            if self.watch.stop.is_set():
                raise LeftOff
            self.digest.update(data)
            if self.digest.size > self.file.size:
                return
            self.stream.write(data)
            self.watch.advance(len(data))
            received += len(data)
            if (passed := time.monotonic() - since) >= SLOW_SECONDS:
                if received < SLOW_BYTES:
                    raise Interrupted(f"{received / passed:.0f} B/s")
                since, received = time.monotonic(), 0


def _complete(source: Source, part: _Part) -> None:
    """Fetch the rest, however often the connection breaks, as long as it gets on in between."""
    file, watch = part.file, part.watch
    tries, best = 0, part.digest.size
    while part.digest.size < file.size:
        reason = language.say("download.ended_early")
        try:
            with source.hub.open(source.repo, source.pin, file.name, part.digest.size) as answer:
                if answer.start != part.digest.size:
                    watch.say("download.no_resume", file=file.name)
                    part.rewind()
                part.take(answer.chunks)
        except Interrupted as error:
            reason = error.reason
        if part.digest.size >= file.size:
            return
        if part.digest.size > best:
            tries, best = 0, part.digest.size
        if tries == len(WAITS):
            raise Problem(
                "download.cut",
                where=source.hub.endpoint,
                exit_code=FAILED_RUN,
                file=file.name,
                tries=tries + 1,
                reason=reason,
            )
        watch.say("download.retry", file=file.name, reason=reason, seconds=f"{WAITS[tries]:g}")
        if watch.stop.wait(WAITS[tries]):
            raise LeftOff
        tries += 1


@contextmanager
def _disk(path: Path) -> Iterator[None]:
    """os_errors, but a full disk is told with what becomes of the file: it is gone on from."""
    try:
        with os_errors(path):
            yield
    except Problem as problem:
        if problem.code != "io.no_space":
            raise
        raise Problem("download.disk_full", where=path, exit_code=UNFIT_MACHINE) from problem
