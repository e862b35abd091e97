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
from tengtune.text.conversation import Example

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
        lengths = self.lengths[documents]
        ends = np.cumsum(lengths)
        offset: Int64 = np.repeat(self.starts[documents] + lengths - ends, lengths)
        index: Int64 = offset + np.arange(len(offset), dtype=np.int64)
        return index

    def source_of(self, document: int) -> str:
        """ "file:record" of a document."""
        file, record = self.source[document].tolist()
        return f"{self.file_names[file]}:{record}"


def starts(lengths: Int64) -> Int64:
    """Where each of these lengths begins when they follow each other, and where the last ends."""
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)))


class Spool:
    """Takes examples one by one and keeps only their lengths and sources in memory."""

    def __init__(self, ids: IO[bytes], train: IO[bytes]) -> None:
        self._ids, self._train = ids, train
        self._lengths, self._source = array("q"), array("q")
        self._files: dict[str, int] = {}

    def add(self, example: Example) -> None:
        """Append one document; its source is "file:record"."""
        self._ids.write(example.ids.tobytes())
        self._train.write(example.train.tobytes())
        file, _, record = example.source.rpartition(":")
        self._lengths.append(len(example.ids))
        self._source.extend((self._files.setdefault(file, len(self._files)), int(record)))

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


def heldout_split(count: int, fraction: float, seed: int) -> tuple[Int64, Int64]:
    """Numbers of the documents to train on and of those held out, both ascending.

    `fraction` of them, rounded, but at least one of each; with a single document, or fraction 0, none
    is held out.
    """
    held = min(max(round(count * fraction), 1), count - 1) if fraction and count > 1 else 0
    order = np.random.default_rng(seed).permutation(count).astype(np.int64)
    return np.sort(order[held:]), np.sort(order[:held])
