"""The training loop with a stand-in back end: what it hands over, what it reads, when it stops."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tengtune.backends.base import Sampling, Shard, StepHandles
from tengtune.models.spec import ModelSpec
from tengtune.recipe import Recipe
from tengtune.train import metrics as metrics_file
from tengtune.train import schedule
from tengtune.train.batch import NO_LABEL, Batch, fill_rows
from tengtune.train.fit import Fit, heldout_loss
from tengtune.train.metrics import Metrics
from tengtune.ui.console import Console
from tengtune.ui.problems import Problem

SPEC = ModelSpec("qwen2", 8, 1, 2, 1, 4, 8, 16, 1e4, 1e-6, 64, True, True, False)


class Rows:
    """Four rows of eight tokens; row r has r + 1 labels."""

    rows = 4
    trained_tokens = 10

    def batch(self, rows: Sequence[int]) -> Batch:
        label = np.full((len(rows), 4), NO_LABEL, np.int32)
        for i, row in enumerate(rows):
            label[i, : row + 1] = 7
        zeros = np.zeros((len(rows), 8), np.int32)
        return Batch(zeros, zeros, zeros + 1, np.zeros((len(rows), 4), np.int32), label)


class Fake:
    """A back end that writes down what it is given; `finite` decides each step's fate."""

    spec, device = SPEC, "cpu"

    def __init__(self, dtype: str = "float32", finite: Iterable[bool] = ()) -> None:
        self.dtype = dtype
        self.calls: list[tuple[int, int, float, float]] = []
        self._finite = iter(finite)

    def train_step(
        self, micro_batches: Sequence[Batch], trained_tokens: int, lr: float, scale: float
    ) -> StepHandles:
        assert {b.ids.shape for b in micro_batches} == {(2, 8)}
        self.calls.append((len(micro_batches), trained_tokens, lr, scale))
        return StepHandles(2.0 * trained_tokens, 0.5, float(next(self._finite, True)))

    def eval_step(self, batch: Batch) -> float:
        return 3.0 * batch.trained_tokens

    def named_shards(self) -> Iterator[Shard]:
        return iter(())

    def load_shards(self, shards: Iterable[Shard], step: int) -> None:
        assert step >= 0

    def generate(
        self,
        prompt: Sequence[int],
        max_new_tokens: int,
        stop_ids: Iterable[int],
        sampling: Sampling | None = None,
    ) -> Iterator[int]:
        return iter(())


def recipe(**train: Any) -> Recipe:
    settings = {"micro_batch": 2, "global_batch": 4, "epochs": 3, **train}
    return Recipe(name="t", model="m", data="d", train=settings, file=Path("/t.yaml"))  # type: ignore[arg-type]


def fit(folder: Path, backend: Fake, err: io.StringIO | None = None, **train: Any) -> dict[str, Any]:
    run = recipe(**train)
    console = Console("normal", io.StringIO(), err or io.StringIO())
    metrics = Metrics(folder / "metrics.jsonl")
    try:
        return Fit(backend, Rows(), schedule.plan(run, 4), run, console, metrics, Rows()).run()
    finally:
        metrics.close()


def test_every_step_gets_its_rows_tokens_and_rate(tmp_path: Path) -> None:
    backend = Fake()
    figures = fit(tmp_path, backend, lr=1e-3, warmup_ratio=0, lr_schedule="constant")
    assert backend.calls == [(2, 10, 1e-3, 1.0)] * 3
    assert (figures["steps"], figures["trained_tokens"]) == (3, 30)
    assert figures["first_loss"] == figures["last_loss"] == 2.0
    lines = list(metrics_file.read(tmp_path / "metrics.jsonl"))
    assert [line["step"] for line in lines] == [1, 2, 3]
    assert lines[0]["loss"] == 2.0
    assert lines[0]["epoch"] == 1.0


def test_the_log_interval_gathers_tokens_and_the_last_step_is_logged(tmp_path: Path) -> None:
    fit(tmp_path, Fake(), log_every=2)
    lines = list(metrics_file.read(tmp_path / "metrics.jsonl"))
    assert [(line["step"], line["trained_tokens"]) for line in lines] == [(2, 20), (3, 10)]


def test_held_out_rows_are_scored_on_the_way(tmp_path: Path) -> None:
    fit(tmp_path, Fake(), eval_every=1)
    lines = [line for line in metrics_file.read(tmp_path / "metrics.jsonl") if "heldout_loss" in line]
    assert [(line["step"], line["heldout_loss"], line["heldout_tokens"]) for line in lines] == [
        (1, 3.0, 10),
        (2, 3.0, 10),
    ]


def test_heldout_loss_counts_a_short_last_batch_right() -> None:
    assert heldout_loss(Fake(), Rows(), micro_batch=3) == (3.0, 10)


def test_an_overflow_is_skipped_counted_and_halves_the_scale(tmp_path: Path) -> None:
    backend, err = Fake("float16", [True, False, True, True]), io.StringIO()
    figures = fit(tmp_path, backend, err, epochs=4)
    assert [call[3] for call in backend.calls] == [65536.0, 65536.0, 32768.0, 32768.0]
    assert figures["skipped_steps"] == 1
    assert figures["trained_tokens"] == 30  # a skipped step taught nothing
    assert "step 2" in err.getvalue()


def test_a_forward_that_overflows_stops_the_run(tmp_path: Path) -> None:
    with pytest.raises(Problem) as caught:
        fit(tmp_path, Fake("float16", [False] * 50), epochs=50)
    assert (caught.value.code, caught.value.exit_code) == ("train.forward_overflow", 4)


def test_lasting_nan_in_float32_stops_the_run(tmp_path: Path) -> None:
    backend = Fake("float32", [True] + [False] * 9)
    with pytest.raises(Problem) as caught:
        fit(tmp_path, backend, epochs=10)
    assert (caught.value.code, len(backend.calls)) == ("train.not_finite", 4)


def test_an_interval_without_a_good_step_logs_no_number(tmp_path: Path) -> None:
    figures = fit(tmp_path, Fake("float32", [False, True, True]))
    first = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[0])
    assert math.isnan(first["loss"])
    assert figures["first_loss"] == 2.0


def test_padding_rows_hold_nothing() -> None:
    batch = fill_rows(Rows().batch([1]), 3)
    assert batch.ids.shape == (3, 8)
    assert batch.trained_tokens == 2
    assert batch.segment[1:].max() == 0
