"""Documents: token ids one after the other in flat arrays, collected on disk so that memory stays small."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from tengtune import files

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Documents:
    """D documents of T tokens in all.

    ids int32 [T]; train bool [T], true where the token is a label; starts int64 [D+1], document d is
    ids[starts[d] : starts[d+1]]; source int64 [D,2], file number and record number; file_names: their names.
    """

    ids: Int32
    train: Bool
    starts: Int64
    source: Int64
    file_names: tuple[str, ...]

    @property
    def lengths(self) -> Int64:
        """Tokens of each document, int64 [D]."""
        return self.starts[1:] - self.starts[:-1]

    def __len__(self) -> int:
        return len(self.starts) - 1

    def tokens_of(self, documents: Int64) -> Int64:
        """Where the tokens of these documents lie, int64, one document after the other."""
        return ranges(self.starts[documents], self.lengths[documents])

    def source_of(self, document: int) -> str:
        """ "file:record" of a document."""
        file, record = self.source[document].tolist()
        return f"{self.file_names[file]}:{record}"


def ranges(begins: Int64, lengths: Int64) -> Int64:
    """begins[0], begins[0] + 1, ... (lengths[0] of them), then begins[1], ...: int64 [sum of lengths]."""
    index: Int64 = np.repeat(begins + lengths - np.cumsum(lengths), lengths)
    index += np.arange(len(index), dtype=np.int64)
    return index


def starts(lengths: Int64) -> Int64:
    """Where each of these lengths begins when they follow each other, and where the last ends."""
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)))


class Spool:
    """Takes documents and keeps only their lengths, sources and hashes in memory."""

    def __init__(self, ids: IO[bytes], train: IO[bytes]) -> None:
        self._ids, self._train = ids, train
        self._lengths, self._source, self._hashes = array("q"), array("q"), array("q")
        self._files: dict[str, int] = {}

    def add(self, file: str, ids: Int32, train: Bool, lengths: Int64, records: Int64, hashes: Int64) -> None:
        """Append documents of one file: their tokens, and each one's length, record number and hash."""
        self._ids.write(ids.tobytes())
        self._train.write(train.tobytes())
        number = self._files.setdefault(file, len(self._files))
        self._lengths.frombytes(lengths.tobytes())
        self._source.frombytes(np.stack((np.full_like(records, number), records), axis=1).tobytes())
        self._hashes.frombytes(hashes.tobytes())

    def documents(self) -> Documents:
        """What was added so far, mapped from the disk."""
        self._ids.flush()
        self._train.flush()
        return Documents(
            _mapped(self._ids.name, np.int32),
            _mapped(self._train.name, np.bool_),
            starts(np.array(self._lengths, np.int64)),
            np.array(self._source, np.int64).reshape(-1, 2),
            tuple(self._files),
        )

    def hashes(self) -> Int64:
        """The hash of each document's conversation, int64 [D]: equal for equal ones, and for its parts."""
        return np.array(self._hashes, np.int64)


@contextmanager
def spool(folder: Path) -> Iterator[Spool]:
    """A spool in `folder`, a place for its two files that is emptied before and removed afterwards."""
    files.remove(folder)
    folder.mkdir(parents=True)
    try:
        with open(folder / "ids", "wb") as ids, open(folder / "train", "wb") as train:
            yield Spool(ids, train)
    finally:
        files.remove(folder)


def _mapped(name: str, dtype: type[np.generic]) -> npt.NDArray[Any]:
    """A file of raw values as a read-only array (an empty file cannot be mapped)."""
    return np.memmap(name, dtype, "r") if Path(name).stat().st_size else np.empty(0, dtype)
