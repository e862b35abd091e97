"""Logs as blocks of bytes: a file, a folder of them, what comes through a pipe; packed with gzip or not."""

from __future__ import annotations

import codecs
import itertools
import os
import re
import stat
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from tengtune.ui.problems import Problem, os_errors

BLOCK = 1 << 20
LOGS = re.compile(r".*(\.(log|txt|out|err)\b.*|\.gz|\.[oe]?\d+)|[^.]+", re.IGNORECASE | re.DOTALL)
"""Names of logs in a folder: x.log, x.log.1, x.log.gz, x.out, messages, messages.1, job.o123."""
NO_LOGS = ("merges.txt", "vocab.txt")
STDIN = "-"
PACKED = {
    b"PK\x03\x04": "zip",
    b"BZh": "bzip2",
    b"\xfd7zXZ\0": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"7z\xbc\xaf": "7z",
}
"""What files begin with that are packed in a way that is not read here."""


@dataclass(frozen=True)
class Source:
    """A log: its name as it is told, and its path (None: standard input)."""

    name: str
    path: Path | None


def sources(path: str) -> list[Source]:
    """The log of this path, or those of this folder, in order of their names; links in it are not followed.
    Problem for what is none."""
    if path == STDIN:
        return [Source(STDIN, None)]
    root = Path(path)
    with os_errors(root):
        mode = os.stat(path).st_mode  # "" is no path, and would be the current folder for Path
        if stat.S_ISDIR(mode):
            found = sorted(each for each in _files(root) if _is_log(each))
            if not found:
                raise Problem("explain.no_logs", where=root)
            return [Source(str(each), each) for each in found]
    if not stat.S_ISREG(mode):
        raise Problem("io.not_plain", where=root)
    return [Source(path, root)]


def blocks(source: Source, damaged: Callable[[], object]) -> Iterator[bytes]:
    """The log, unpacked, in blocks of about 1 MB. `damaged` is called where a packed file breaks off;
    what came before is kept. OSError from reading goes through."""
    if source.path is None:
        if sys.stdin is None:
            raise Problem("explain.no_input", where=STDIN)
        yield from _plain(_raw(sys.stdin.buffer), source.name, damaged)
        return
    with source.path.open("rb", buffering=0) as stream:
        yield from _plain(_raw(stream), source.name, damaged)


def _files(root: Path) -> Iterator[Path]:
    for folder, _, names in os.walk(root):
        for name in names:
            path = Path(folder, name)
            with suppress(FileNotFoundError):
                if stat.S_ISREG(path.lstat().st_mode):
                    yield path


def _is_log(path: Path) -> bool:
    """By its name; one without an ending has to begin like a text, too."""
    if not LOGS.fullmatch(path.name) or path.name in NO_LOGS:
        return False
    if "." in path.name:
        return True
    try:
        with path.open("rb") as stream:
            return b"\0" not in stream.read(4096)
    except OSError:
        return True  # told when it is its turn


def _raw(stream: BinaryIO) -> Iterator[bytes]:
    while block := stream.read(BLOCK):
        yield block


def _plain(raw: Iterator[bytes], name: str, damaged: Callable[[], object]) -> Iterator[bytes]:
    """What is packed, unpacked (once), in UTF-8 where it says that it is UTF-16."""
    first, whole = _begun(raw)
    if kind := next((name for mark, name in PACKED.items() if first.startswith(mark)), None):
        raise Problem("explain.packed", where=name, kind=kind)
    if first.startswith(b"\x1f\x8b"):
        first, whole = _begun(_inflated(whole, damaged))
    if not first.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        yield from whole
        return
    decoder = codecs.getincrementaldecoder("utf-16")("replace")
    for block in whole:
        yield decoder.decode(block).encode("utf-8", "replace")


def _begun(raw: Iterator[bytes]) -> tuple[bytes, Iterator[bytes]]:
    """The first six bytes, and everything with them."""
    first = next(raw, b"")
    while len(first) < 6 and (more := next(raw, b"")):
        first += more
    return first[:6], itertools.chain([first] if first else [], raw)


def _inflated(packed: Iterator[bytes], damaged: Callable[[], object]) -> Iterator[bytes]:
    """gzip, of any number of members, in pieces of at most BLOCK bytes."""
    machine, begun = zlib.decompressobj(31), False
    for block in packed:
        while block:
            begun = True
            try:
                piece = machine.decompress(block, BLOCK)
            except zlib.error:
                damaged()
                return
            if piece:
                yield piece
            block = machine.unconsumed_tail
            if machine.eof:
                block = machine.unused_data.lstrip(b"\0")  # padding, as tape blocks have it
                machine, begun = zlib.decompressobj(31), False
    if begun:
        if rest := machine.flush():
            yield rest
        if not machine.eof:
            damaged()
