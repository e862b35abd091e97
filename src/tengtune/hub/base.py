"""What a hub is to the download: a list of files with sizes and hashes, and bytes from any offset on."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

_CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(?:\d+|\*)")


@dataclass(frozen=True)
class RemoteFile:
    """A file a hub offers. size in bytes; sha256 or git (the blob id of a small file on Hugging Face, which
    is sha1 over "blob <size>\\0" and the contents) as lower-case hex, "" where the hub does not say."""

    name: str
    size: int
    sha256: str = ""
    git: str = ""


@dataclass(frozen=True)
class Listing:
    """The files of one revision. `pin` names it from now on (a commit where the hub tells it)."""

    pin: str
    files: list[RemoteFile]


@dataclass(frozen=True)
class Answer:
    """The bytes of a file from offset `start` on, which is 0 where a server does not resume."""

    start: int
    chunks: Iterator[bytes]


class Interrupted(Exception):
    """A failure that may pass: a cut connection, a time-out, an overloaded server. `reason` is for people."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Hub(Protocol):
    """A place models come from."""

    name: str
    endpoint: str
    revision: str
    """The revision that is meant when none is given."""

    def listing(self, repo: str, revision: str) -> Listing:
        """The files of `repo`; Problem (no such model, revision, right) or Interrupted."""

    def open(self, repo: str, pin: str, file: str, start: int) -> AbstractContextManager[Answer]:
        """Begin to read a file at an offset; Problem or Interrupted, also while reading."""

    def path(self, repo: str, file: str) -> Path | None:
        """Where the file lies, if it lies on this machine."""


class Digest:
    """The hashes of a file as its bytes come; `size` counts them."""

    def __init__(self, file: RemoteFile) -> None:
        self.file = file
        self.size = 0
        self._sha256 = hashlib.sha256()
        # Only where it is all there is: a second hash would halve the speed.
        self._git = hashlib.sha1(b"blob %d\0" % file.size, usedforsecurity=False) if file.git else None

    def update(self, data: bytes) -> None:
        self.size += len(data)
        self._sha256.update(data)
        if self._git is not None:
            self._git.update(data)

    @property
    def sha256(self) -> str:
        return self._sha256.hexdigest()

    def fault(self) -> tuple[str, str] | None:
        """(expected, found) when the bytes are not the listed file's; None when they are."""
        if self.size != self.file.size:
            return f"{self.file.size} bytes", f"{self.size} bytes"
        found = self.sha256 if self.file.sha256 else self._git.hexdigest() if self._git is not None else ""
        expected = self.file.sha256 or self.file.git
        return None if found == expected else (expected, found)


def range_header(start: int) -> dict[str, str]:
    """Headers that ask for the bytes from `start` on, uncompressed (offsets count plain bytes)."""
    return {"Accept-Encoding": "identity", **({"Range": f"bytes={start}-"} if start else {})}


def answered_from(content_range: str | None, start: int) -> int:
    """The offset an answer begins at. Content-Range decides, not the status: ModelScope resumes with 200."""
    match = _CONTENT_RANGE.match(content_range or "")
    begin = int(match[1]) if match else 0
    if begin not in (0, start):
        raise Interrupted(f"asked for bytes from {start} on, the answer starts at {begin}")
    return begin


def innermost(error: BaseException) -> str:
    """What went wrong at the bottom of a chain of errors, in a line (the top repeats addresses)."""
    while (below := error.__cause__ or error.__context__) is not None:
        error = below
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:200]


def plain_address(url: str) -> str:
    """An address without the user name and password it may hold."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl().rstrip("/")


def address(*variables: str, default: str) -> str:
    """A hub's address: the first variable that is set, with a scheme, otherwise `default`."""
    text = next((value for name in variables if (value := os.environ.get(name, "").strip())), default)
    return (text if "://" in text else f"https://{text}").rstrip("/")
