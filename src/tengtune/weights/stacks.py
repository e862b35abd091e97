"""Between a file's own tensors and the canonical ones: other names, and rows of several in one.

Qwen1's c_attn is q, k and v, one below the other; MindSpore's fused linears have their rows in turns
(models/layouts.py). Taking apart gives views, putting together gives streams: neither copies a tensor.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import prod

import numpy as np

from tengtune.models.layouts import HF, stored_tensors
from tengtune.models.spec import ModelSpec
from tengtune.weights.stream import PIECE_BYTES, Array, Counted, Rows, TensorStream


def stored_shapes(spec: ModelSpec, layout: str = HF) -> dict[str, tuple[int, ...]]:
    """The tensors that the files of this model must hold: stored name -> shape."""
    shapes = dict(spec.tensors())
    return {
        name: (sum(shapes[part][0] for part in stored.parts), *shapes[stored.parts[0]][1:])
        for name, stored in stored_tensors(spec, layout).items()
    }


def take_apart(spec: ModelSpec, found: Mapping[str, Rows], layout: str = HF) -> dict[str, Rows]:
    """Stored tensors of the shapes of `stored_shapes` -> canonical ones, in canonical order, as views; an
    array where the stored one is an array whose parts lie one below the other. What is not stored is left
    out."""
    shapes, parts = dict(spec.tensors()), dict[str, Rows]()
    for name, stored in stored_tensors(spec, layout).items():
        whole = found.get(name)
        if whole is None:
            continue
        if len(stored.parts) == 1:
            parts[stored.parts[0]] = whole
            continue
        first = 0
        for part in stored.parts:
            share = shapes[part][0] // stored.groups
            if stored.groups == 1 and isinstance(whole, np.ndarray):
                parts[part] = whole[first : first + share]
            else:
                parts[part] = Picked(whole, stored.groups, first, share)
            first += share
    return {name: parts[name] for name in shapes if name in parts}


def put_together(spec: ModelSpec, tensors: Iterable[TensorStream], layout: str = HF) -> list[TensorStream]:
    """Canonical tensors -> the stored ones, in the model's own order."""
    streams = {tensor.name: tensor for tensor in tensors}
    return [
        _woven(name, [streams[part] for part in stored.parts], stored.groups)
        for name, stored in stored_tensors(spec, layout).items()
    ]


class Picked(Counted):
    """Of every group of a tensor's rows some: from the `first` on, `share` many."""

    def __init__(self, whole: Rows, groups: int, first: int, share: int) -> None:
        self._whole, self._first, self._share = whole, first, share
        self._each = len(whole) // groups
        self.shape, self.dtype = (groups * share, *whole.shape[1:]), whole.dtype

    def __getitem__(self, rows: slice) -> Array:
        start, stop = self.bounds(rows)
        group, within = divmod(start, self._share)
        if stop - start <= self._share - within:  # all in one group
            begin = group * self._each + self._first + within
            return self._whole[begin : begin + stop - start]
        end = -(-stop // self._share)
        block = self._whole[group * self._each : end * self._each]
        block = block.reshape(end - group, self._each, *self.shape[1:])
        picked: Array = block[:, self._first : self._first + self._share].reshape(-1, *self.shape[1:])
        return picked[within : within + stop - start]


def _woven(name: str, parts: list[TensorStream], groups: int) -> TensorStream:
    """One tensor of the rows of several: a share of each, `groups` times over."""
    first = parts[0]
    shape = (sum(part.shape[0] for part in parts), *first.shape[1:])

    def pieces() -> Iterator[Array]:
        if groups == 1:
            for part in parts:
                yield from part.pieces()
            return
        sources = [_Source(part.pieces()) for part in parts]
        shares = [prod(part.shape) // groups for part in parts]  # values of one part in one group
        step = max(1, PIECE_BYTES // (sum(shares) * first.dtype.itemsize))
        for start in range(0, groups, step):
            piece = np.empty((min(step, groups - start), sum(shares)), first.dtype)
            column = 0
            for source, share in zip(sources, shares, strict=True):
                place = piece[:, column : column + share]
                place[:] = source.take(place.size).reshape(place.shape)
                column += share
            yield piece

    return TensorStream(name, shape, first.dtype, pieces)


class _Source:
    """The pieces of a stream, as many values at a time as are asked for."""

    def __init__(self, pieces: Iterator[Array]) -> None:
        self._pieces, self._rest = pieces, np.empty(0)

    def take(self, count: int) -> Array:
        parts: list[Array] = []
        while count:
            if not self._rest.size:
                self._rest = next(self._pieces).reshape(-1)
            parts.append(self._rest[:count])
            self._rest = self._rest[count:]
            count -= parts[-1].size
        return parts[0] if len(parts) == 1 else np.concatenate(parts)
