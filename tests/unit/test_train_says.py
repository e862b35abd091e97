"""What train says before it begins, and what makes a training another one."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest
from tests.torch_lab import make_recipe

from tengtune.steps import train
from tengtune.ui.console import Console


@pytest.mark.parametrize(("slowdown", "warned"), [(38.0, True), (1.0, False), (0.5, False)])
def test_a_type_without_fast_products_is_told(slowdown: float, warned: bool) -> None:
    err = io.StringIO()
    backend = SimpleNamespace(slowdown=slowdown, dtype="bfloat16", device="cpu")
    store = SimpleNamespace(rows=64, seq_len=128, trained_tokens=100)
    plan = SimpleNamespace(steps=8, global_batch=8)
    train._announce(Console("normal", io.StringIO(), err), store, plan, backend, 10)  # type: ignore[arg-type]
    assert ("38 times as long as in float32" in err.getvalue()) is warned


def test_another_optimizer_is_another_training() -> None:
    """What was recorded before there was a choice was trained with adamw."""
    plain, other = (train.settings(make_recipe(optimizer=name)) for name in ("adamw", "mindformers"))
    assert other == {**plain, "train.optimizer": "mindformers"}
    assert "train.optimizer" not in plain
