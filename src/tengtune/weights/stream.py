"""A tensor on its way to a file: its name, shape and dtype are known before its first byte moves.

Values come in pieces, so that memory is a constant whatever a tensor's size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

PIECE_BYTES = 4 * 2**20
"""A piece's size in memory. Larger ones only cost: fresh pages for every buffer, and a few times their size
while they are cast."""


WRITE_BYTES = 256 * 2**10
"""What is handed to the operating system at once. Mapped pages written 2 MiB at a time took twice as long as
cp, 256 KiB at a time as long as cp."""


class Rows(Protocol):
    """What gives its rows (axis 0) one slice at a time: an array, or a tensor that lies in several places."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...
    @property
    def size(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    def __len__(self) -> int: ...
    def __getitem__(self, rows: slice, /) -> Array: ...


class Counted:
    """What of Rows follows from shape and dtype."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def bounds(self, rows: slice) -> tuple[int, int]:
        """First row and the one after the last, within the tensor; ValueError for a slice with a step."""
        start, stop, step = rows.indices(len(self))
        if step != 1:
            raise ValueError("rows come one after the other")
        return start, max(start, stop)


@dataclass(frozen=True)
class TensorStream:
    """One tensor to write. `pieces()` gives its values in C order, as arrays of `dtype`."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    pieces: Callable[[], Iterator[Array]]

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize


def stream(name: str, array: Rows, dtype: npt.DTypeLike = None) -> TensorStream:
    """An array as a stream, cast to `dtype` (round to nearest even) piece by piece."""
    target = array.dtype if dtype is None else np.dtype(dtype)

    def pieces() -> Iterator[Array]:
        rows = array.reshape(-1) if isinstance(array, np.ndarray) and array.flags.c_contiguous else array
        for block in blocks(rows):
            with np.errstate(over="ignore"):  # an overflow becomes an infinity, which the checks look for
                yield np.ascontiguousarray(rows[block], dtype=target)

    return TensorStream(name, array.shape, target, pieces)


def bytes_of(tensor: TensorStream) -> Iterator[Array]:
    """A stream's bytes, as arrays of uint8, best written one by one; ValueError where the stream gives
    another dtype or length than it told."""
    count = 0
    for piece in tensor.pieces():
        if piece.dtype != tensor.dtype:
            raise ValueError(f"{tensor.name}: a piece is {piece.dtype}, announced was {tensor.dtype}")
        # A view of the bytes: the buffer protocol does not know bfloat16.
        data: Array = np.ascontiguousarray(piece).reshape(-1).view(np.uint8)
        count += data.size
        for start in range(0, data.size, WRITE_BYTES):
            yield data[start : start + WRITE_BYTES]
    if count != tensor.nbytes:
        raise ValueError(f"{tensor.name}: {count} bytes came, {tensor.nbytes} were announced")


def blocks(array: Rows) -> Iterator[slice]:
    """Slices along axis 0 of about PIECE_BYTES in float32 (at least one row); none of a tensor without
    values, which may tell of any number of rows."""
    if not array.size:
        return
    row_bytes = max(4, array.dtype.itemsize) * (array.size // max(1, len(array)))
    step = max(1, PIECE_BYTES // max(1, row_bytes))
    for start in range(0, len(array), step):
        yield slice(start, min(start + step, len(array)))


def is_float(dtype: np.dtype[Any]) -> bool:
    """Whether a dtype is one weights are trained and kept in."""
    return dtype.name in ("float64", "float32", "float16", "bfloat16")


_EXPONENT = {"float16": 0x7C00, "bfloat16": 0x7F80}
"""The bits that are all set in NaN and infinity alone: 4 to 5 times as fast as isfinite for these."""


def non_finite(array: Rows) -> int:
    """How many values are NaN or infinite, read piece by piece; whole numbers are neither."""
    if not is_float(array.dtype):
        return 0
    rows = array.reshape(-1) if isinstance(array, np.ndarray) and array.flags.c_contiguous else array
    return sum(_non_finite(rows[block]) for block in blocks(rows))


def _non_finite(values: Array) -> int:
    exponent = _EXPONENT.get(values.dtype.name)
    if exponent is None:
        return int(np.count_nonzero(~np.isfinite(values)))
    bits = np.ascontiguousarray(values).view(np.uint16)
    return int(np.count_nonzero((bits & np.uint16(exponent)) == exponent))


def same_bits(one: Rows, other: Rows) -> bool:
    """Whether two tensors are the same, bit for bit, compared piece by piece."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return all(np.array_equal(_bits(one[block]), _bits(other[block])) for block in blocks(one))


def _bits(values: Array) -> Array:
    """The bytes of values: as numbers, no NaN would equal itself."""
    return np.ascontiguousarray(values).view(np.uint8)
