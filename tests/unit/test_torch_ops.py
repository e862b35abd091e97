"""The small operations against torch's own, values and gradients."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from tengtune.backends.torch.lora import Linear, LoraLinear
from tengtune.backends.torch.ops import rms_norm, rotary, swiglu

RANDOM = torch.Generator().manual_seed(3)


def some(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(shape, generator=RANDOM, dtype=torch.float64).to(dtype).requires_grad_()


def test_gradients_are_those_of_finite_differences() -> None:
    angles = torch.rand(5, 1, 3, dtype=torch.float64)
    assert torch.autograd.gradcheck(rms_norm, (some(5, 8), some(8), 1e-5))
    assert torch.autograd.gradcheck(rms_norm, (some(5, 2, 8), some(8), 1e-5))
    assert torch.autograd.gradcheck(swiglu, (some(5, 8), some(5, 8)))
    assert torch.autograd.gradcheck(lambda x: rotary(x, angles.cos(), angles.sin()), (some(5, 2, 6),))


def test_values_are_torchs_own() -> None:
    x, weight = some(7, 16), some(16)
    torch.testing.assert_close(rms_norm(x, weight, 1e-3), F.rms_norm(x, (16,), weight, 1e-3))
    torch.testing.assert_close(swiglu(x, 2 * x), F.silu(x) * 2 * x)


def test_rotary_turns_pairs_by_the_position() -> None:
    """As complex numbers: (x_i, x_{i + D/2}) times e^(i angle)."""
    x, angles = some(6, 3, 10), torch.rand(6, 1, 5, dtype=torch.float64) * 50
    turned = torch.complex(x[..., :5], x[..., 5:]) * torch.polar(torch.ones_like(angles), angles)
    expected = torch.cat((turned.real, turned.imag), -1)
    torch.testing.assert_close(rotary(x, angles.cos(), angles.sin()), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_norm_computes_wide(dtype: torch.dtype) -> None:
    """Squares of 300 and sums of 4096 of them leave float16's range, not the norm's."""
    x = (some(3, 4096, dtype=dtype) * 300).detach().requires_grad_()
    weight = torch.ones(4096)
    found = rms_norm(x, weight, 1e-6)
    assert found.dtype == dtype
    expected = F.rms_norm(x.double(), (4096,), weight.double(), 1e-6)
    torch.testing.assert_close(found.double(), expected, rtol=torch.finfo(dtype).eps, atol=1e-7)


def parameter(*shape: int, trained: bool, dtype: torch.dtype = torch.float64) -> torch.nn.Parameter:
    return torch.nn.Parameter(some(*shape, dtype=dtype).detach(), requires_grad=trained)


@pytest.mark.parametrize("bias", [True, False])
def test_lora_is_the_sum_written_out(bias: bool) -> None:
    weight = parameter(6, 5, trained=False)
    offset = parameter(6, trained=False) if bias else None
    a, b = parameter(2, 5, trained=True), parameter(2, 6, trained=True)
    x, along = some(4, 5), some(4, 6).detach()

    def written_out(x: torch.Tensor) -> torch.Tensor:
        merged = weight + 1.5 * (b.T @ a)
        return x @ merged.T + (0 if offset is None else offset)

    leaves = (x, a, b)
    found, expected = LoraLinear(weight, offset, a, b, 1.5)(x), written_out(x)
    torch.testing.assert_close(found, expected)
    for ours, theirs in zip(
        torch.autograd.grad(found, leaves, along), torch.autograd.grad(expected, leaves, along), strict=True
    ):
        torch.testing.assert_close(ours, theirs)


def test_trained_linear_keeps_a_wide_master() -> None:
    """A float32 weight under bfloat16 activations: computed narrow, its gradient float32."""
    weight, offset = (parameter(*s, trained=True, dtype=torch.float32) for s in ((64, 48), (64,)))
    x = some(32, 48, dtype=torch.bfloat16).detach().requires_grad_()
    out = Linear(weight, offset)(x)
    assert out.dtype == torch.bfloat16
    out.backward(torch.ones_like(out))
    expected = F.linear(x.double(), weight.bfloat16().double(), offset.bfloat16().double())
    torch.testing.assert_close(out.double(), expected, rtol=2**-7, atol=2**-5)
    assert weight.grad is not None
    assert weight.grad.dtype == torch.float32
    columns = x.detach().double().sum(0).expand(64, -1)
    torch.testing.assert_close(weight.grad.double(), columns, rtol=2**-7, atol=2**-4)
    torch.testing.assert_close(offset.grad, torch.full((64,), 32.0))
