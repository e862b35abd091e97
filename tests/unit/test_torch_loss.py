"""Chunked head and cross entropy against the whole logits and torch's cross entropy."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tengtune.backends.torch import loss as module
from tengtune.backends.torch.loss import head_loss

WIDTH, VOCAB = 12, 50


def problem(count: int, spread: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    random = torch.Generator().manual_seed(count)
    hidden = torch.randn(count, WIDTH, generator=random, dtype=torch.float64) * spread
    weight = torch.randn(VOCAB, WIDTH, generator=random, dtype=torch.float64)
    return hidden.requires_grad_(), weight.requires_grad_(), torch.randint(VOCAB, (count,), generator=random)


@pytest.fixture(params=[(1 << 27, 1 << 20, 1 << 15), (8 * VOCAB * 20, VOCAB * 3, 17), (1, 1, 1)], ids=str)
def sizes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """All at once; chunks of 20 slots in pieces of 3, the head in parts of 17 rows; the smallest."""
    for name, size in zip(("CHUNK_BYTES", "PIECE", "IDS"), request.param, strict=True):
        monkeypatch.setattr(module, name, size)


@pytest.mark.usefixtures("sizes")
@pytest.mark.parametrize("count", [1, 20, 47])
def test_equal_to_the_whole_logits(count: int) -> None:
    hidden, weight, labels = problem(count)
    found = head_loss(hidden, weight, labels, 0.25)
    expected = F.cross_entropy(hidden @ weight.T, labels, reduction="sum")
    torch.testing.assert_close(found, expected)
    ours = torch.autograd.grad(found, (hidden, weight))
    theirs = torch.autograd.grad(0.25 * expected, (hidden, weight))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.usefixtures("sizes")
def test_unused_slots_count_nothing() -> None:
    hidden, weight, labels = problem(30)
    labels[::3] = -100
    found = head_loss(hidden, weight, labels, 1.0)
    expected = F.cross_entropy(hidden @ weight.T, labels, reduction="sum", ignore_index=-100)
    torch.testing.assert_close(found, expected)
    for one, other in zip(
        torch.autograd.grad(found, (hidden, weight)),
        torch.autograd.grad(expected, (hidden, weight)),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


def test_no_labels_at_all() -> None:
    hidden, weight, labels = problem(0)
    found = head_loss(hidden, weight, labels, 1.0)
    found.backward()
    assert found.item() == 0
    assert not weight.grad.any()


def test_frozen_head_gives_the_hidden_states_gradient_only() -> None:
    hidden, weight, labels = problem(9)
    found = head_loss(hidden, weight.detach(), labels, 1.0)
    expected = F.cross_entropy(hidden @ weight.T, labels, reduction="sum")
    torch.testing.assert_close(torch.autograd.grad(found, hidden), torch.autograd.grad(expected, hidden))


def test_a_label_of_vanishing_probability_has_a_finite_loss() -> None:
    """exp(-1000) is 0 even in float64; the loss is 1000 all the same."""
    hidden = torch.tensor([[1000.0, 0.0]], requires_grad=True)
    weight = torch.eye(2)
    found = head_loss(hidden, weight, torch.tensor([1]), 1.0)
    assert found.item() == 1000
    torch.testing.assert_close(torch.autograd.grad(found, hidden)[0], torch.tensor([[1.0, -1.0]]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_types_to_their_own_error(dtype: torch.dtype) -> None:
    hidden, weight, labels = problem(40)
    narrow = [x.detach().to(dtype).requires_grad_() for x in (hidden, weight)]
    found = head_loss(*narrow, labels, 8.0)
    assert found.dtype == torch.float32
    wide = [x.detach().double().requires_grad_() for x in narrow]
    expected = F.cross_entropy(wide[0] @ wide[1].T, labels, reduction="sum")
    error = torch.finfo(dtype).eps
    torch.testing.assert_close(found.double(), expected, rtol=4 * error, atol=0)
    theirs = torch.autograd.grad(8 * expected, wide)
    for one, other in zip(torch.autograd.grad(found, narrow), theirs, strict=True):
        assert (one.double() - other).abs().max() < 8 * error * other.abs().max()
