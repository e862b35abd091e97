"""MindRecord files (MindSpore's, version 3.0), read without MindSpore.

A file X is 8 bytes (little-endian length), a JSON header of that length, and from header_size on pages of
page_size; X.db is a SQLite table of where each record's bytes lie in them. Both hold the file's own name, and
the header those of all its shards, so that a renamed copy would have MindSpore read the original. A record's
integers are kept each in as few bytes as it needs.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tengtune.data.detect import LONGEST_HEADER, begins_mindrecord
from tengtune.data.documents import Int64
from tengtune.files import require_file
from tengtune.ui import language
from tengtune.ui.lists import joined
from tengtune.ui.problems import Problem, os_errors

LOADED = re.compile(r"mindrecord0*$")
"""Names that mindformers' loader takes out of a folder: of several shards the first."""
_NAMED = re.compile(r"mindrecord\d*(\.db)?$")
_REFUSED = re.compile(r"""[\\:*?"<>|`&';]|^ """)
INDEX = ".db"
HEAD = 64
VERSION = "3.0"
_INTEGERS = ("int32", "int64")
_SIZES = np.array([1, 2, 4, 8], np.int64)
_SHIFTS = np.array([6, 4, 2, 0], np.uint8)
_ROWS = "SELECT ROW_ID, PAGE_ID_BLOB, PAGE_OFFSET_BLOB, PAGE_OFFSET_BLOB_END FROM INDEXES ORDER BY ROW_ID"


def is_mindrecord(path: Path) -> bool:
    """Whether a file is meant to be a MindRecord, by its name or by how it begins."""
    if _NAMED.search(path.name):
        return True
    try:
        if not path.is_file():  # a pipe would wait for its writer
            return False
        with open(path, "rb") as stream:
            return begins_mindrecord(stream.read(HEAD))
    except OSError:
        return False


def first_shard(path: Path) -> Path:
    """Of a MindRecord in several shards, whose common name is no file, the first; else the path itself."""
    if path.exists() or not LOADED.search(path.name):
        return path
    numbered = re.compile(re.escape(path.name) + r"0+$")
    try:
        found = [each for each in path.parent.iterdir() if numbered.match(each.name)]
    except OSError:
        return path
    return min(found, default=path)


def parts(path: Path) -> list[Path]:
    """All files that belong to a MindRecord, its shards and their indexes; of any other file itself."""
    if not is_mindrecord(path):
        return [path]
    try:
        shards = [path.with_name(name) for name in _Header(path).names]
    except Problem:
        return [path]
    return [part for shard in shards for part in (shard, _index(shard))]


def family(path: Path) -> list[Path]:
    """What stands under this name or as a shard of it, with the indexes; the first shard comes first."""
    pattern = re.compile(re.escape(path.name) + r"\d*(\.db)?$")
    if not path.parent.is_dir():
        return []
    return sorted(each for each in path.parent.iterdir() if pattern.match(each.name))


class MindRecord:
    """A MindRecord opened for reading, all its shards, in the order of their numbers.

    shards: their files; records: how many there are; columns: those with integers; bytes: what the records
    take.
    """

    def __init__(self, path: Path) -> None:
        """`path`: any of the shards. Problem: an index or a shard is not there, a name is not the one inside,
        a file is cut off or damaged, or of another version."""
        if path.name.endswith(INDEX):
            raise Problem("mindrecord.index_given", where=path, file=path.name.removesuffix(INDEX))
        require_file(path)
        header = _Header(path)
        self.path = path
        names = header.names
        missing = [name for name in names if not path.with_name(name).is_file()]
        if missing:
            raise Problem("mindrecord.shard_missing", where=path, missing=joined(missing), shards=len(names))
        self._shards = [_Shard(path.with_name(name), names, number) for number, name in enumerate(names)]
        self.shards = [shard.path for shard in self._shards]
        self.records = sum(shard.header.records for shard in self._shards)
        self.bytes = sum(shard.header.bytes for shard in self._shards)
        self.columns = [name for name, kind in header.blobs if kind in _INTEGERS]

    def require(self, columns: Sequence[str]) -> None:
        """Problem for a column that is not there, or holds no integers."""
        absent = [name for name in columns if name not in self.columns]
        if absent:
            there = joined(self.columns) or "-"
            raise Problem("mindrecord.no_column", where=self.path, missing=joined(absent), columns=there)

    def rows(self, columns: Sequence[str]) -> Iterator[list[Int64]]:
        """Of each record these columns, int64 [n] each. Problem where a record is damaged."""
        for shard in self._shards:
            yield from shard.rows(columns)


