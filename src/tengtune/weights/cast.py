"""Casts between float32, float16 and bfloat16: to the nearest value, to the even one of two equally near.

NumPy's own cast to float16 takes 50 times as long for values that become subnormal as for others, its cast
from float16 10 times; a tensor may be full of them. Both ways here take the same time for all.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np

from tengtune.weights.stream import Array, Rows, TensorStream, blocks, stream

DTYPES: dict[str, np.dtype[Any]] = {
    "float32": np.dtype("<f4"),
    "float16": np.dtype("<f2"),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}
FLOAT16_MAX, BEYOND_FLOAT16 = 65504.0, 65520.0
"""float16's largest value, and the least that would be rounded to infinity."""

WORKERS = min(4, os.cpu_count() or 1)
"""Threads of a cast; each has a piece and the few times its size that casting takes."""

_NORMAL, _STEP = 2.0**-14, 2.0**-24
"""float16's least value of full precision, and the distance between those below it."""


def cast(name: str, rows: Rows, dtype: np.dtype[Any] | None, saturated: list[str]) -> TensorStream:
    """A tensor as a stream of `dtype` (None: of its own). Finite values beyond float16 become its largest, as
    an infinity would make every answer NaN; then `name` is put on `saturated` while it streams."""
    if dtype is None or dtype == rows.dtype:
        return stream(name, rows)

    def pieces() -> Iterator[Array]:
        for values, beyond in _ahead(lambda block: to_dtype(rows[block], dtype), blocks(rows)):
            if beyond and name not in saturated:
                saturated.append(name)
            yield values

    return TensorStream(name, rows.shape, dtype, pieces)


def _ahead(
    work: Callable[[slice], tuple[Array, bool]], todo: Iterable[slice]
) -> Iterator[tuple[Array, bool]]:
    """The results of `work` in order, made by WORKERS threads while the earlier ones are written: a cast to
    float16 takes longer than a fast disk."""
    first, *rest = todo
    if not rest:
        yield work(first)
        return
    with ThreadPoolExecutor(WORKERS) as pool:
        waiting = deque(pool.submit(work, block) for block in [first, *rest[: WORKERS - 1]])
        for block in rest[WORKERS - 1 :]:
            yield waiting.popleft().result()
            waiting.append(pool.submit(work, block))
        for future in waiting:
            yield future.result()


def to_dtype(values: Array, dtype: np.dtype[Any]) -> tuple[Array, bool]:
    """The values in one of DTYPES, and whether there were finite ones that it cannot hold (float16 only)."""
    if values.dtype == dtype:
        return values, False
    if values.dtype == np.float16:
        return _every_float16()[values.view(np.uint16)].astype(dtype, copy=False), False
    if dtype != np.float16:
        return values.astype(dtype), False
    wide = values.astype(np.promote_types(values.dtype, np.float32))
    beyond = saturate(wide)
    return _to_float16(wide), beyond


@cache
def _every_float16() -> Array:
    """All 65536 values of float16 in float32, by their bits."""
    return np.arange(2**16, dtype=np.uint16).view(np.float16).astype(np.float32)


def _to_float16(values: Array) -> Array:
    """float32 or float64 values within float16's range, in float16."""
    size = np.abs(values)
    small = size < _NORMAL
    if np.count_nonzero(small) * 100 < small.size:
        return values.astype(np.float16)
    steps = np.rint(np.fmin(size, _NORMAL) * (1 / _STEP)).astype(np.uint16)
    signed = steps | (np.signbit(values).astype(np.uint16) << 15)
    normal = np.where(small, values.dtype.type(1), values).astype(np.float16)
    result: Array = np.where(small, signed.view(np.float16), normal)
    return result


def saturate(values: Array) -> bool:
    """Bring finite values into float16's range, in place; whether there were any beyond it."""
    if not max(np.fmax.reduce(values, axis=None), -np.fmin.reduce(values, axis=None)) >= BEYOND_FLOAT16:
        return False
    outside = np.isfinite(values) & (np.abs(values) >= BEYOND_FLOAT16)
    values[outside] = np.copysign(FLOAT16_MAX, values[outside])
    return bool(outside.any())
