"""Comparing weights: tensor by tensor, piece by piece, bits first and then values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tengtune.weights.cast import to_dtype
from tengtune.weights.stream import Array, Rows, blocks, same_bits

SAMPLE_BYTES = 2**16


@dataclass(frozen=True)
class Difference:
    """How a tensor differs. gap: the largest absolute difference of two values (NaN where one is none);
    count: how many values differ. Of another shape there is no gap."""

    name: str
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    dtypes: tuple[str, str]
    gap: float | None
    count: int

    @property
    def same_values(self) -> bool:
        """Whether only the dtype differs."""
        return self.gap is not None and self.count == 0


def compare(
    one: Mapping[str, Rows], other: Mapping[str, Rows], advance: Callable[[int], None] | None = None
) -> list[Difference]:
    """The tensors that both have and that differ in shape, dtype or any bit. advance gets the bytes read."""
    found = []
    for name, rows in one.items():
        if name not in other:
            continue
        twin = other[name]
        shapes = rows.shape, twin.shape
        if isinstance(rows, np.ndarray) and isinstance(twin, np.ndarray) and shapes == ((), ()):
            rows, twin = rows.reshape(1), twin.reshape(1)  # a single value has no rows
        if not same_bits(rows, twin):
            found.append(replace(_difference(name, rows, twin), shapes=shapes))
        if advance:
            advance(rows.nbytes)
    return found


def _difference(name: str, one: Rows, other: Rows) -> Difference:
    shapes, dtypes = (one.shape, other.shape), (one.dtype.name, other.dtype.name)
    if one.shape != other.shape:
        return Difference(name, shapes, dtypes, None, 0)
    gap, count = 0.0, 0
    for block in blocks(one):
        first, second = _alike(one[block], other[block])
        differs = ~((first == second) | (np.isnan(first) & np.isnan(second)))
        if differs.any():
            with np.errstate(invalid="ignore"):
                apart = np.abs(first - second)[differs].max()
            gap, count = float(np.maximum(gap, apart)), count + int(differs.sum())
    return Difference(name, shapes, dtypes, gap, count)


def _alike(one: Array, other: Array) -> tuple[Array, Array]:
    """Both in a dtype that holds all their values: long integers are more than float64 does."""
    wide = np.promote_types(
        np.promote_types(one.dtype, np.float32), np.promote_types(other.dtype, np.float32)
    )
    if any(values.dtype.kind in "iu" and values.dtype.itemsize == 8 for values in (one, other)):
        wide = np.dtype(np.longdouble)
    return one.astype(wide), other.astype(wide)


def same_samples(source: Rows, written: Rows, dtype: np.dtype[Any]) -> bool:
    """Whether `written` is `source` cast to `dtype`, as far as their beginning, middle and end tell."""
    if written.shape != source.shape or written.dtype != dtype:
        return False
    length = len(source)
    step = max(1, SAMPLE_BYTES * length // max(1, source.nbytes))
    for start in sorted({0, (length - step) // 2, length - step}):
        rows = slice(max(0, start), max(0, start) + step)
        if not same_bits(to_dtype(source[rows], dtype)[0], written[rows]):
            return False
    return True
