"""The small operations of a block as autograd functions that keep little for the backward pass.

Legend: T tokens, N heads, D head size, H width, F feed-forward width.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional as F


def apply(function: type[Function], *arguments: Any) -> Tensor:
    """`function.apply`, typed."""
    return cast(Tensor, function.apply(*arguments))  # type: ignore[no-untyped-call]


class _RmsNorm(Function):
    """Keeps its input and one number a token; computes in float32 or wider."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        wide = torch.promote_types(x.dtype, torch.float32)
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=wide)
        scale = norm.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
        ctx.save_for_backward(x, weight, scale)
        out: Tensor = (x * scale).mul_(weight)
        return out.to(x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, weight, scale = ctx.saved_tensors
        normed = x * scale
        weight_gradient = None
        if ctx.needs_input_grad[1]:
            weight_gradient = (gradient * normed).flatten(0, -2).sum(0)
        inner = gradient * weight
        along = (inner * normed).mean(-1, keepdim=True)
        x_gradient = inner.sub_(normed.mul_(along)).mul_(scale).to(x.dtype)
        return x_gradient, weight_gradient, None


class _Rotary(Function):
    """Turns the pair (i, i + D/2) of each head; its gradient is the turn back, so nothing is kept."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        ctx.save_for_backward(cosine, sine)
        return _turn(x, cosine, sine, 1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        cosine, sine = ctx.saved_tensors
        return _turn(gradient, cosine, sine, -1), None, None


def _turn(x: Tensor, cosine: Tensor, sine: Tensor, sign: int) -> Tensor:
    out = torch.empty_like(x)
    first, second = x.chunk(2, -1)
    out_first, out_second = out.chunk(2, -1)
    torch.mul(first, cosine, out=out_first).addcmul_(second, sine, value=-sign)
    torch.mul(second, cosine, out=out_second).addcmul_(first, sine, value=sign)
    return out


class _SwiGlu(Function):
    """Keeps gate and up only; silu(gate) is made again in the backward pass."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return F.silu(gate).mul_(up)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = ctx.saved_tensors
        gate_gradient = torch.ops.aten.silu_backward(gradient * up, gate)
        return gate_gradient, F.silu(gate).mul_(gradient)


# Without gradients each is called directly: autograd's wrapping is a good part of a step for one token.


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) x weight over the last axis."""
    if torch.is_grad_enabled():
        return apply(_RmsNorm, x, weight, eps)
    return F.rms_norm(x.to(weight.dtype), weight.shape, weight, eps).to(x.dtype)


def rotary(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotary positions, half-split layout (Hugging Face's rotate_half)."""
    if torch.is_grad_enabled():
        return apply(_Rotary, x, cosine, sine)
    return _turn(x, cosine, sine, 1)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) x up."""
    return apply(_SwiGlu, gate, up) if torch.is_grad_enabled() else F.silu(gate).mul_(up)
