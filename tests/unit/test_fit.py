"""The training loop with a stand-in back end: what it hands over, what it reads, when it stops."""

from __future__ import annotations

import errno
import io
import math
import signal
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.answering import one_by_one
from tests.fit_lab import run_fit

from tengtune.backends.base import Asked, Sampling, Shard, StepHandles
from tengtune.models.spec import ModelSpec
from tengtune.recipe import Recipe
from tengtune.train import checkpoints, schedule
from tengtune.train import metrics as metrics_file
from tengtune.train.batch import NO_LABEL, Batch, fill_rows
from tengtune.train.checkpoints import Shelf
from tengtune.train.fit import heldout_loss
from tengtune.train.ranks import Alone
from tengtune.train.saver import Saver
from tengtune.ui.problems import Problem, Stopped

SPEC = ModelSpec("qwen2", 8, 1, 2, 1, 4, 8, 16, 1e4, 1e-6, 64, True, True, False)


class Rows:
    """Four rows of eight tokens; row r has r + 1 labels."""

    rows = 4
    trained_tokens = 10
    labels_per_row = np.array([1, 2, 3, 4], np.int32)

    def batch(self, rows: Sequence[int]) -> Batch:
        label = np.full((len(rows), 4), NO_LABEL, np.int32)
        for i, row in enumerate(rows):
            label[i, : row + 1] = 7
        zeros = np.zeros((len(rows), 8), np.int32)
        return Batch(zeros, zeros, zeros + 1, np.zeros((len(rows), 4), np.int32), label)


class Fake:
    """A back end that writes down what it is given; `finite` decides each step's fate, `losses` what it and
    each evaluation cost per label. Its one weight counts the good steps, so that going back shows."""

    spec, device, ranks, sharded = SPEC, "cpu", Alone(), False
    place: str | None = "model.layers.1"

    def __init__(
        self,
        dtype: str = "float32",
        finite: Iterable[bool] = (),
        losses: Iterable[float] = (),
        scores: Iterable[float] = (),
    ) -> None:
        self.dtype = dtype
        self.calls: list[tuple[int, int, float, float]] = []
        self.weight, self._scored, self._score = np.zeros(3, np.float32), 0, 0.0
        self._finite, self._losses, self._scores = iter(finite), iter(losses), iter(scores)

    def train_step(
        self, micro_batches: Sequence[Batch], trained_tokens: int, lr: float, scale: float
    ) -> StepHandles:
        assert {b.ids.shape for b in micro_batches} == {(2, 8)}
        self.calls.append((len(micro_batches), trained_tokens, lr, scale))
        finite = next(self._finite, True)
        self.weight += finite
        return StepHandles(next(self._losses, 2.0) * trained_tokens, 0.5, float(finite))

    def eval_step(self, batch: Batch) -> float:
        if self._scored % Rows.trained_tokens == 0:  # a new evaluation begins
            self._score = next(self._scores, 3.0)
        self._scored += batch.trained_tokens
        return self._score * batch.trained_tokens

    def first_overflow(self, batch: Batch) -> str | None:
        return self.place

    def peak_bytes(self) -> None:
        return None

    def named_shards(self) -> Iterator[Shard]:
        yield Shard("weight", "param", self.weight.copy())

    def load_shards(self, shards: Iterable[Shard], step: int) -> None:
        (shard,) = shards
        assert (shard.name, shard.kind, shard.array[0]) == ("weight", "param", step)
        self.weight = shard.array.copy()

    def generate(
        self,
        prompt: Sequence[int],
        max_new_tokens: int,
        stop_ids: Iterable[int],
        sampling: Sampling | None = None,
    ) -> Iterator[int]:
        return iter(())

    def generate_many(self, asked: Iterable[Asked], stop_ids: Iterable[int]) -> Iterator[int]:
        return one_by_one(self.generate, asked, stop_ids)


