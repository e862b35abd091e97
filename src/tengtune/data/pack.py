"""Which documents share a row."""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass

import numpy as np

from tengtune.data.documents import Int64, starts


@dataclass(frozen=True)
class Plan:
    """Rows of documents: row r holds documents[starts[r] : starts[r + 1]], each document in one row only."""

    documents: Int64
    starts: Int64

    @property
    def rows(self) -> int:
        return len(self.starts) - 1


def one_per_row(count: int) -> Plan:
    """Every document alone in a row, in order."""
    return Plan(np.arange(count, dtype=np.int64), np.arange(count + 1, dtype=np.int64))


def pack(lengths: Int64, seq_len: int, seed: int) -> Plan:
    """Best-fit-decreasing bin packing of documents of `lengths` (1..seq_len) into rows of seq_len.

    The longest go first, each into the fullest row that still holds it. Documents of one length and
    rows of one free space are placed as groups, so that the work grows with the number of documents
    plus the number of different lengths and spaces, not with their product. Which document of a length
    goes where, and the order of the rows, is drawn by `seed`.
    """
    generator = np.random.default_rng(seed)
    shuffled = generator.permutation(len(lengths))
    order = shuffled[np.argsort(-lengths[shuffled], kind="stable")]
    row_of = np.empty(len(lengths), np.int64)
    rows = _Rows(seq_len)
    sizes, counts = np.unique(lengths, return_counts=True)
    begin = 0
    for size, count in zip(sizes[::-1].tolist(), counts[::-1].tolist(), strict=True):
        row_of[order[begin : begin + count]] = rows.place(size, count)
        begin += count
    new_number = generator.permutation(rows.count)
    documents = np.argsort(new_number[row_of], kind="stable").astype(np.int64)
    filled = np.bincount(new_number[row_of], minlength=rows.count)
    return Plan(documents, starts(filled))


class _Rows:
    """Open rows by free space."""

    def __init__(self, seq_len: int) -> None:
        self.seq_len, self.count = seq_len, 0
        self.spaces: list[int] = []  # the free spaces there are, ascending
        self.rows: dict[int, Int64] = {}  # free space -> row numbers

    def place(self, size: int, count: int) -> Int64:
        """Row numbers for `count` documents of `size`, best fit first."""
        placed = []
        while count:
            at = bisect_left(self.spaces, size)
            space = self.spaces[at] if at < len(self.spaces) else self.seq_len
            each = space // size  # a row that fits best goes on fitting best until it is full
            needed = -(-count // each)
            rows = self._take(space, needed) if at < len(self.spaces) else self._open(needed)
            taken = min(count, len(rows) * each)
            placed.append(np.repeat(rows, each)[:taken])
            last = taken - (len(rows) - 1) * each  # documents in the last of these rows
            self._put(space - each * size, rows[:-1])
            self._put(space - last * size, rows[-1:])
            count -= taken
        return np.concatenate(placed)

    def _open(self, needed: int) -> Int64:
        rows = np.arange(self.count, self.count + needed, dtype=np.int64)
        self.count += needed
        return rows

    def _take(self, space: int, needed: int) -> Int64:
        """Up to `needed` of the rows with this free space."""
        rows = self.rows[space]
        if needed < len(rows):
            self.rows[space] = rows[needed:]
            return rows[:needed]
        del self.rows[space]
        del self.spaces[bisect_left(self.spaces, space)]
        return rows

    def _put(self, space: int, rows: Int64) -> None:
        """Give rows back with the space they have left; full ones are closed."""
        if not space or not len(rows):
            return
        if space in self.rows:
            self.rows[space] = np.concatenate((self.rows[space], rows))
        else:
            self.rows[space] = rows
            insort(self.spaces, space)
