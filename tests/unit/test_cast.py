"""Casts of weights against torch's, every 16-bit value and the edges of float16."""

from __future__ import annotations

import struct

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.qwen1 import as_tensor

from tengtune.weights.cast import DTYPES, cast, saturate


@pytest.mark.parametrize("source", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("target", ["float32", "float16", "bfloat16"])
def test_casts_are_torchs(source: str, target: str) -> None:
    """Every 16-bit value, or float32 values with all exponents and ties, against torch's rounding."""
    if source == "float32":
        bits = np.random.default_rng(0).integers(0, 2**32, 200_000, np.uint64).astype(np.uint32)
        halves = (np.arange(2**16, dtype=np.uint32) << 16) | 0x8000  # halfway between two bfloat16 values
        values = np.concatenate([bits, halves, halves ^ 0x1000]).view(np.float32)
    else:
        values = np.arange(2**16, dtype=np.uint16).view(DTYPES[source])
    values = values[torch.isfinite(as_tensor(values)).numpy()].reshape(-1, 1)
    if source == "float32":  # many small ones, and few, in one piece
        small = np.random.default_rng(1).standard_normal((300_000, 1)).astype(np.float32)
        values = np.concatenate([values, small * np.float32(1e-5), small * np.float32(1e-7), small])
    expected = as_tensor(values).to(getattr(torch, target))
    if target == "float16":
        expected = expected.where(
            expected.isfinite(), torch.tensor(65504.0, dtype=torch.float16).copysign(expected)
        )
    saturated: list[str] = []
    tensor = cast("x", values, DTYPES[target], saturated)
    found = np.concatenate(list(tensor.pieces())).reshape(-1, 1)
    assert torch.equal(as_tensor(found), expected)
    beyond = target == "float16" and source != "float16"
    assert saturated == (["x"] if beyond else [])


def test_what_is_no_number_stays_none() -> None:
    values = np.full((1000, 1), 1e-6, np.float32)
    values[:4, 0] = np.nan, np.inf, -np.inf, 0.0
    (found,) = cast("x", values, DTYPES["float16"], []).pieces()
    assert np.array_equal(found, values.astype(np.float16), equal_nan=True)


@settings(max_examples=300, deadline=None)
@given(st.floats(65400, 65600))
def test_where_float16_ends(value: float) -> None:
    """After 65504 the next value would be 65536; the standard rounds to it, an infinity, from 65520 on."""
    values = np.array([value, -value, 1, np.nan, np.inf], np.float32)
    assert saturate(values.copy()) == (np.float32(value) >= 65520)
    saturate(values)
    assert struct.unpack("<f", values[:1].tobytes())[0] == (
        min(np.float32(value), 65504) if value >= 65520 else np.float32(value)
    )
    assert np.isnan(values[3])
    assert np.isinf(values[4])
