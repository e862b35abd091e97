"""What a training's memory was planned to be and what it was: said, and in its record."""

from __future__ import annotations

import io
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest
from tests import examples

from tengtune.backends.base import Backend
from tengtune.plan.strategy import Range
from tengtune.train.forecast import Forecast
from tengtune.train.ranks import Alone
from tengtune.ui.console import Console


def backend(device: str, peak: int | None) -> Backend:
    made: Any = SimpleNamespace(device=device, ranks=Alone(), peak_bytes=lambda: peak)
    return cast(Backend, made)


def told(planned: Range | None, on: Backend) -> tuple[str, dict[str, Any]]:
    err = io.StringIO()
    console = Console("normal", io.StringIO(), err)
    with Forecast() as forecast:
        forecast.announce(planned, on, console)
    return err.getvalue(), forecast.figures(on, console)


def test_on_a_card_it_is_the_allocators_peak() -> None:
    text, figures = told(Range(1.8e9, 2e9, 2.2e9), backend("npu:0", 2_500_000_000))
    assert "2.00 GB a card (1.80 to 2.20)" in text
    assert figures == {
        "planned_memory_bytes": [1_800_000_000, 2_000_000_000, 2_200_000_000],
        "measured_memory_bytes": 2_500_000_000,
    }


def test_nothing_is_said_of_what_cannot_be_summed() -> None:
    assert told(None, backend("npu:0", 2_500_000_000)) == ("", {})


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    return examples.bench("plan_own")


@pytest.mark.parametrize("method", ["lora", "full"])
def test_a_real_training_takes_what_was_planned(bench: ModuleType, tmp_path: Path, method: str) -> None:
    """Far smaller than the bench's runs, so that what the libraries take weighs more: to 20%."""
    shape = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 8, "vocab_size": 16000}
    run = bench.Run("small", {**bench.DEEP, **shape}, 512, micro_batch=2, train={"method": method})
    (low, expected, high), measured = bench.trained(run, tmp_path)
    assert low < expected < high
    assert measured == pytest.approx(expected, rel=0.2)
