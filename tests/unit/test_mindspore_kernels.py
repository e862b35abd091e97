"""Fused operators of an Ascend card: called as the installed MindSpore declares them, and taken only where
they compute what the plain ones do. No card is there; stand-ins do what the operators' documentation says."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.tiny import tiny_config

from tengtune.backends.mindspore import device, kernels
from tengtune.models.spec import from_config

import mindspore  # isort: skip
from mindspore import Tensor, ops  # isort: skip

device.prepare()  # the device is chosen before anything is computed
PACKAGE = Path(kernels.__file__).parent
ONLY_ON_ASCEND = {"rms_norm", "flash_attention_score", "ReduceScatter"}
SPEC = from_config(tiny_config())
SIGNATURES = {name: inspect.signature(getattr(ops, name)) for name in ONLY_ON_ASCEND}


def calls() -> Iterator[tuple[str, ast.Call]]:
    """Every use of `ops.<name>(...)` in the package, by name."""
    for path in PACKAGE.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                called = node.func
                if isinstance(called.value, ast.Name) and called.value.id == "ops":
                    yield called.attr, node


CALLS = list(calls())


def test_every_operator_is_in_the_wheel() -> None:
    names = {name for name, _ in CALLS}
    assert names >= {"dense", "rsqrt", *ONLY_ON_ASCEND}
    assert [name for name in names if not hasattr(ops, name)] == []


@pytest.mark.parametrize("name", sorted(ONLY_ON_ASCEND))
def test_it_is_called_as_it_is_declared(name: str) -> None:
    found = [call for each, call in CALLS if each == name]
    assert found
    for call in found:
        keywords = {keyword.arg: None for keyword in call.keywords if keyword.arg}
        SIGNATURES[name].bind(*call.args, **keywords)


def rms_norm(x: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, Tensor]:
    """x / sqrt(mean(x^2) + epsilon) * gamma, and the reciprocal of the root."""
    assert x.dtype == gamma.dtype
    reciprocal = 1 / ops.sqrt((x * x).mean(-1, keep_dims=True) + epsilon)
    return x * reciprocal * gamma, reciprocal


def flash_attention_score(query: Tensor, key: Tensor, value: Tensor, head_num: int, **options: Any) -> Tensor:
    """softmax(scale x query key^T, masked where attn_mask is true) value, heads of a group side by side."""
    options = SIGNATURES["flash_attention_score"].bind(query, key, value, head_num, **options).arguments
    assert options["input_layout"] == "BSND"
    repeats = head_num // key.shape[2]
    q = query.transpose(0, 2, 1, 3)
    k, v = (ops.repeat_interleave(each.transpose(0, 2, 1, 3), repeats, 1) for each in (key, value))
    scores = ops.matmul(q, k.transpose(0, 1, 3, 2)) * options["scalar_value"]
    scores = ops.masked_fill(scores, options["attn_mask"], -1e30)
    return ops.matmul(ops.softmax(scores, -1), v).transpose(0, 2, 1, 3)


def shifted(function: Callable[..., Any]) -> Callable[..., Any]:
    """Almost the same: 3% more."""

    def other(*arguments: Any, **options: Any) -> Any:
        out = function(*arguments, **options)
        return tuple(1.03 * part for part in out) if isinstance(out, tuple) else 1.03 * out

    return other


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A device that has both operators."""
    monkeypatch.setattr(ops, "rms_norm", rms_norm)
    monkeypatch.setattr(ops, "flash_attention_score", flash_attention_score)
    return monkeypatch


def test_operators_that_agree_are_taken(card: pytest.MonkeyPatch) -> None:
    chosen = kernels.choose("Ascend:0", SPEC, mindspore.float32)
    assert chosen == kernels.Kernels(kernels.fused_mask, kernels.fused_attention, kernels.fused_rms_norm)


@pytest.mark.parametrize("name", ["rms_norm", "flash_attention_score"])
def test_one_that_differs_or_fails_is_not(name: str, card: pytest.MonkeyPatch) -> None:
    def fails(*arguments: Any, **options: Any) -> Any:
        raise RuntimeError("The kernel unregistered.")

    for bad in (shifted(getattr(ops, name)), fails):
        card.setattr(ops, name, bad)
        chosen = kernels.choose("Ascend:0", SPEC, mindspore.float32)
        fused = (chosen.rms_norm is kernels.fused_rms_norm, chosen.attention is kernels.fused_attention)
        assert fused == ((False, True) if name == "rms_norm" else (True, False))
        assert (chosen.mask is kernels.fused_mask) == (name == "rms_norm")


def test_on_a_cpu_all_is_plain() -> None:
    """Where the real operators are not registered."""
    for device_name in ("cpu", "Ascend:0"):
        chosen = kernels.choose(device_name, SPEC, mindspore.float32)
        assert (chosen.rms_norm, chosen.attention) == (kernels.rms_norm, kernels.attention)
        copies = SPEC.heads if device_name == "cpu" else 1
        assert chosen.mask(Tensor([[1, 1, 2, 0]])).shape == (1, copies, 4, 4)
