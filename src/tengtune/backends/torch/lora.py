"""Linears: frozen, trained whole, or frozen with a low-rank addition.

Legend: T tokens, I inputs, O outputs, R rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

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


class Joined(nn.Module):
    """Several frozen linears of the same input as one product: x [T,I] -> [T,O] of each.

    weight [sum of O,I], bias [sum of O]."""

    def __init__(self, weight: Tensor, bias: Tensor | None, sizes: Sequence[int]) -> None:
        super().__init__()
        self.weight, self.bias, self.sizes = weight, bias, sizes

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return F.linear(x, self.weight, self.bias).split_with_sizes(self.sizes, 1)


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
        return _adapted(x, self.lora_A, self.lora_B, self.scale, [self])[0]


class SharedLora(nn.Module):
    """One adapter for several frozen linears of the same input: A [R,I] is theirs together, B [R,O] has
    their columns one after the other (Qwen1's q, k and v)."""

    def __init__(self, a: nn.Parameter, b: nn.Parameter, scale: float) -> None:
        super().__init__()
        self.lora_A, self.lora_B, self.scale = a, b, scale

    def forward(self, x: Tensor, linears: Sequence[Linear]) -> tuple[Tensor, ...]:
        return _adapted(x, self.lora_A, self.lora_B, self.scale, linears)


def _adapted(x: Tensor, a: Tensor, b: Tensor, scale: float, linears: Sequence[Linear]) -> tuple[Tensor, ...]:
    frozen = [tensor for linear in linears for tensor in (linear.weight, linear.bias)]
    return cast("tuple[Tensor, ...]", apply(_LoraLinears, x, a, b, scale, *frozen))


class _LoraLinears(Function):
    """Base and addition in one function: the addition goes into the base's output in place."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, a: Tensor, b: Tensor, scale: float, *frozen: Tensor | None
    ) -> tuple[Tensor, ...]:
        weights, biases = [tensor for tensor in frozen[::2] if tensor is not None], frozen[1::2]
        low = torch.mm(x, a.to(x.dtype).T)
        ctx.save_for_backward(x, low, a, b, *weights)
        ctx.scale = scale
        columns = torch.split_with_sizes(b.to(x.dtype), [weight.shape[0] for weight in weights], 1)
        return tuple(
            F.linear(x, weight, bias).addmm_(low, part, alpha=scale)
            for weight, bias, part in zip(weights, biases, columns, strict=True)
        )

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, low, a, b, *weights = ctx.saved_tensors
        columns = torch.split_with_sizes(b.to(x.dtype), [weight.shape[0] for weight in weights], 1)
        low_gradient = torch.mm(gradients[0], columns[0].T)
        for gradient, part in zip(gradients[1:], columns[1:], strict=True):
            low_gradient.addmm_(gradient, part.T)
        low_gradient.mul_(ctx.scale)
        x_gradient = None
        if ctx.needs_input_grad[0]:
            x_gradient = torch.mm(gradients[0], weights[0])
            for gradient, weight in zip(gradients[1:], weights[1:], strict=True):
                x_gradient.addmm_(gradient, weight)
            x_gradient.addmm_(low_gradient, a.to(x.dtype))
        a_gradient = torch.mm(low_gradient.T, x).to(a.dtype)
        b_gradient = torch.cat([torch.mm(low.T, gradient) for gradient in gradients], 1).to(b.dtype)
        return x_gradient, a_gradient, b_gradient.mul_(ctx.scale), *(None,) * (1 + 2 * len(weights))
