"""Answering: a cache of fixed size for each text, one pass over its prompt, then token by token.

Legend: T tokens of one pass, B texts, C capacity, N query heads, G key-value heads, D head size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from tengtune.backends.torch.attention import attention
from tengtune.backends.torch.model import Attend, Qwen
from tengtune.backends.torch.stretch import Stretched, stretched
from tengtune.models.spec import ModelSpec

ROWS = 8
"""Answers under way at a time: on a CPU a step for 8 takes 2 to 3 times as long as a step for one."""


class Cache:
    """Keys and values [layers,C,G,D] of one text; `length` tokens of it are filled, `prompt` of them by the
    first pass, which decides how a text longer than the model was trained at is stretched."""

    def __init__(self, model: Qwen, capacity: int) -> None:
        trunk = model.model
        spec = trunk.spec
        shape = (spec.layers, capacity, spec.kv_heads, spec.head_dim)
        self.keys = torch.empty(shape, dtype=trunk.dtype, device=model.head.device)
        self.values = torch.empty_like(self.keys)
        self.length = self.prompt = 0
        self.long: Stretched | None = None

    def extend(self, spec: ModelSpec, count: int) -> Tensor:
        """Positions [T] of the next `count` tokens; what the pass over them needs is made ready."""
        positions = range(self.length, self.length + count)
        self.prompt = self.prompt or count
        self.long = stretched(spec, [(positions, self.prompt)], self.keys.device)
        return torch.arange(positions.start, positions.stop, device=self.keys.device)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """The attention of one layer, q [T,N,D] over what is cached and k and v [T,G,D] -> [T,N,D]."""
        end = self.length + q.shape[0]
        q = q if self.long is None else q * self.long.queries.to(q.dtype)
        self.keys[layer, self.length : end] = k
        self.values[layer, self.length : end] = v
        if self.length == 0:
            return attention(q, k, v, [q.shape[0]])
        return _one(q, self.keys[layer, :end], self.values[layer, :end])


def _one(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Attention of one new token, q [1,N,D], over all keys and values [L,G,D] -> [1,N,D]."""
    groups = keys.shape[1]
    queries = q.view(1, groups, -1, q.shape[-1])
    # With an axis for the batch a fused kernel is taken, without one a slower way.
    keys, values = keys.transpose(0, 1)[None], values.transpose(0, 1)[None]
    out = F.scaled_dot_product_attention(queries, keys, values)
    return out.reshape(q.shape)


class Texts:
    """`backends.answers.Texts`: the rows share every product with a weight, and each attends over a cache of
    its own, so lengths may differ and nothing is padded."""

    rows = ROWS

    def __init__(self, model: Qwen) -> None:
        self._model = model
        self._caches: dict[int, Cache] = {}

    def begin(self, row: int, length: int) -> None:
        """See `backends.answers.Texts`."""
        self._caches[row] = Cache(self._model, length)

    def take(self, ids: Mapping[int, Sequence[int]]) -> npt.NDArray[np.float32]:
        """See `backends.answers.Texts`."""
        logits: npt.NDArray[np.float32] = _step(
            self._model, [self._caches[row] for row in ids], list(ids.values())
        ).numpy()
        return logits


@torch.no_grad()
def _step(model: Qwen, caches: Sequence[Cache], ids: Sequence[Sequence[int]]) -> Tensor:
    """Logits [B,V], float32 on the host, after taking the ids of each text into its cache."""
    counts = [len(each) for each in ids]
    device = caches[0].keys.device
    positions = torch.cat([c.extend(model.model.spec, n) for c, n in zip(caches, counts, strict=True)])
    own = [None if cache.long is None else cache.long.bases for cache in caches]
    bases = _joined(own, counts, model.model.spec.rope_theta)

    def attend(layer: int) -> Attend:
        def each(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            if len(caches) == 1:
                return caches[0].attend(layer, q, k, v)
            parts = zip(caches, *(torch.split_with_sizes(x, counts) for x in (q, k, v)), strict=True)
            return torch.cat([cache.attend(layer, *part) for cache, *part in parts])

        return each

    flat = torch.tensor([token for each in ids for token in each], device=device)
    hidden = model.model(flat, positions, attend, bases)
    for cache, count in zip(caches, counts, strict=True):
        cache.length += count
    last = torch.tensor(list(accumulate(counts)), device=device) - 1
    return model.logits(hidden.index_select(0, last)).float().cpu()


def _joined(bases: Sequence[Tensor | None], counts: Sequence[int], usual: float) -> Tensor | None:
    """RoPE's bases [T,1,1] of texts laid end to end; None where all have the model's own."""
    some = next((each for each in bases if each is not None), None)
    if some is None:
        return None
    parts = zip(bases, counts, strict=True)
    return torch.cat([some.new_full((n, 1, 1), usual) if each is None else each for each, n in parts])
