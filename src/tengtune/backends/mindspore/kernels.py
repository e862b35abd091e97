"""Which implementation of each operation a block runs: plain ones, or the fused ones of an Ascend card.

As on PyTorch, a fused operator is taken only after it agreed with the plain one on this very card, forward
and backward. Rotary positions stay plain: MindSpore's operator for them is on its way out.

Legend: B rows, S tokens per row, H query heads, G key-value heads, D head size, h hidden.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import mindspore
import numpy as np
from mindspore import Tensor, float32, ops

from tengtune.backends.mindspore.attention import attention, document_bias, hidden_from
from tengtune.models.spec import ModelSpec

Function = Callable[..., Any]
Type = Any
"""A MindSpore type: mindspore.float16 and so on."""


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root-mean-square norm over the last axis, computed in float32, in the type of x."""
    wide = x.astype(float32)
    normed = wide * ops.rsqrt(ops.square(wide).mean(-1, True) + eps)
    return (normed * weight.astype(float32)).astype(x.dtype)


@dataclass(frozen=True)
class Kernels:
    """One implementation of each operation, as graph functions."""

    mask: Function
    """segment [B,S] -> what attention is told of who sees whom, made once a batch"""
    attention: Function = attention
    """q [B,S,H,D], k and v [B,S,G,D], mask -> [B,S,H*D]"""
    rms_norm: Function = rms_norm
    """x [...,h], weight [h], eps -> [...,h]"""


def plain(copies: int) -> Kernels:
    """Plain operators; copies: of the mask, one for every head or one for all."""

    def mask(segment: Tensor) -> Tensor:
        return document_bias(segment, copies)

    return Kernels(mask)


def fused_rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`rms_norm` by the operator RmsNorm, which wants one type for both."""
    return ops.rms_norm(x, weight.astype(x.dtype), eps)[0]


def fused_mask(segment: Tensor) -> Tensor:
    """[B,1,S,S], true where a query may not look."""
    return hidden_from(segment).expand_dims(1)


def fused_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """`attention` by the operator FlashAttentionScore, in float16 or bfloat16."""
    rows, length, heads, size = q.shape
    mixed = ops.flash_attention_score(
        q,
        k,
        v,
        heads,
        attn_mask=mask,
        scalar_value=size**-0.5,
        input_layout="BSND",
    )
    return mixed.reshape((rows, length, -1))


def choose(device: str, spec: ModelSpec, dtype: Type) -> Kernels:
    """The kernels for a device: plain ones everywhere but on an Ascend card. A CPU is given a mask for every
    head, for it is slow where the shapes of a sum differ."""
    return agreeing(spec, dtype) if device.startswith("Ascend") else plain(copies=spec.heads)


def agreeing(spec: ModelSpec, dtype: Type) -> Kernels:
    """Plain kernels with each operation replaced by the fused one that computes the same here."""
    numbers = np.random.default_rng(0)

    def some(*shape: int) -> Tensor:
        return Tensor(numbers.standard_normal(shape).astype(np.float32)).astype(dtype)

    length, size = 32, spec.head_dim
    heads = [some(1, length, count, size) for count in (spec.heads, spec.kv_heads, spec.kv_heads)]
    segment = Tensor(np.repeat([1, 2, 3, 0], [9, 1, 14, 8]).astype(np.int32)[None])
    weight = Tensor(numbers.random(spec.hidden, np.float32))
    kernels = plain(copies=1)

    def fused_one(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return fused_attention(q, k, v, fused_mask(segment))

    def plain_one(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return kernels.attention(q, k, v, kernels.mask(segment))

    if _agrees(fused_rms_norm, rms_norm, (some(1, length, spec.hidden), weight, spec.rms_eps)):
        kernels = replace(kernels, rms_norm=fused_rms_norm)
    if _agrees(fused_one, plain_one, tuple(heads)):
        kernels = replace(kernels, attention=fused_attention, mask=fused_mask)
    return kernels


def _agrees(fused: Function, plain: Function, arguments: tuple[Any, ...]) -> bool:
    """Whether both give the same output and the same gradient of the first argument, to the type's error."""
    try:
        error, limit = apart(fused, plain, arguments)
    except (RuntimeError, TypeError, ValueError, AttributeError, NotImplementedError):
        return False
    return error <= limit


def apart(fused: Function, plain: Function, arguments: tuple[Any, ...]) -> tuple[float, float]:
    """How far the outputs of both, or their gradients of the first argument, are apart as a part of the
    largest value, and how far the type's error lets them be. Infinite where a shape differs or a number is
    none. What the operators raise goes through."""
    worst = 0.0
    for a, b in zip(_values(fused, arguments), _values(plain, arguments), strict=True):
        error = float(np.abs(a - b).max() / np.abs(b).max()) if a.shape == b.shape else math.inf
        worst = max(worst, math.inf if math.isnan(error) else error)
    return worst, 8 * (2**-23 if arguments[0].dtype == float32 else 2**-7)


def _values(function: Function, arguments: tuple[Any, ...]) -> tuple[Any, Any]:
    """The output, and the gradient of its sum, as float32 arrays."""

    def summed(first: Tensor) -> tuple[Tensor, Tensor]:
        out = function(first, *arguments[1:]).astype(float32)
        return out.sum(), out

    (_, out), gradient = mindspore.value_and_grad(summed, 0, has_aux=True)(arguments[0])
    return out.asnumpy(), gradient.astype(float32).asnumpy()
