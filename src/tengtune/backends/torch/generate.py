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
from tengtune.backends.torch.attention import causal
from tengtune.backends.torch.model import Attend, Qwen


class Cache:
    """Keys and values [layers,C,G,D] of one text; `length` tokens of it are filled."""

    def __init__(self, model: Qwen, capacity: int) -> None:
        trunk = model.model
        spec = trunk.spec
        shape = (spec.layers, capacity, spec.kv_heads, spec.head_dim)
        self.keys = torch.empty(shape, dtype=trunk.dtype, device=model.head.device)
        self.values = torch.empty_like(self.keys)
        self.length = 0

    def attend(self, layer: int) -> Attend:
        """The attention of one layer over what is cached and the new tokens."""
        return partial(self._attend, layer)

    def _attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        end = self.length + q.shape[0]
        self.keys[layer, self.length : end] = k
        self.values[layer, self.length : end] = v
        if self.length == 0:
            return causal(q, k, v)
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
        chosen = sampler.choose(_next_logits(model, cache, ids).numpy())
        if chosen in stops:
            return
        yield chosen
        ids = [chosen]


@torch.no_grad()
def _next_logits(model: Qwen, cache: Cache, ids: list[int]) -> Tensor:
    """Logits [V], float32 on the host, after taking `ids` into the cache."""
    device = cache.keys.device
    positions = torch.arange(cache.length, cache.length + len(ids), device=device)
    hidden = model.model(torch.tensor(ids, device=device), positions, cache.attend)
    cache.length += len(ids)
    return model.logits(hidden[-1:])[0].float().cpu()
