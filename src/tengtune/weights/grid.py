"""Tensors joined from the pieces of many ranks, and pieces cut from a whole one, row by row when read."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable
from itertools import product
from typing import Any

import numpy as np

from tengtune.ui.lists import listed
from tengtune.ui.problems import Problem
from tengtune.weights.layout import Layout, Shape
from tengtune.weights.stream import Array, Counted, Rows


class Grid(Counted):
    """A whole tensor over the pieces of its ranks; pieces that several ranks hold are compared as they are
    read (Problem: they differ), unless `compare` is False.

    holders: (rank, its piece), all of one shape with at least one axis, one dtype, and at least one for each
    place of the layout. `twin`: the same tensor over the ranks of another pipeline stage, to compare with.
    """

    def __init__(
        self,
        name: str,
        layout: Layout,
        holders: list[tuple[int, Rows]],
        compare: bool = True,
        twin: Grid | None = None,
    ) -> None:
        first = holders[0][1]
        self.name, self.layout, self.compare, self.twin = name, layout, compare, twin
        self.local = first.shape
        self.shape, self.dtype = layout.whole_shape(first.shape), first.dtype
        self.places: dict[Shape, list[tuple[int, Rows]]] = {}
        for rank, piece in holders:
            self.places.setdefault(layout.place(rank % layout.devices), []).append((rank, piece))

    @property
    def holes(self) -> list[Shape]:
        """The places that no rank holds."""
        return [place for place in product(*map(range, self.layout.counts)) if place not in self.places]

    @property
    def taken(self) -> list[int]:
        """The ranks whose pieces make the tensor."""
        return [holders[0][0] for holders in self.places.values()]

    def __getitem__(self, rows: slice) -> Array:
        start, stop = self.bounds(rows)
        parts, length = [], self.local[0]
        for index in range(start // length if length else 0, self.layout.counts[0]):
            first = index * length
            if first >= stop:
                break
            parts.append(self._block(index, slice(max(start - first, 0), min(stop - first, length))))
        joined: Array = parts[0] if len(parts) == 1 else np.concatenate([*parts, self._nothing()])
        if self.twin is not None and self.compare:
            _check_same(self.name, self.twin[rows], self.twin.taken, joined, self.taken)
        return joined

    def _nothing(self) -> Array:
        return np.empty((0, *self.shape[1:]), self.dtype)

    def _block(self, index: int, rows: slice) -> Array:
        """The given local rows of the index-th row of pieces, over all other axes."""
        if max(self.layout.counts[1:], default=1) == 1:
            return self._piece((index, *(0,) * (len(self.shape) - 1)), rows)
        block = np.empty((rows.stop - rows.start, *self.shape[1:]), self.dtype)
        for other in product(*map(range, self.layout.counts[1:])):
            spans = zip(other, self.local[1:], strict=True)
            target = (slice(i * length, (i + 1) * length) for i, length in spans)
            block[(slice(None), *target)] = self._piece((index, *other), rows)
        return block

    def _piece(self, place: Shape, rows: slice) -> Array:
        (rank, piece), *others = self.places[place]
        values = piece[rows]
        for other, copy in others if self.compare else []:
            _check_same(self.name, values, [rank], copy[rows], [other])
        return values


def copied(grids: Iterable[Grid]) -> tuple[int, int] | None:
    """Two ranks that should hold different parts and hold the same, as far as the first rows of all their
    pieces tell: one's file is a copy of the other's. Parts of one value, as of an adapter that has learned
    nothing yet, tell nothing."""
    beginnings: defaultdict[int, Any] = defaultdict(hashlib.sha256)
    places: defaultdict[int, list[Shape | None]] = defaultdict(list)
    for grid in grids:
        for place, holders in grid.places.items():
            for rank, piece in holders:
                row = np.ascontiguousarray(piece[:1]).reshape(-1)
                told = row.size > 1 and bool((row != row[0]).any())
                beginnings[rank].update(grid.name.encode() + row.tobytes())
                places[rank].append(place if told else None)
    known: dict[bytes, int] = {}
    for rank, beginning in beginnings.items():
        first = known.setdefault(beginning.digest(), rank)
        if places[first] != places[rank]:
            return first, rank
    return None


class Part(Counted):
    """The part of a whole tensor that one rank holds."""

    def __init__(self, source: Rows, box: tuple[slice, ...]) -> None:
        self.source, self.box = source, box
        self.shape, self.dtype = tuple(axis.stop - axis.start for axis in box), source.dtype

    def __getitem__(self, rows: slice) -> Array:
        start, stop = self.bounds(rows)
        first = self.box[0].start
        block: Array = self.source[first + start : first + stop][(slice(None), *self.box[1:])]
        return block


def same_bits(one: Array, other: Array) -> bool:
    """Whether two arrays of one shape and dtype hold the same bits (NaN equals itself)."""
    a, b = (np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in (one, other))
    return np.array_equal(a, b)


def _check_same(name: str, one: Array, ranks: list[int], other: Array, others: list[int]) -> None:
    if same_bits(one, other):
        return
    wide = [array.astype(np.float64) for array in (one, other)]
    with np.errstate(invalid="ignore", over="ignore"):
        gap = float(np.nanmax(np.abs(wide[0] - wide[1]), initial=0.0))
    count = int(np.count_nonzero(wide[0] != wide[1]))
    raise Problem(
        "shard.copies_differ",
        where=name,
        tensor=name[:200],
        ranks=" / ".join(listed(group) for group in (ranks, others)),
        count=count,
        size=one.size,
        gap=f"{gap:.3g}",
    )
