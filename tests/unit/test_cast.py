"""Casts of weights against torch's, every 16-bit value and the edges of the dtypes."""

from __future__ import annotations

import math
import struct
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.qwen1 import as_tensor

from tengtune.ui import language
from tengtune.weights.cast import DTYPES, cast, saturate, saturation, to_dtype


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
    largest = torch.tensor(torch.finfo(expected.dtype).max, dtype=expected.dtype)
    beyond = not expected.isfinite().all()
    expected = expected.where(expected.isfinite(), largest.copysign(expected))
    saturated: list[str] = []
    tensor = cast("x", values, DTYPES[target], saturated)
    found = np.concatenate(list(tensor.pieces())).reshape(-1, 1)
    assert torch.equal(as_tensor(found), expected)
    narrower = {("float32", "float16"), ("bfloat16", "float16"), ("float32", "bfloat16")}
    assert beyond == ((source, target) in narrower)
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
    assert saturate(values.copy(), DTYPES["float16"]) == (np.float32(value) >= 65520)
    saturate(values, DTYPES["float16"])
    assert struct.unpack("<f", values[:1].tobytes())[0] == (
        min(np.float32(value), 65504) if value >= 65520 else np.float32(value)
    )
    assert np.isnan(values[3])
    assert np.isinf(values[4])


EDGES = [
    ("float32", "bfloat16", 3.4e38, 3.3895313892515355e38),
    ("float32", "bfloat16", 3.396177e38, 3.3895313892515355e38),  # just below the middle: rounds down
    ("float64", "bfloat16", 1e300, 3.3895313892515355e38),
    ("float64", "float32", 1e300, 3.4028234663852886e38),
    ("float64", "float32", 3.40282356e38, 3.4028234663852886e38),  # just below the middle
    ("float64", "float16", 1e300, 65504.0),
    ("bfloat16", "float16", 1e30, 65504.0),
]


@pytest.mark.parametrize(("source", "target", "value", "expected"), EDGES)
def test_finite_values_stay_finite_and_the_tensor_is_named(
    source: str, target: str, value: float, expected: float
) -> None:
    values = np.array([[value, -value, 1.5, np.inf, -np.inf, np.nan]]).astype(DTYPES.get(source, source))
    saturated: list[str] = []
    (found,) = cast("x", values, DTYPES[target], saturated).pieces()
    wanted = [expected, -expected, 1.5, np.inf, -np.inf, np.nan]
    assert np.array_equal(found[0].astype(np.float64), wanted, equal_nan=True)
    assert saturated == ([] if value in (3.396177e38, 3.40282356e38) else ["x"])


def exact_bfloat16(value: float) -> float:
    """The nearest multiple of bfloat16's step there, in exact arithmetic; the even one of two."""
    if value == 0:
        return value
    step = Fraction(2) ** (max(math.frexp(value)[1], -125) - 8)
    return float(round(Fraction(value) / step) * step)


@settings(max_examples=500, deadline=None)
@given(
    st.integers(128, 255),
    st.sampled_from([0, 2.0**-1]),
    st.sampled_from([0, 2.0**-16, 2.0**-17, 2.0**-30, -(2.0**-16), -(2.0**-17), -(2.0**-30)]),
    st.integers(-145, 119),
    st.sampled_from([1, -1]),
)
def test_float64_is_rounded_to_bfloat16_once(
    whole: int, half: float, little: float, exponent: int, sign: int
) -> None:
    """Values at and next to the middle of two: by way of float32 what is next to it would be lost."""
    value = sign * math.ldexp(whole + half + little, exponent)
    found, beyond = to_dtype(np.array([value]), DTYPES["bfloat16"])
    assert (float(found[0]), beyond) == (exact_bfloat16(value), False)


def test_one_and_a_bit_more_than_half_a_step() -> None:
    found, _ = to_dtype(np.array([1 + 2**-8 + 2**-40, 1 + 2**-8, 1e-300, -1e-300]), DTYPES["bfloat16"])
    assert found.astype(float).tolist() == [1.0078125, 1.0, 0.0, 0.0]


def test_no_values_at_all() -> None:
    found, beyond = to_dtype(np.zeros((0, 4)), DTYPES["float16"])
    assert (found.shape, found.dtype, beyond) == ((0, 4), np.float16, False)


@pytest.mark.parametrize(("dtype", "most"), [("float16", "65504"), ("bfloat16", "3.38953e+38")])
@pytest.mark.parametrize("area", ["convert", "merge"])
def test_what_was_beyond_a_dtype_is_named(area: str, dtype: str, most: str) -> None:
    code, values = saturation(area, dtype, ["a", "b"])
    said = language.say(code, **values)
    assert said.startswith(f"{dtype} holds at most {most}; ")
    assert "2 tensors: a, b." in said
