"""Casts between float32, float16 and bfloat16: to the nearest value, to the even one of two equally near."""

from __future__ import annotations

from collections.abc import Iterator
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


def cast(name: str, rows: Rows, dtype: np.dtype[Any] | None, saturated: list[str]) -> TensorStream:
    """A tensor as a stream of `dtype` (None: of its own). Finite values beyond float16 become its largest, as
    an infinity would make every answer NaN; then `name` is put on `saturated` while it streams."""
    if dtype is None or dtype == rows.dtype or dtype != np.float16:
        return stream(name, rows, dtype)

    def pieces() -> Iterator[Array]:
        for block in blocks(rows):
            values, beyond = to_float16(rows[block])
            if beyond and name not in saturated:
                saturated.append(name)
            yield values

    return TensorStream(name, rows.shape, dtype, pieces)


def to_float16(values: Array) -> tuple[Array, bool]:
    """The values in float16, and whether there were finite ones that it cannot hold."""
    wide = values.astype(np.promote_types(values.dtype, np.float32))
    beyond = saturate(wide)
    return wide.astype(np.float16), beyond


def saturate(values: Array) -> bool:
    """Bring finite values into float16's range, in place; whether there were any beyond it."""
    if not max(np.fmax.reduce(values, axis=None), -np.fmin.reduce(values, axis=None)) >= BEYOND_FLOAT16:
        return False
    outside = np.isfinite(values) & (np.abs(values) >= BEYOND_FLOAT16)
    np.clip(values, -FLOAT16_MAX, FLOAT16_MAX, out=values, where=outside)
    return bool(outside.any())