class _Header:
    """A shard's header: names of all shards, the columns that are kept as blobs, pages."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with os_errors(path), open(path, "rb") as stream:
            head = stream.read(8)
            length = int.from_bytes(head, "little")
            raw = stream.read(length) if length < LONGEST_HEADER else b""
            self.size = stream.seek(0, 2)
        if not raw:
            raise broken(path, "mindrecord.no_header")
        try:
            self._read(json.loads(raw))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
            raise broken(path, "mindrecord.no_header") from error
        if self.version != VERSION:
            raise Problem("mindrecord.version", where=path, found=self.version, known=VERSION)
        if path.name != (self.names[self.number] if 0 <= self.number < len(self.names) else ""):
            raise _renamed(path, self.names[0] if len(self.names) == 1 else joined(self.names))
        if self.size < self.end:
            raise broken(path, "mindrecord.cut_off", size=self.size, needed=self.end)

    def _read(self, header: dict[str, Any]) -> None:
        self.version = str(header["version"])
        addresses = header["shard_addresses"]
        if not isinstance(addresses, list) or not addresses:
            raise TypeError("shard_addresses")
        self.names = [Path(str(name)).name for name in addresses]
        self.number = int(header["shard_id"])
        self.start, self.page = int(header["header_size"]), int(header["page_size"])
        (described,) = header["schema"]
        kinds = {name: str(field["type"]) for name, field in described["schema"].items()}
        self.blobs = [(str(name), kinds[name]) for name in described["blob_fields"]]
        pages = [
            (p["page_type"], p["page_id"], p["page_size"], p["end_row_id"]) for p in header["page"] or ()
        ]
        blobs = [page for page in pages if page[0] == "BLOB_DATA"]
        self.end = max((self.start + self.page * int(n) + int(size) for _, n, size, _ in pages), default=0)
        self.bytes = sum(int(size) for _, _, size, _ in blobs)
        self.records = max((int(end) for *_, end in blobs), default=0)


class _Shard:
    """One file and its index."""

    def __init__(self, path: Path, names: list[str], number: int) -> None:
        self.path, self.header = path, _Header(path)
        if (self.header.names, self.header.number) != (names, number):
            raise broken(path, "mindrecord.of_another")
        self.index = _index(path)
        if not self.index.is_file():
            raise Problem("mindrecord.no_index", where=self.index, file=path.name)
        named = [str(name) for (name,) in self._ask("SELECT NAME FROM SHARD_NAME")]
        if named != [path.name]:
            raise _renamed(path, joined(named))
        ((count, last),) = self._ask("SELECT COUNT(*), MAX(ROW_ID) FROM INDEXES")
        if count != self.header.records or count != (last + 1 if count else 0):
            raise broken(path, "mindrecord.other_count", index=count, header=self.header.records)

    def _ask(self, query: str) -> Iterator[Any]:
        try:
            uri = f"{self.index.absolute().as_uri()}?mode=ro&immutable=1"
            with closing(sqlite3.connect(uri, uri=True)) as database:
                yield from database.execute(query)
        except sqlite3.Error as error:
            raise broken(self.index, "mindrecord.bad_index", reason=str(error)) from error

    def rows(self, columns: Sequence[str]) -> Iterator[list[Int64]]:
        start, page = self.header.start, self.header.page
        with os_errors(self.path), open(self.path, "rb") as stream:
            for number, at, begin, end in self._ask(_ROWS):
                try:
                    place = start + page * at + begin
                    if not 0 <= place <= place + end - begin <= self.header.size:
                        raise ValueError
                    stream.seek(place)
                    found = self._columns(stream.read(end - begin), end - begin, columns)
                except (ValueError, TypeError) as error:
                    raise broken(self.path, "mindrecord.bad_record", record=number) from error
                yield found

    def _columns(self, raw: bytes, size: int, columns: Sequence[str]) -> list[Int64]:
        """The columns of one record; ValueError where its bytes are none. Each has its size before it."""
        if len(raw) != size or int.from_bytes(raw[:8], "little") != size - 8:
            raise ValueError
        place, found = 8, {}
        alone = len(self.header.blobs) == 1
        for name, kind in self.header.blobs:
            length = size - place if alone else int.from_bytes(raw[place : place + 8], "big")
            place += 0 if alone else 8
            if kind in _INTEGERS:
                found[name] = _integers(raw[place : place + length])
            place += length
        if place != size:
            raise ValueError
        return [found[name] for name in columns]


def _integers(raw: bytes) -> Int64:
    """A column's integers: their count (4 bytes, big-endian), 2 bits for each one's size, then each in 1, 2,
    4 or 8 bytes, little-endian. ValueError when the sizes do not add up."""
    count = int.from_bytes(raw[:4], "big")
    begin = 4 + (count + 3) // 4
    if len(raw) < begin + count:
        raise ValueError
    bitmap = np.frombuffer(raw, np.uint8, begin - 4, 4)
    if not bitmap.any() and len(raw) == begin + count:  # a byte each: masks, and labels where none is set
        return np.frombuffer(raw, np.int8, count, begin).astype(np.int64)
    kinds = (bitmap[:, None] >> _SHIFTS & 3).reshape(-1)[:count]
    ends = np.cumsum(_SIZES[kinds])
    if len(raw) - begin != (ends[-1] if count else 0):
        raise ValueError
    values = np.empty(count, np.int64)
    for kind, dtype in enumerate(("<i1", "<i2", "<i4", "<i8")):
        chosen = np.flatnonzero(kinds == kind)
        if len(chosen):  # picked out of the numbers that begin at each byte
            size = 1 << kind
            everywhere: npt.NDArray[Any] = np.ndarray((len(raw) - begin - size + 1,), dtype, raw, begin, (1,))
            values[chosen] = everywhere[ends[chosen] - size]
    return values


def _index(path: Path) -> Path:
    return path.with_name(path.name + INDEX)


def broken(path: Path, code: str, **values: object) -> Problem:
    """A damaged file; `code`: the text of the reason."""
    return Problem("mindrecord.broken", where=path, reason=language.say(code, **values))


def _renamed(path: Path, inside: str) -> Problem:
    return Problem("mindrecord.renamed", where=path, name=path.name, inside=inside)


def check_name(out: Path) -> None:
    """Problem for a name that MindSpore does not take, or that mindformers' loader would pass over."""
    if LOADED.search(out.name) and not _REFUSED.search(out.name):
        return
    stem = _REFUSED.sub("_", out.stem).removesuffix(".mindrecord")
    raise Problem("mindrecord.name", where=out, proposed=out.with_name(f"{stem}.mindrecord"))
