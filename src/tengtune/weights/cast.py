"""Casts to float32, float16 and bfloat16: to the nearest value, to the even one of two equally near.

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

from tengtune.ui.lists import listed
from tengtune.weights.stream import Array, Rows, TensorStream, blocks, stream

DTYPES: dict[str, np.dtype[Any]] = {
    "float32": np.dtype("<f4"),
    "float16": np.dtype("<f2"),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}
LIMITS: dict[str, tuple[float, float]] = {
    "float16": (65504.0, 65520.0),
    "bfloat16": ((2 - 2.0**-7) * 2.0**127, (2 - 2.0**-8) * 2.0**127),
    "float32": ((2 - 2.0**-23) * 2.0**127, (2 - 2.0**-24) * 2.0**127),
}
"""The largest value of a dtype, and the least that would be rounded to infinity."""

WORKERS = min(4, os.cpu_count() or 1)
"""Threads of a cast; each has a piece and the few times its size that casting takes."""

_NORMAL, _STEP = 2.0**-14, 2.0**-24
"""float16's least value of full precision, and the distance between those below it."""


def cast(name: str, rows: Rows, dtype: np.dtype[Any] | None, saturated: list[str]) -> TensorStream:
    """A tensor as a stream of `dtype` (None: of its own). Finite values beyond it become its largest, as an
    infinity would make every answer NaN; then `name` is put on `saturated` while it streams."""
    if dtype is None or dtype == rows.dtype:
        return stream(name, rows)

    def pieces() -> Iterator[Array]:
        for values, beyond in _ahead(lambda block: to_dtype(rows[block], dtype), blocks(rows)):
            if beyond and name not in saturated:
                saturated.append(name)
            yield values

    return TensorStream(name, rows.shape, dtype, pieces)


def saturation(area: str, dtype: str, tensors: list[str]) -> tuple[str, dict[str, object]]:
    """The message, its code and its values, of tensors that had values beyond a dtype."""
    code, most = "saturated" if dtype == "float16" else "saturated_wide", f"{LIMITS[dtype][0]:g}"
    shown = listed(tensors)
    return f"{area}.{code}", {"dtype": dtype, "most": most, "count": len(tensors), "tensors": shown}


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
    """The values in a float dtype, and whether there were finite ones that it cannot hold, which become its
    largest."""
    if values.dtype == dtype:
        return values, False
    if values.dtype == np.float16:
        return _every_float16()[values.view(np.uint16)].astype(dtype, copy=False), False
    if dtype.itemsize > values.dtype.itemsize:  # it holds all of them
        return values.astype(dtype), False
    wide = values.astype(np.promote_types(values.dtype, np.float32))
    beyond = saturate(wide, dtype)
    if dtype == np.float16:
        return _to_float16(wide), beyond
    if wide.dtype == np.float64 and dtype == DTYPES["bfloat16"]:
        wide = _to_odd(wide)  # its own cast goes by way of float32, and would round twice
    return wide.astype(dtype), beyond


def _to_odd(values: Array) -> Array:
    """float64 values in float32, those between two of its values as the one whose last bit is set: rounded
    once more to a dtype of fewer bits, they become what the exact value is nearest to."""
    near = values.astype(np.float32)
    back, bits = near.astype(np.float64), near.view(np.uint32)
    bits -= np.abs(back) > np.abs(values)
    bits |= (back < values) | (back > values)
    return near


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


def saturate(values: Array, dtype: np.dtype[Any]) -> bool:
    """Bring finite values, in float32 or float64, into the range of one of DTYPES, in place; whether there
    were any beyond it."""
    largest, beyond = LIMITS[dtype.name]
    if not values.size:
        return False
    if not max(np.fmax.reduce(values, axis=None), -np.fmin.reduce(values, axis=None)) >= beyond:
        return False
    outside = np.isfinite(values) & (np.abs(values) >= beyond)
    values[outside] = np.copysign(values.dtype.type(largest), values[outside])
    return bool(outside.any())
