"""Between a folder's own tensors and the canonical ones: other names, and rows of several in one.

Qwen1's c_attn is q, k and v, one below the other. Taking it apart gives views; putting it together chains
streams: neither copies.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from tengtune.models import names
from tengtune.models.spec import ModelSpec
from tengtune.weights.stream import Array, TensorStream


def stored_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """The tensors a folder of this model must hold: stored name -> shape."""
    shapes = dict(spec.tensors())
    return {
        name: (sum(shapes[part][0] for part in parts), *shapes[parts[0]][1:])
        for name, parts in names.stored_tensors(spec).items()
    }


def take_apart(spec: ModelSpec, stored: Mapping[str, Array]) -> dict[str, Array]:
    """Stored tensors of the shapes of `stored_shapes` -> canonical ones, in canonical order, as views."""
    shapes, found = dict(spec.tensors()), {}
    for name, parts in names.stored_tensors(spec).items():
        start = 0
        for part in parts:
            stop = start + shapes[part][0]
            found[part] = stored[name][start:stop]
            start = stop
    return {name: found[name] for name in shapes}


def put_together(spec: ModelSpec, tensors: Iterable[TensorStream]) -> list[TensorStream]:
    """Canonical tensors -> the stored ones, in the model's own order."""
    streams = {tensor.name: tensor for tensor in tensors}
    return [
        _chained(name, [streams[part] for part in parts])
        for name, parts in names.stored_tensors(spec).items()
    ]


def _chained(name: str, parts: list[TensorStream]) -> TensorStream:
    first = parts[0]
    shape = (sum(part.shape[0] for part in parts), *first.shape[1:])

    def pieces() -> Iterator[Array]:
        for part in parts:
            yield from part.pieces()

    return TensorStream(name, shape, first.dtype, pieces)
