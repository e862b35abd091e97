"""Answering: a cache of fixed size, one pass over the prompt, then token by token.

Legend: T tokens of one pass, C capacity, N query heads, G key-value heads, D head size.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from tengtune.backends.base import Sampling
from tengtune.backends.sampling import Sampler
from tengtune.backends.torch.attention import attention
from tengtune.backends.torch.model import Attend, Qwen
from tengtune.backends.torch.stretch import Stretched, stretched
from tengtune.models.spec import ModelSpec


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

    def attend(self, layer: int) -> Attend:
        """The attention of one layer over what is cached and the new tokens."""
        return partial(self._attend, layer)

    def _attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
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
    queries = q.view(groups, -1, q.shape[-1])
    out = F.scaled_dot_product_attention(queries, keys.transpose(0, 1), values.transpose(0, 1))
    return out.reshape(q.shape)


def generate(
    model: Qwen, prompt: Sequence[int], max_new_tokens: int, stop_ids: Iterable[int], sampling: Sampling
) -> Iterator[int]:
    """New ids one by one until a stop id, which is not given, or max_new_tokens."""
    stops, sampler = frozenset(stop_ids), Sampler(sampling)
    cache = Cache(model, len(prompt) + max_new_tokens)
    ids = list(prompt)
    for _ in range(max_new_tokens):
        chosen = sampler.choose(next_logits(model, cache, ids).numpy())
        if chosen in stops:
            return
        yield chosen
        ids = [chosen]


@torch.no_grad()
def next_logits(model: Qwen, cache: Cache, ids: list[int]) -> Tensor:
    """Logits [V], float32 on the host, after taking `ids` into the cache."""
    positions = cache.extend(model.model.spec, len(ids))
    bases = None if cache.long is None else cache.long.bases
    hidden = model.model(torch.tensor(ids, device=cache.keys.device), positions, cache.attend, bases)
    cache.length += len(ids)
    return model.logits(hidden[-1:])[0].float().cpu()
