"""What the probes of doctor --probe compare with, against torch's own attention, and results that are off."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from tengtune.backends import probe


def test_the_formula_is_torchs_attention() -> None:
    tokens = sum(probe.LENGTHS)
    q, k, v = (np.random.default_rng(n).standard_normal((tokens, n, 8)) for n in (4, 2, 2))
    found = probe.attention(q, k, v, probe.LENGTHS)
    start = 0
    for length in probe.LENGTHS:
        part = [torch.from_numpy(x[start : start + length]).transpose(0, 1) for x in (q, k, v)]
        wanted = F.scaled_dot_product_attention(*part, is_causal=True, enable_gqa=True).transpose(0, 1)
        np.testing.assert_allclose(found[start : start + length], wanted.numpy(), rtol=1e-12, atol=1e-12)
        start += length


@pytest.mark.parametrize(
    ("ours", "right"),
    [
        ([1.0, -2.0], True),
        ([1.0, -2.01], True),
        ([1.0, -1.9], False),
        ([1.0, np.nan], False),
        ([np.inf, -2], False),
    ],
)
def test_a_result_that_is_off(ours: list[float], right: bool) -> None:
    """float16 has 11 bits: 8 roundings are 8/1024 of the largest value."""
    found = probe.measured(ours, [1.0, -2.0], "float16")
    assert found.limit == 8 / 1024
    assert (found.error <= found.limit) is right
