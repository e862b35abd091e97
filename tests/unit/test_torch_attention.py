"""Attention inside documents against the textbook formula."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from tengtune.backends.torch.attention import TILE, attention, document_lengths

LENGTHS = [
    [1],
    [5, 1, 7],
    [TILE],
    [TILE + 1, TILE - 1],
    [3, 2 * TILE, 2],
    [5 * TILE + 17, 1, 40],
]


def by_the_book(q: Tensor, k: Tensor, v: Tensor, lengths: list[int]) -> Tensor:
    """One mask for the whole row; key heads repeated for their query heads."""
    document = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    place = torch.arange(sum(lengths))
    seen = (document[:, None] == document) & (place[:, None] >= place)
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = torch.einsum("qnd,knd->nqk", q, k) / q.shape[-1] ** 0.5
    return torch.einsum("nqk,knd->qnd", scores.masked_fill(~seen, -torch.inf).softmax(-1), v)


def tensors(tokens: int, heads: int, groups: int, size: int = 8) -> list[Tensor]:
    random = torch.Generator().manual_seed(1)
    shapes = [(tokens, heads, size), (tokens, groups, size), (tokens, groups, size), (tokens, heads, size)]
    return [torch.randn(shape, generator=random, dtype=torch.float64) for shape in shapes]


def forward_and_gradients(function, inputs: list[Tensor], lengths: list[int]) -> list[Tensor]:
    *leaves, along = [x.clone() for x in inputs]
    leaves = [x.requires_grad_() for x in leaves]
    out = function(*leaves, lengths)
    return [out.detach(), *torch.autograd.grad(out, leaves, along)]


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize(("heads", "groups"), [(4, 4), (6, 2), (3, 1)])
def test_output_and_gradients(lengths: list[int], heads: int, groups: int) -> None:
    inputs = tensors(sum(lengths), heads, groups)
    found = forward_and_gradients(attention, inputs, lengths)
    for ours, theirs in zip(found, forward_and_gradients(by_the_book, inputs, lengths), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_types_in_fixed_shapes(lengths: list[int], dtype: torch.dtype) -> None:
    """Narrow types take another path (few shapes, zero rows): right to their own error."""
    inputs = [x.to(dtype) for x in tensors(sum(lengths), 6, 2)]
    found = forward_and_gradients(attention, inputs, lengths)
    exact = forward_and_gradients(by_the_book, [x.double() for x in inputs], lengths)
    for ours, theirs in zip(found, exact, strict=True):
        assert ours.dtype == dtype
        error = (ours.double() - theirs).abs().max() / theirs.abs().max().clamp_min(1)
        assert error < 4 * torch.finfo(dtype).eps


@pytest.mark.parametrize(
    ("dtype", "poison"), [(torch.float32, torch.nan), (torch.float32, torch.inf), (torch.bfloat16, 1e4)]
)
def test_another_document_is_never_seen(dtype: torch.dtype, poison: float) -> None:
    """What stands in one document cannot be told from the other, to the last bit."""
    q, k, v, along = (x.to(dtype) for x in tensors(40, 4, 2))
    clean = forward_and_gradients(attention, [q, k, v, along], [23, 17])
    dirty = [x.clone() for x in (q, k, v, along)]
    for x in dirty:
        x[:23] = poison
    for ours, theirs in zip(forward_and_gradients(attention, dirty, [23, 17]), clean, strict=True):
        torch.testing.assert_close(ours[23:], theirs[23:], rtol=0, atol=0)


def test_document_lengths() -> None:
    segment = np.array([[1, 1, 2, 2, 2, 0], [1, 1, 1, 1, 1, 1], [1, 2, 0, 0, 0, 0], [0] * 6], np.int32)
    assert document_lengths(segment) == [2, 3, 1, 6, 1, 1, 4, 6]
