"""AdamW against torch's own, and the step that must not happen."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.torch_lab import make_recipe
from torch import Tensor, nn

from tengtune.backends.torch.optimizer import AdamW

SHAPES = [(4, 6), (6,), (3, 2)]
TRAIN = make_recipe(weight_decay=0.2, beta1=0.8, beta2=0.9, eps=1e-6, clip_norm=0.5).train


def parameters() -> list[nn.Parameter]:
    random = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(shape, generator=random)) for shape in SHAPES]


def some_gradients(step: int) -> list[Tensor]:
    """Of very different sizes, so that clipping acts in some steps and not in others."""
    random = torch.Generator().manual_seed(100 + step)
    return [torch.randn(shape, generator=random) * 10.0 ** (step % 3 - 2) for shape in SHAPES]


@pytest.fixture(params=["fused", "plain"])
def make(request: pytest.FixtureRequest) -> Callable[[], AdamW]:
    def build() -> AdamW:
        optimizer = AdamW(parameters(), TRAIN)
        optimizer._update = getattr(optimizer, f"_{request.param}")
        return optimizer

    return build


def set_gradients(optimizer: AdamW, gradients: list[Tensor], scale: float = 1.0) -> None:
    for parameter, gradient in zip(optimizer.parameters, gradients, strict=True):
        parameter.grad = gradient * scale


def state(optimizer: AdamW) -> list[Tensor]:
    tensors = [*optimizer.parameters, *optimizer.exp_avg, *optimizer.exp_avg_sq, optimizer.applied]
    return [x.detach().clone() for x in tensors]


def test_steps_are_torchs(make: Callable[[], AdamW]) -> None:
    """Clipped, decayed on matrices only, the learning rate changing from step to step."""
    ours, theirs = make(), parameters()
    reference = torch.optim.AdamW(
        [
            {"params": [p for p in theirs if p.ndim > 1], "weight_decay": 0.2},
            {"params": [p for p in theirs if p.ndim == 1], "weight_decay": 0.0},
        ],
        betas=(0.8, 0.9),
        eps=1e-6,
        foreach=False,
    )
    for step in range(9):
        lr = 0.05 / (step + 1)
        set_gradients(ours, some_gradients(step))
        norm, finite = ours.step(lr, 1.0)
        for parameter, gradient in zip(theirs, some_gradients(step), strict=True):
            parameter.grad = gradient
        expected_norm = torch.nn.utils.clip_grad_norm_(theirs, 0.5)
        for group in reference.param_groups:
            group["lr"] = lr
        reference.step()
        assert norm.item() == pytest.approx(expected_norm.item(), rel=1e-6)
        assert finite.item() == 1
    for one, other in zip(ours.parameters, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    assert ours.applied.item() == 9
    assert all(parameter.grad is None for parameter in ours.parameters)


def test_no_clipping_at_zero(make: Callable[[], AdamW]) -> None:
    optimizer = make()
    optimizer.train = TRAIN.model_copy(update={"clip_norm": 0.0, "weight_decay": 0.0})
    set_gradients(optimizer, [torch.full(shape, 100.0) for shape in SHAPES])
    optimizer.step(0.1, 1.0)
    for moment in optimizer.exp_avg:
        torch.testing.assert_close(moment, torch.full_like(moment, 20.0))


def test_the_scale_leaves_no_trace(make: Callable[[], AdamW]) -> None:
    """A power of two comes in and goes out without a rounding."""
    plain, scaled = make(), make()
    for step in range(3):
        set_gradients(plain, some_gradients(step))
        set_gradients(scaled, some_gradients(step), 1024.0)
        norms = plain.step(0.01, 1.0)[0], scaled.step(0.01, 1024.0)[0]
        assert norms[0] == norms[1]
    for one, other in zip(state(plain), state(scaled), strict=True):
        torch.testing.assert_close(one, other, rtol=2e-7, atol=1e-9)


@pytest.mark.parametrize("poison", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("warm", [0, 2])
def test_a_step_that_is_not_finite_changes_no_bit(
    make: Callable[[], AdamW], poison: float, warm: int
) -> None:
    optimizer, other = make(), make()
    for step in range(warm):
        for one in (optimizer, other):
            set_gradients(one, some_gradients(step))
            one.step(0.01, 2.0)
    before = state(optimizer)
    gradients = some_gradients(warm)
    gradients[1][3] = poison
    set_gradients(optimizer, gradients)
    norm, finite = optimizer.step(0.01, 2.0)
    assert finite.item() == 0
    assert not norm.isfinite()
    for now, then in zip(state(optimizer), before, strict=True):
        assert torch.equal(now, then)
    for one in (optimizer, other):  # and the next step is the one it would have been
        set_gradients(one, some_gradients(warm))
        one.step(0.01, 2.0)
    for one, another in zip(state(optimizer), state(other), strict=True):
        assert torch.equal(one, another)


def test_the_fused_kernel_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch 2.1 knows the name on a CPU and fails at the first step: there the plain update serves."""
    assert AdamW(parameters(), TRAIN)._update.__name__ == "_fused"
    monkeypatch.setattr(torch._C, "_dispatch_has_kernel_for_dispatch_key", lambda name, key: False)
    assert AdamW(parameters(), TRAIN)._update.__name__ == "_plain"