def recipe(**train: Any) -> Recipe:
    settings = {"micro_batch": 2, "global_batch": 4, "epochs": 3, **train}
    return Recipe(name="t", model="m", data="d", train=settings, file=Path("/t.yaml"))  # type: ignore[arg-type]


def fit(folder: Path, backend: Fake, err: io.StringIO | None = None, **train: Any) -> dict[str, Any]:
    return run_fit(folder, backend, Rows(), recipe(**train), Rows(), err)


def lines(folder: Path, key: str) -> list[dict[str, Any]]:
    """The records of metrics.jsonl that have a key."""
    return [line for line in metrics_file.read(folder / "metrics.jsonl") if key in line]


def saved(folder: Path) -> list[int]:
    return Shelf(folder / "checkpoints").steps()


def test_every_step_gets_its_rows_tokens_and_rate(tmp_path: Path) -> None:
    backend = Fake()
    figures = fit(tmp_path, backend, lr=1e-3, warmup_ratio=0, lr_schedule="constant")
    assert backend.calls == [(2, 10, 1e-3, 1.0)] * 3
    assert (figures["steps"], figures["trained_tokens"]) == (3, 30)
    assert figures["first_loss"] == figures["last_loss"] == 2.0
    logged = lines(tmp_path, "loss")
    assert [line["step"] for line in logged] == [1, 2, 3]
    assert logged[0]["loss"] == 2.0
    assert logged[0]["epoch"] == 1.0


def test_the_log_interval_gathers_tokens_and_the_last_step_is_logged(tmp_path: Path) -> None:
    fit(tmp_path, Fake(), log_every=2)
    logged = lines(tmp_path, "loss")
    assert [(line["step"], line["trained_tokens"]) for line in logged] == [(2, 20), (3, 10)]


