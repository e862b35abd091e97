"""What train says before it begins."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest

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
