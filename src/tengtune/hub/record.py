"""`download.json` in a model's folder: what was fetched, from where, and whether it is still whole."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO

from tengtune import __version__, files
from tengtune.json_file import read_object
from tengtune.ui.problems import Problem, os_errors

NAME = "download.json"
PIECE = 1 << 20


@dataclass(frozen=True)
class Entry:
    """A verified file: size in bytes, modification time, sha256."""

    size: int
    mtime_ns: int
    sha256: str


@dataclass
class Record:
    """A download into one folder: the files it wrote or found right. `whole` once none is missing; `checked`
    is False where the source told no hashes for some (the ones here are then those of what came)."""

    model: str
    source: str
    endpoint: str
    revision: str
    pin: str = ""
    whole: bool = False
    checked: bool = True
    files: dict[str, Entry] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        return sum(entry.size for entry in self.files.values())


def read_record(folder: Path) -> Record | None:
    """The record in `folder`; None where there is none, or none that can be used."""
    try:
        raw = read_object(folder / NAME, "download.bad_answer")
        entries = {name: Entry(**entry) for name, entry in raw.pop("files").items()}
        raw.pop("tengtune", None)
        record = Record(**raw, files=entries)
    except (Problem, TypeError, AttributeError, KeyError):
        return None
    texts = [record.model, record.source, record.endpoint, record.revision, record.pin]
    plain = all(name == Path(name).name for name in entries)
    sound = all(isinstance(e.size, int) and isinstance(e.sha256, str) for e in entries.values())
    return record if plain and sound and all(isinstance(text, str) for text in texts) else None


def write_record(folder: Path, record: Record) -> None:
    """Write the record atomically."""
    values = {"tengtune": __version__, **asdict(record)}
    files.write_text(folder / NAME, json.dumps(values, ensure_ascii=False, indent=1) + "\n")


def entry_of(path: Path, sha256: str) -> Entry:
    """The entry of a file whose hash is known."""
    info = os.stat(path)
    return Entry(info.st_size, info.st_mtime_ns, sha256)


def unchanged(path: Path, entry: Entry) -> bool:
    """Whether a file has the size and time it had when it was verified."""
    try:
        info = os.stat(path)
    except OSError:
        return False
    return (info.st_size, info.st_mtime_ns) == (entry.size, entry.mtime_ns)


def pieces(stream: IO[bytes], advance: Callable[[int], None]) -> Iterator[bytes]:
    """The rest of a stream in pieces of at most PIECE bytes, each told to `advance`."""
    while data := stream.read(PIECE):
        advance(len(data))
        yield data


def sha256_of(path: Path, advance: Callable[[int], None]) -> str:
    """The sha256 of a file's contents; `advance` gets the bytes as they are read."""
    digest = hashlib.sha256()
    with os_errors(path), open(path, "rb", buffering=0) as stream:
        for data in pieces(stream, advance):
            digest.update(data)
    return digest.hexdigest()


def damaged(folder: Path, record: Record, advance: Callable[[int], None], full: bool = False) -> list[str]:
    """The recorded files that are missing or differ. By size and time; where only the time differs (a folder
    that was copied), or with `full`, by sha256, and the new time is noted in `record`."""
    faults = []
    for name, entry in record.files.items():
        path = folder / name
        if not full and unchanged(path, entry):
            continue
        same_size = path.is_file() and path.stat().st_size == entry.size
        if same_size and sha256_of(path, advance) == entry.sha256:
            record.files[name] = entry_of(path, entry.sha256)
        else:
            faults.append(name)
    return faults