def test_held_out_rows_are_scored_on_the_way(tmp_path: Path) -> None:
    fit(tmp_path, Fake(), eval_every=1)
    scored = lines(tmp_path, "heldout_loss")
    assert [(line["step"], line["heldout_loss"], line["heldout_tokens"]) for line in scored] == [
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
    assert "model.layers.1" in str(caught.value)
    backward = Fake("float16", [False] * 50)
    backward.place = None
    with pytest.raises(Problem) as caught:
        fit(tmp_path / "backward", backward, epochs=50)
    assert caught.value.code == "train.backward_overflow"


def test_lasting_nan_in_float32_stops_the_run(tmp_path: Path) -> None:
    backend = Fake("float32", [True] + [False] * 9)
    with pytest.raises(Problem) as caught:
        fit(tmp_path, backend, epochs=10)
    assert (caught.value.code, len(backend.calls)) == ("train.not_finite", 4)


def test_an_interval_without_a_good_step_logs_no_number(tmp_path: Path) -> None:
    figures = fit(tmp_path, Fake("float32", [False, True, True]))
    assert [line["loss"] for line in lines(tmp_path, "loss")] == [None, 2.0, 2.0]
    assert figures["first_loss"] == 2.0
    assert "NaN" not in (tmp_path / "metrics.jsonl").read_text()  # no JSON parser has to take it


def test_a_loss_that_is_no_number_counts_as_a_bad_step(tmp_path: Path) -> None:
    figures = fit(tmp_path, Fake(losses=[2.0, math.inf, 4.0]), epochs=3)
    assert [line["loss"] for line in lines(tmp_path, "loss")] == [2.0, None, 4.0]
    assert (figures["trained_tokens"], figures["skipped_steps"]) == (20, 0)  # its update was applied
    assert [line["step"] for line in lines(tmp_path, "event")] == [2]


def test_on_nan_stop_ends_at_the_first(tmp_path: Path) -> None:
    backend = Fake(finite=[True, False])
    with pytest.raises(Problem) as caught:
        fit(tmp_path, backend, epochs=9, on_nan="stop")
    assert (caught.value.code, len(backend.calls)) == ("train.not_finite", 2)
    assert [e["event"] for e in lines(tmp_path, "event")] == ["skipped", "stopped"]


def test_rewinding_goes_back_to_the_checkpoint_and_leaves_the_rows_out(tmp_path: Path) -> None:
    """Saved after steps 2 and 4; bad from step 6 to 8; what steps 5 to 8 did is undone, 9 and 10 follow."""
    backend, err = Fake(finite=[True] * 5 + [False] * 3), io.StringIO()
    settings = {"epochs": 10, "save_every": 2, "on_nan": "rewind", "warmup_ratio": 0}
    figures = fit(tmp_path, backend, err, **settings)
    assert backend.weight[0] == 6
    rate = schedule.plan(recipe(**settings), 4).learning_rate
    assert [call[2] for call in backend.calls] == [rate(step) for step in range(10)]
    assert (figures["rewinds"], figures["skipped_steps"], figures["trained_tokens"]) == (1, 3, 60)
    assert lines(tmp_path, "back_to")[0] | {"time": ""} == {
        "step": 8, "event": "rewound", "time": "", "back_to": 4
    }  # fmt: skip
    assert "steps 5 to 8 are left out" in err.getvalue()


def test_rewinding_has_an_end(tmp_path: Path) -> None:
    backend = Fake(finite=[True, True])
    backend._finite = iter([True] * 2 + [False] * 90)
    with pytest.raises(Problem) as caught:
        fit(tmp_path, backend, epochs=90, save_every=1, on_nan="rewind")
    assert (caught.value.code, len(backend.calls)) == ("train.not_finite", 2 + 4 * 3)


def test_without_a_checkpoint_there_is_nothing_to_rewind_to(tmp_path: Path) -> None:
    with pytest.raises(Problem) as caught:
        fit(tmp_path, Fake(finite=[False] * 9), epochs=9, on_nan="rewind")
    assert caught.value.code == "train.model_not_finite"  # no step was good: the model came like this
    backend = Fake(finite=[True] + [False] * 9)
    with pytest.raises(Problem) as caught:
        fit(tmp_path / "later", backend, epochs=9, save_every=100, on_nan="rewind")
    assert caught.value.code == "train.nothing_to_rewind_to"


@pytest.mark.parametrize("policy", ["skip", "rewind", "stop"])
def test_a_model_that_came_with_nan_is_told_as_such(tmp_path: Path, policy: str) -> None:
    with pytest.raises(Problem) as caught:
        fit(tmp_path, Fake(finite=[False] * 9), epochs=9, on_nan=policy)
    assert (caught.value.code, caught.value.exit_code) == ("train.model_not_finite", 4)
    assert "model.layers.1 gives NaN" in str(caught.value)
    backward = Fake(finite=[False] * 9)
    backward.place = None
    with pytest.raises(Problem) as caught:
        fit(tmp_path / "backward", backward, epochs=9)
    assert caught.value.code == "train.not_finite"


@pytest.mark.parametrize("sharded", [False, True])
def test_a_run_whose_steps_were_all_skipped_is_no_success(tmp_path: Path, sharded: bool) -> None:
    """The loss scale of float16 has not been found yet when the last step is done."""
    backend = Fake("float16", [False] * 5)
    backend.sharded = sharded
    with pytest.raises(Problem) as caught:
        fit(tmp_path, backend, epochs=5)
    assert (caught.value.code, caught.value.exit_code) == ("train.nothing_applied", 4)
    assert "All 5 steps were skipped" in str(caught.value)
    assert "loss scale now 2048" in str(caught.value)
    assert saved(tmp_path) == []
    fit(tmp_path / "last", Fake("float16", [False] * 4 + [True]), epochs=5)


def test_no_checkpoint_is_taken_in_a_row_of_bad_steps(tmp_path: Path) -> None:
    fit(tmp_path, Fake(finite=[True, True, False, False, True]), epochs=5, save_every=1, keep=9)
    assert saved(tmp_path) == [1, 2, 5]


def test_the_best_is_kept_even_when_its_step_was_bad(tmp_path: Path) -> None:
    """A bad step leaves the weights as they were, and those were scored."""
    backend = Fake(finite=[True, False, False, True, True], scores=[5.0, 4.5, 4.0, 6.0, 7.0])
    figures = fit(tmp_path, backend, epochs=6, eval_every=1, early_stop=2, save_every=100, keep=1)
    assert (figures["best_step"], figures["steps"]) == (3, 5)
    assert saved(tmp_path) == [1, 3]  # and one to go back to


def test_the_best_of_a_bad_row_is_none_to_go_back_to(tmp_path: Path) -> None:
    """Saved after step 2; steps 4 to 6 are bad, and 5 is the best: its weights stay, those of 2 are taken."""
    backend = Fake(finite=[True] * 3 + [False] * 3, scores=[5.0, 4.0, 6.0])
    train = {"save_every": 2, "keep": 1, "eval_every": 5, "on_nan": "rewind"}
    fit(tmp_path, backend, epochs=8, **train)
    assert [(e["step"], e["back_to"]) for e in lines(tmp_path, "back_to")] == [(6, 2)]
    assert saved(tmp_path) == [5, 8]


def test_a_spike_is_noted_once(tmp_path: Path) -> None:
    losses = [2.0, 2.1, 1.9, 2.0, 2.2, 1.8, 2.0, 2.1, 9.0, 9.5, 2.0]
    figures = fit(tmp_path, Fake(losses=losses), epochs=11)
    assert figures["loss_spikes"] == 1
    assert [(e["step"], e["loss"], e["median"]) for e in lines(tmp_path, "median")] == [(9, 9.0, 2.0)]


class Killed(Exception):
    pass


class Mortal(Fake):
    """Dies in step number `dies_at`."""

    dies_at = 0

    def train_step(
        self, micro_batches: Sequence[Batch], trained_tokens: int, lr: float, scale: float
    ) -> StepHandles:
        if len(self.calls) == self.dies_at - 1:
            raise Killed
        return super().train_step(micro_batches, trained_tokens, lr, scale)


@pytest.mark.parametrize("dies_at", range(1, 12))
def test_a_run_that_died_goes_on_to_the_same_end(tmp_path: Path, dies_at: int) -> None:
    """float16 and an overflow, so that the scale counts; logged every 3 steps, saved every 2, scored every 4.

    What each step does depends on the step's number alone, in the whole run and in its two parts.
    """
    finite = [True, True, False, True, True, True, True, False, True, True, True]
    losses, scores = [3.0 - step / 10 for step in range(11)], [5.0, 4.0]
    train = {"epochs": 11, "log_every": 3, "save_every": 2, "eval_every": 4, "keep": 1}
    whole = Fake("float16", finite, losses, scores)
    expected = fit(tmp_path / "whole", whole, **train)
    first = Mortal("float16", finite, losses, scores)
    first.dies_at = dies_at
    folder = tmp_path / "parts"
    with pytest.raises(Killed):
        fit(folder, first, **train)
    step = max((s for s in saved(folder) if s < dies_at), default=0)
    second = Fake("float16", finite[step:], losses[step:], scores[step // 4 :])
    figures = fit(folder, second, **train)
    assert first.calls[:step] + second.calls == whole.calls
    assert second.weight.tolist() == whole.weight.tolist()
    timeless = {"tokens_per_s", "events", "saving_seconds", "peak_memory_bytes"}
    assert {k: v for k, v in figures.items() if k not in timeless} == {
        k: v for k, v in expected.items() if k not in timeless
    }
    for key in ("loss", "heldout_loss"):
        ours, theirs = lines(folder, key), lines(tmp_path / "whole", key)
        for line in (*ours, *theirs):
            for name in ("seconds", "tokens_per_s", "memory_bytes"):
                line.pop(name, None)
        assert ours == theirs


def test_a_finished_run_trains_nothing_more(tmp_path: Path) -> None:
    fit(tmp_path, Fake(), epochs=3)
    again = Fake()
    assert fit(tmp_path, again, epochs=3)["steps"] == 3
    assert again.calls == []
    assert again.weight[0] == 3


def test_early_stopping_keeps_the_best(tmp_path: Path) -> None:
    scores = [5.0, 4.0, 4.5, math.nan, 4.1, 3.0]
    figures = fit(tmp_path, Fake(scores=scores), epochs=90, eval_every=2, early_stop=3, save_every=5, keep=1)
    assert (figures["steps"], figures["planned_steps"]) == (10, 90)
    assert (figures["best_step"], figures["best_heldout_loss"]) == (4, 4.0)
    assert saved(tmp_path) == [4, 10]
    assert [line["heldout_loss"] for line in lines(tmp_path, "heldout_loss")] == [5.0, 4.0, 4.5, None, 4.1]


def test_under_early_stopping_the_last_step_is_scored_too(tmp_path: Path) -> None:
    figures = fit(tmp_path, Fake(scores=[5.0, 4.0]), epochs=3, eval_every=2, early_stop=9)
    assert (figures["best_step"], figures["steps"]) == (3, 3)


def test_a_save_that_fails_ends_the_run_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(checkpoints, "write_rank", full)
    backend = Fake()
    with pytest.raises(Problem) as caught:
        fit(tmp_path, backend, epochs=1500, save_every=500)
    assert (caught.value.code, caught.value.exit_code) == ("io.no_space", 3)
    assert 500 <= len(backend.calls) <= 1000  # at the latest when the next is due
    assert saved(tmp_path) == []


def test_a_signal_saves_and_leaves(tmp_path: Path) -> None:
    class Signalled(Fake):
        def train_step(
            self, micro_batches: Sequence[Batch], trained_tokens: int, lr: float, scale: float
        ) -> StepHandles:
            if len(self.calls) == 4:
                signal.raise_signal(signal.SIGTERM)
                time.sleep(0.2)  # the thread that waits for signals takes note
            return super().train_step(micro_batches, trained_tokens, lr, scale)

    err = io.StringIO()
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Stopped) as caught:
        fit(tmp_path, Signalled(), err, epochs=9, save_every=100)
    assert (caught.value.exit_code, caught.value.values["step"]) == (143, 5)
    assert saved(tmp_path) == [5]
    assert "SIGTERM" in err.getvalue()
    assert signal.getsignal(signal.SIGTERM) is before
    rest = Fake()
    fit(tmp_path, rest, epochs=9, save_every=100)
    assert len(rest.calls) == 4
    assert [e["event"] for e in lines(tmp_path, "event")] == ["stopped"]


@pytest.mark.parametrize("early_stop", [None, 1])
def test_a_signal_after_the_last_step_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, early_stop: int | None
) -> None:
    """It comes when nothing looks for one any more: while the last checkpoint is written, or before there is
    any of the last step."""
    real = Saver.wait

    def wait(saver: Saver) -> None:
        if len(backend.calls) == 4:
            signal.raise_signal(signal.SIGTERM)
            time.sleep(0.2)
            monkeypatch.setattr(Saver, "wait", real)
        real(saver)

    monkeypatch.setattr(Saver, "wait", wait)
    backend, epochs = Fake(scores=[3.0, 4.0]), 4 if early_stop is None else 9
    train = {"save_every": 100, "keep": 1, "eval_every": 2, "early_stop": early_stop}
    with pytest.raises(Stopped) as caught:
        fit(tmp_path, backend, epochs=epochs, **train)
    assert (caught.value.exit_code, caught.value.values["step"]) == (143, 4)
    assert saved(tmp_path) == [2, 4]  # the best and the last


def test_padding_rows_hold_nothing() -> None:
    batch = fill_rows(Rows().batch([1]), 3)
    assert batch.ids.shape == (3, 8)
    assert batch.trained_tokens == 2
    assert batch.segment[1:].max() == 0
