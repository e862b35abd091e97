"""Which part of a tensor each rank holds: MindSpore's layouts as pure arithmetic.

A stage's ranks fill a grid of devices row by row. Each axis of a tensor is cut evenly along none, one or
several dimensions of the grid. Ranks that would then hold the same part may cut it once more, along axis 0:
optimizer sharding.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

Shape = tuple[int, ...]

MAX_DEVICES = 2**16
"""Of a stage, and of all stages together."""


class LayoutFault(ValueError):
    """A layout that cannot be. reason: devices, map, size, step."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True)
class Layout:
    """How one tensor lies on the devices of a stage.

    dev_matrix: the grid, slowest dimension first, e.g. (2, 4) for 2 data-parallel groups of 4.
    tensor_map: for each axis the grid's dimensions that cut it, counted from the right (0 = the last), the
    slowest first; () for an axis that is whole.
    opt_size: into how many pieces the ranks that hold the same part cut it (0: not; -1: as many as they
    are); opt_step: the distance from one of them to the next. Raises LayoutFault.
    """

    dev_matrix: Shape
    tensor_map: tuple[Shape, ...]
    opt_step: int = 0
    opt_size: int = 0

    def __post_init__(self) -> None:
        if not self.dev_matrix or min(self.dev_matrix) < 1 or self.devices > MAX_DEVICES:
            raise LayoutFault("devices")
        used = [dim for dims in self.tensor_map for dim in dims]
        if len(set(used)) < len(used) or not set(used) <= set(range(len(self.dev_matrix))):
            raise LayoutFault("map")
        if self.opt_pieces > 1 and not self.tensor_map:
            raise LayoutFault("size")
        if self.opt_size < -1 or self._repeats % self.opt_pieces:
            raise LayoutFault("size")
        if self.opt_pieces > 1:
            group = [self._repeat(index) for index in range(self.opt_pieces)]
            # MindSpore writes the mean distance, which is the first one unless the group has gaps.
            if self.opt_step not in (group[1], group[-1] // (len(group) - 1)):
                raise LayoutFault("step")

    @cached_property
    def devices(self) -> int:
        """Ranks of the stage."""
        return prod(self.dev_matrix)

    @cached_property
    def opt_pieces(self) -> int:
        """Pieces of axis 0 by optimizer sharding; 1 for none."""
        return self._repeats if self.opt_size == -1 else max(1, self.opt_size)

    @cached_property
    def counts(self) -> Shape:
        """Pieces along each axis."""
        cuts = [prod(self._length(dim) for dim in dims) for dims in self.tensor_map]
        return tuple(cut * (self.opt_pieces if axis == 0 else 1) for axis, cut in enumerate(cuts))

    def place(self, rank: int) -> Shape:
        """Which piece along each axis the stage's rank (from 0) holds."""
        place = []
        for axis, dims in enumerate(self.tensor_map):
            index = 0
            for dim in dims:
                index = index * self._length(dim) + self._coordinate(rank, dim)
            if axis == 0:
                index = index * self.opt_pieces + self._repeat_index(rank) % self.opt_pieces
            place.append(index)
        return tuple(place)

    def pieces(self) -> npt.NDArray[np.int64]:
        """For each of the stage's ranks the number of the piece it holds, counted row by row: [devices]."""
        ranks: Any = np.arange(self.devices)  # the arithmetic of one rank, on all at once
        numbers = np.zeros(self.devices, np.int64)
        for index, count in zip(self.place(ranks), self.counts, strict=True):
            numbers = numbers * count + index
        return numbers

    def whole_shape(self, local: Shape) -> Shape:
        """The shape of the tensor whose pieces have the shape `local`."""
        return tuple(length * count for length, count in zip(local, self.counts, strict=True))

    def local_shape(self, whole: Shape) -> Shape | None:
        """The shape of the pieces; None where an axis cannot be cut evenly."""
        if len(whole) != len(self.counts) or any(n % c for n, c in zip(whole, self.counts, strict=True)):
            return None
        return tuple(length // count for length, count in zip(whole, self.counts, strict=True))

    def part(self, whole: Shape, rank: int) -> tuple[slice, ...] | None:
        """The slice of the whole tensor that a rank holds; None where it cannot be cut evenly."""
        local = self.local_shape(whole)
        if local is None:
            return None
        pairs = zip(self.place(rank), local, strict=True)
        return tuple(slice(index * length, (index + 1) * length) for index, length in pairs)

    def _length(self, dim: int) -> int:
        return self.dev_matrix[-1 - dim]

    def _coordinate(self, rank: int, dim: int) -> int:
        return rank // prod(self.dev_matrix[len(self.dev_matrix) - dim :]) % self._length(dim)

    @cached_property
    def _free(self) -> Shape:
        """The grid's dimensions that cut no axis, the slowest first: along them parts repeat."""
        used = {dim for dims in self.tensor_map for dim in dims}
        return tuple(dim for dim in reversed(range(len(self.dev_matrix))) if dim not in used)

    @cached_property
    def _repeats(self) -> int:
        """How many ranks hold the same part before optimizer sharding."""
        return prod(self._length(dim) for dim in self._free)

    def _repeat_index(self, rank: int) -> int:
        """A rank's number among those that hold the same part."""
        index = 0
        for dim in self._free:
            index = index * self._length(dim) + self._coordinate(rank, dim)
        return index

    def _repeat(self, index: int) -> int:
        """The rank of that number, for the first part."""
        rank = 0
        for dim in reversed(self._free):
            rank += index % self._length(dim) * prod(self.dev_matrix[len(self.dev_matrix) - dim :])
            index //= self._length(dim)
        return rank


def repeated(axes: int, devices: int) -> Layout:
    """The layout of a tensor of which every rank holds the whole."""
    return Layout((devices,), ((),) * axes)


def optimizer_sharded(whole: Shape, devices: int) -> Layout:
    """Axis 0 cut over all ranks by optimizer sharding; whole on each where it does not divide."""
    if devices == 1 or not whole or not whole[0] or whole[0] % devices:
        return repeated(len(whole), devices)
    return Layout((devices,), ((),) * len(whole), opt_step=1, opt_size=devices)
