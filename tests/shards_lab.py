"""Random distributed layouts, and what each rank holds, computed in another way than the product does."""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Any

import ml_dtypes
import numpy as np
from hypothesis import strategies as st

from tengtune.weights.layout import Layout
from tengtune.weights.strategy import Strategy

DTYPES = ["<f4", "<f2", ml_dtypes.bfloat16]


def grids(devices: int) -> st.SearchStrategy[tuple[int, ...]]:
    """A device matrix of up to 3 dimensions, some of them of length 1."""
    cuts = [d for d in product(range(1, devices + 1), repeat=3) if prod(d) == devices]
    return st.sampled_from([d[i:] for d in cuts for i in range(3) if prod(d[:i]) == 1])


@st.composite
def layouts(draw: st.DrawFn, grid: tuple[int, ...], axes: int, nested: bool = True) -> Layout:
    """A layout of a tensor of so many axes; nested: an axis may be cut along several dimensions."""
    order = draw(st.permutations(range(len(grid))))
    maps: list[tuple[int, ...]] = [() for _ in range(axes)]
    for dim in order:
        axis = draw(st.integers(-1, axes - 1))
        if axis >= 0 and (nested or not maps[axis]):
            maps[axis] = (*maps[axis], dim)
    used = {dim for dims in maps for dim in dims}
    free = [grid[-1 - dim] for dim in range(len(grid)) if dim not in used]
    repeats = prod(free)
    size = draw(st.sampled_from([0, *(n for n in range(1, repeats + 1) if repeats % n == 0)])) if axes else 0
    step = 0
    if size > 1:
        step = holders_of_one_part(grid, maps, 0)[1]
    if size == repeats and draw(st.booleans()):
        size = -1
    return Layout(grid, tuple(maps), step, size)


@st.composite
def runs(draw: st.DrawFn, nested: bool = True) -> tuple[Strategy, dict[str, np.ndarray]]:
    """A strategy of 2 to 8 ranks with a few tensors a stage, and the whole model."""
    stages = draw(st.integers(1, 4))
    devices = draw(st.integers(1, 8 // stages).filter(lambda n: n * stages > 1))
    grid = draw(grids(devices))
    model: dict[str, np.ndarray] = {}
    plan = []
    for stage in range(stages):
        chosen = {}
        for number in range(draw(st.integers(1, 3))):
            axes = draw(st.integers(1, 3))
            layout = draw(layouts(grid, axes, nested))
            local = draw(st.lists(st.integers(1, 3), min_size=axes, max_size=axes))
            name = f"stage{stage}.tensor{number}.weight"
            chosen[name] = layout
            shape = tuple(n * c for n, c in zip(local, layout.counts, strict=True))
            model[name] = random_bits(shape, draw(st.sampled_from(DTYPES)), len(model))
        plan.append(chosen)
    return Strategy(tuple(plan), devices), model


def random_bits(shape: tuple[int, ...], dtype: Any, seed: int) -> np.ndarray:
    """Any bits at all, NaN among them."""
    kind = np.dtype(dtype)
    raw = np.random.default_rng(seed).integers(0, 256, prod(shape) * kind.itemsize, np.uint8)
    return raw.view(kind).reshape(shape)


def holders_of_one_part(grid: tuple[int, ...], maps: Any, rank: int) -> list[int]:
    """The ranks, in order, that hold the same part as `rank` before optimizer sharding."""
    where = axis_indices(grid, maps)
    return [other for other in range(prod(grid)) if where[other] == where[rank]]


def axis_indices(grid: tuple[int, ...], maps: Any) -> list[tuple[int, ...]]:
    """For each rank the index of its part along each axis, before optimizer sharding."""
    coordinates = np.stack(np.unravel_index(np.arange(prod(grid)), grid))
    indices = []
    for dims in maps:
        sizes = [grid[-1 - dim] for dim in dims]
        along = [coordinates[len(grid) - 1 - dim] for dim in dims]
        indices.append(np.ravel_multi_index(along, sizes) if dims else np.zeros(prod(grid), int))
    return [tuple(int(index[rank]) for index in indices) for rank in range(prod(grid))]


def expected_part(whole: np.ndarray, layout: Layout, rank: int) -> np.ndarray:
    """What a rank holds: cut with np.array_split along every axis, then along axis 0 among its group."""
    part = whole
    for axis, (dims, index) in enumerate(
        zip(layout.tensor_map, axis_indices(layout.dev_matrix, layout.tensor_map)[rank], strict=True)
    ):
        count = prod(layout.dev_matrix[-1 - dim] for dim in dims)
        part = np.array_split(part, count, axis)[index]
    group = holders_of_one_part(layout.dev_matrix, layout.tensor_map, rank)
    size = len(group) if layout.opt_size == -1 else layout.opt_size
    if size > 1:
        part = np.array_split(part, size)[group.index(rank) % size]
    return part
