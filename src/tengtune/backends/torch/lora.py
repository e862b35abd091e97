"""Linears: frozen, trained whole, or frozen with a low-rank addition.

Legend: T tokens, I inputs, O outputs, R rank.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional as F

from tengtune.backends.torch.ops import apply


class Linear(nn.Module):
    """x [T,I] -> [T,O]. Trained weights are float32 masters, cast to the type of x at each use."""

    def __init__(self, weight: nn.Parameter, bias: nn.Parameter | None) -> None:
        super().__init__()
        self.weight, self.bias = weight, bias

    def forward(self, x: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.to(x.dtype)
        if self.weight.dtype == x.dtype:
            return F.linear(x, self.weight, bias)
        return apply(_MasterLinear, x, self.weight, bias)


class _MasterLinear(Function):
    """A linear whose weight is wider than x: the cast copy is made twice rather than kept."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return F.linear(x, weight.to(x.dtype), bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor, Tensor | None]:
        x, weight = ctx.saved_tensors
        x_gradient = gradient @ weight.to(x.dtype) if ctx.needs_input_grad[0] else None
        bias_gradient = gradient.sum(0) if ctx.needs_input_grad[2] else None
        return x_gradient, (gradient.T @ x).to(weight.dtype), bias_gradient


class LoraLinear(Linear):
    """x W^T + bias + alpha/R x (x A^T) B, with W and bias frozen; A [R,I] and B [R,O] in float32.

    B lies transposed to PEFT's [O,R]: that makes the two thin products of its gradient 4 to 5 times
    faster on a CPU.
    """

    def __init__(
        self, weight: nn.Parameter, bias: nn.Parameter | None, a: nn.Parameter, b: nn.Parameter, scale: float
    ) -> None:
        super().__init__(weight, bias)
        self.lora_A, self.lora_B, self.scale = a, b, scale

    def forward(self, x: Tensor) -> Tensor:
        return apply(_LoraLinear, x, self.weight, self.bias, self.lora_A, self.lora_B, self.scale)


class _LoraLinear(Function):
    """Base and addition in one function: the addition goes into the base's output in place."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, a: Tensor, b: Tensor, scale: float
    ) -> Tensor:
        low = torch.mm(x, a.to(x.dtype).T)
        ctx.save_for_backward(x, low, weight, a, b)
        ctx.scale = scale
        return F.linear(x, weight, bias).addmm_(low, b.to(x.dtype), alpha=scale)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, low, weight, a, b = ctx.saved_tensors
        low_gradient = torch.mm(gradient, b.to(x.dtype).T).mul_(ctx.scale)
        x_gradient = None
        if ctx.needs_input_grad[0]:
            x_gradient = torch.mm(gradient, weight).addmm_(low_gradient, a.to(x.dtype))
        a_gradient = torch.mm(low_gradient.T, x).to(a.dtype)
        b_gradient = torch.mm(low.T, gradient).to(b.dtype).mul_(ctx.scale)
        return x_gradient, None, None, a_gradient, b_gradient, None
