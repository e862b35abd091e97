"""Which implementation of each operation runs here: plain ones, or the fused ones of an Ascend card.

A fused operator is taken only after it agreed with the plain one on this very card, forward and backward:
which card and which CANN has which operator is tried, not looked up.

Legend: T tokens, N query heads, G key-value heads, D head size, H width, F feed-forward width. Rows are
laid end to end, and `lengths` says where the documents lie.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from tengtune.backends.torch.attention import attention
from tengtune.backends.torch.device import Placement
from tengtune.backends.torch.ops import rms_norm, rotary, swiglu
from tengtune.models.spec import ModelSpec


@dataclass(frozen=True)
class Kernels:
    """One implementation of each operation."""

    rms_norm: Callable[[Tensor, Tensor, float], Tensor]
    """x [T,...,H], weight [H], eps -> [T,...,H]"""
    rotary: Callable[[Tensor, Tensor, Tensor], Tensor]
    """x [T,N,D], cosines and sines [T,1,D/2] -> [T,N,D]"""
    swiglu: Callable[[Tensor, Tensor], Tensor]
    """gate and up [T,F] -> silu(gate) x up [T,F]"""
    attention: Callable[[Tensor, Tensor, Tensor, Sequence[int]], Tensor]
    """q [T,N,D], k and v [T,G,D], lengths of the documents -> [T,N,D]"""


PLAIN = Kernels(rms_norm, rotary, swiglu, attention)

_MASK_SIZE = 2048
"""The side of the compressed causal mask that npu_fusion_attention asks for."""
_RIGHT_DOWN_CAUSAL = 3


def choose(placement: Placement, spec: ModelSpec) -> Kernels:
    """The kernels for this device: plain ones everywhere but on an Ascend card."""
    if placement.device.type != "npu":
        return PLAIN
    return agreeing(importlib.import_module("torch_npu"), placement, spec)


def agreeing(ops: Any, placement: Placement, spec: ModelSpec) -> Kernels:
    """PLAIN with each operation replaced by the fused one of `ops` that computes the same here."""
    device, dtype = placement.device, placement.dtype
    random = torch.Generator().manual_seed(0)

    def some(*shape: int) -> Tensor:
        return torch.randn(shape, generator=random).to(device, dtype)

    tokens, size = 24, spec.head_dim
    heads = some(tokens, spec.heads, size)
    keys, values = some(tokens, spec.kv_heads, size), some(tokens, spec.kv_heads, size)
    angles = torch.randn(tokens, 1, size // 2, generator=random).to(device)
    turns = angles.cos().to(dtype), angles.sin().to(dtype)
    weight = torch.rand(spec.hidden, generator=random).to(device, placement.master)
    fused = Fused(ops, device)
    trials: dict[str, tuple[Callable[..., Tensor], tuple[Any, ...]]] = {
        "rms_norm": (fused.rms_norm, (some(tokens, spec.hidden), weight, spec.rms_eps)),
        "rotary": (fused.rotary, (heads, *turns)),
        "swiglu": (fused.swiglu, (some(tokens, spec.ffn), some(tokens, spec.ffn))),
        "attention": (fused.attention, (heads, keys, values, [9, 1, 14])),
    }
    good = {
        name: function
        for name, (function, arguments) in trials.items()
        if _agrees(function, getattr(PLAIN, name), arguments)
    }
    return replace(PLAIN, **good)


class Fused:
    """torch_npu's operators in the form of Kernels."""

    def __init__(self, ops: Any, device: torch.device) -> None:
        self._ops = ops
        self._mask = torch.ones(_MASK_SIZE, _MASK_SIZE, dtype=torch.bool, device=device).triu_(1)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        out: Tensor = self._ops.npu_rms_norm(x, weight.to(x.dtype), epsilon=eps)[0]
        return out

    def rotary(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        # [1,T,N,D] with angles [1,T,1,D], one for both halves.
        turns = (torch.cat((t, t), -1).unsqueeze(0) for t in (cosine, sine))
        out: Tensor = self._ops.npu_rotary_mul(x.unsqueeze(0), *turns)
        return out.squeeze(0)

    def swiglu(self, gate: Tensor, up: Tensor) -> Tensor:
        out: Tensor = self._ops.npu_swiglu(torch.cat((gate, up), -1), dim=-1)
        return out

    def attention(self, q: Tensor, k: Tensor, v: Tensor, lengths: Sequence[int]) -> Tensor:
        ends = list(accumulate(lengths))
        out: Tensor = self._ops.npu_fusion_attention(
            q,
            k,
            v,
            q.shape[1],
            "TND",
            atten_mask=self._mask,
            scale=q.shape[-1] ** -0.5,
            keep_prob=1.0,
            sparse_mode=_RIGHT_DOWN_CAUSAL,
            actual_seq_qlen=ends,
            actual_seq_kvlen=ends,
        )[0]
        return out


def _agrees(fused: Callable[..., Tensor], plain: Callable[..., Tensor], arguments: tuple[Any, ...]) -> bool:
    """Whether both give the same output and the same gradient of the first argument, to the type's error."""
    try:
        error, limit = apart(fused, plain, arguments)
    except (RuntimeError, TypeError, AttributeError, NotImplementedError):
        return False
    return error <= limit


def apart(
    fused: Callable[..., Tensor], plain: Callable[..., Tensor], arguments: tuple[Any, ...]
) -> tuple[float, float]:
    """How far the outputs of both, or their gradients of the first argument, are apart as a part of the
    largest value, and how far the type's error lets them be. Infinite where a shape differs or a number is
    none. What the operators raise goes through."""
    worst = 0.0
    for a, b in zip(_values(fused, arguments), _values(plain, arguments), strict=True):
        error = float((a - b).abs().max() / b.abs().max()) if a.shape == b.shape else math.inf
        worst = max(worst, math.inf if math.isnan(error) else error)
    return worst, 8 * torch.finfo(arguments[0].dtype).eps


def _values(function: Callable[..., Tensor], arguments: tuple[Any, ...]) -> tuple[Tensor, Tensor]:
    first = arguments[0].detach().clone().requires_grad_()
    out = function(first, *arguments[1:])
    (gradient,) = torch.autograd.grad(out, first, torch.ones_like(out))
    return out.detach().float().cpu(), gradient.float().cpu()
