"""The training loop, one for both back ends: it knows rows, steps and figures, and no framework."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tengtune import memory
from tengtune.backends.base import Backend, StepHandles
from tengtune.recipe import Recipe
from tengtune.train.batch import Batch, fill_rows
from tengtune.train.guard import ForwardOverflow, Guard
from tengtune.train.metrics import Metrics
from tengtune.train.saver import Saver
from tengtune.train.schedule import Schedule
from tengtune.train.state import Interval, State
from tengtune.train.stop import StopRequest
from tengtune.train.watchdog import Watchdog
from tengtune.ui import language
from tengtune.ui.console import Console
from tengtune.ui.problems import FAILED_RUN, Problem, Stopped


class Rows(Protocol):
    """What the loop needs of a store (data/store.py)."""

    rows: int
    trained_tokens: int
    labels_per_row: npt.NDArray[np.int32]

    def batch(self, rows: Sequence[int]) -> Batch: ...


@dataclass
class Fit:
    """The steps of a run that `state` does not have yet, over the rows of `store`.

    With several ranks each runs this loop over its share of every step's rows, and all decide alike: by the
    step's number, or by a figure of all ranks.
    """

    backend: Backend
    store: Rows
    schedule: Schedule
    recipe: Recipe
    console: Console
    metrics: Metrics
    saver: Saver
    state: State
    heldout: Rows | None = None
    _pending: list[tuple[StepHandles, int, int]] = field(default_factory=list)  # with step and tokens

    def run(self) -> dict[str, Any]:
        """All steps that are left; returns the figures of the whole run.

        Raises Problem when the run cannot go on, Stopped when it was asked to end and has saved.
        """
        train, state = self.recipe.train, self.state
        limit_s = None if train.stall_minutes is None else 60 * train.stall_minutes
        self._ranks = self.backend.ranks
        stacks = self.recipe.folder / "log" / f"stacks_rank_{self._ranks.rank}.txt"
        self._guard = Guard(train.on_nan, state.health, self.console, self.metrics)
        with ExitStack() as stopping:  # before a progress line says that the training has begun
            self._stop = stopping.enter_context(StopRequest(self.console))
            with (
                memory.PeakMemory() as self._peak,
                self.console.progress(
                    self.schedule.steps, language.say("train.progress"), state.step
                ) as self._progress,
                Watchdog(limit_s, stacks, self.console, self.metrics) as self._watchdog,
                self.saver,
            ):
                self._steps()
                self._refuse_nothing()
                if self.backend.sharded and self.saver.newest != state.step:
                    self.saver.save(state, self.backend.named_shards)  # what was trained is taken from it
                self.saver.wait()
                stopping.close()
                # One that came after the last step, while its checkpoint was written, has stopped nothing
                # yet; from here on a signal ends the process by itself.
                if stop := self._stop_asked(True):
                    self._save_and_leave(stop)
        return self._figures()

    def _steps(self) -> None:
        """Take every step that is left."""
        state = self.state
        self._mark = time.perf_counter()
        # A signal may have ended the run before in the midst of its evaluation.
        if self._evaluation_due() and state.best.evaluated < state.step and self._evaluate():
            self.saver.save(state, self.backend.named_shards)
        while state.step < self.schedule.steps and not self._enough():
            self._step()
            self._after_step()
        if state.interval.tokens:
            self._log()

    def _batches(self, number: int) -> list[Batch]:
        """This rank's micro batches of step `number`, counted from 0; of one shape, and as many as any other
        rank has, if need be with rows of padding only."""
        rows, world, size = self.schedule.step_rows(number), self._ranks.world, self.recipe.train.micro_batch
        mine, most = rows[self._ranks.rank :: world], -(-len(rows) // world)
        return [fill_rows(self.store.batch(mine[i : i + size].tolist()), size) for i in range(0, most, size)]

    def _step(self) -> None:
        number = self.state.step
        batches = self._batches(number)
        tokens = int(self.store.labels_per_row[self.schedule.step_rows(number)].sum())
        lr = self.schedule.learning_rate(number)
        with self._watchdog.step(number + 1):
            handles = self.backend.train_step(batches, max(tokens, 1), lr, self.state.scale.value)
        self.state.step += 1
        self._pending.append((handles, self.state.step, tokens))

    def _after_step(self) -> None:
        """Read, log, evaluate, save, as far as each is due; end if that was asked for."""
        step, train = self.state.step, self.recipe.train
        last = step == self.schedule.steps
        log = step % train.log_every == 0 or last
        save = step % train.save_interval(self.schedule.steps) == 0 or last
        evaluate = self._evaluation_due()
        stop = self._stop_asked(log or save or evaluate)
        # A loss scale is read at each step, because the next one hangs on it; else as seldom as possible.
        if (log or save or evaluate or stop or self.state.scale.enabled) and self._settle():
            self._rewind()
            return
        if log:
            self._log()
        best = evaluate and self._evaluate()
        stop = stop or self._stop_asked(evaluate)
        if stop:
            self._save_and_leave(stop)
        # In a row of bad steps the weights are not to be trusted, unless they were scored and never better:
        # a bad step leaves them as they were.
        if best or (save and not self.state.health.in_a_row):
            self.saver.save(self.state, self.backend.named_shards)
        self.saver.check()

    def _stop_asked(self, together: bool) -> int:
        """The signal that asks for an end, 0 without one. Ranks must agree on it, which they do where all
        come by: `together`."""
        if self._ranks.world == 1:
            return self._stop.signal
        return self._ranks.most(self._stop.signal) if together else 0

    def _settle(self) -> bool:
        """Read what the steps since the last time gave; whether the weights should go back."""
        state, interval = self.state, self.state.interval
        pending, self._pending = self._pending, []
        for handles, step, tokens in pending:
            with self._watchdog.step(step):
                finite, loss_sum = bool(float(handles.finite)), float(handles.loss_sum)
            try:
                back = self._guard.check(step, loss_sum / max(tokens, 1), finite, state.scale)
            except ForwardOverflow:
                raise self._overflow(step) from None
            except Problem as problem:
                raise self._spoilt(step) or problem from None
            state.scale.update(finite)
            state.applied += finite
            if finite and math.isfinite(loss_sum):
                interval.loss_sum += loss_sum
                interval.tokens += tokens
                interval.grad_norm = float(handles.grad_norm)
            if back:
                return True
        interval.seconds += self._lap()
        return False

    def _overflow(self, step: int) -> Problem:
        """What to tell when no loss scale helps: where in the model step `step` leaves float16's range."""
        place = self._place(step)
        self.metrics.event(step, "stopped", reason="overflow", place=place)
        if place is None:
            return Problem("train.backward_overflow", exit_code=FAILED_RUN, step=step)
        return Problem("train.forward_overflow", exit_code=FAILED_RUN, step=step, place=place)

    def _place(self, step: int) -> str | None:
        """The first part of the model that is not finite on the way forward of this rank's rows of a step."""
        # All batches, though the first may tell: the ranks may need each other for each.
        places = [self.backend.first_overflow(batch) for batch in self._batches(step - 1)]
        return next((place for place in places if place), None)

    def _spoilt(self, step: int) -> Problem | None:
        """What to tell where no step has changed a weight yet and the way forward is not finite: then the
        model came so."""
        place = None if self.state.applied else self._place(step)
        if place is None:
            return None
        folder = self.recipe.model_folder
        values = {"step": step, "place": place, "folder": shlex.quote(str(folder))}
        return Problem("train.model_not_finite", where=folder, exit_code=FAILED_RUN, **values)

    def _refuse_nothing(self) -> None:
        """Problem when the last step is done and all were skipped: the weights are those of the beginning."""
        state = self.state
        if state.step == self.schedule.steps and not state.applied:
            self.metrics.event(state.step, "stopped", reason="nothing applied")
            scale = f"{state.scale.value:g}"
            raise Problem("train.nothing_applied", exit_code=FAILED_RUN, steps=state.step, scale=scale)

    def _rewind(self) -> None:
        """Back to the weights of the last checkpoint; the rows of the steps since then are left out."""
        self.saver.wait()
        self._ranks.most(0)  # so that the checkpoint is on the disk for all
        state, checkpoint = self.state, self.saver.last(self.console)
        if checkpoint is None:
            problem = Problem("train.nothing_to_rewind_to", exit_code=FAILED_RUN, step=state.step)
            raise self._spoilt(state.step) or problem
        self._pending.clear()
        before = checkpoint.state
        self.backend.load_shards(checkpoint.shards(), before.applied)
        self._guard.rewound(state.step, before.step)
        state.applied, state.trained_tokens, state.scale = before.applied, before.trained_tokens, before.scale
        state.health.recent = before.health.recent
        state.interval = Interval(seconds=state.interval.seconds + self._lap())

    def _log(self) -> None:
        """Write the interval's line, show it, and begin the next."""
        state, interval = self.state, self.state.interval
        loss, seconds, tokens = interval.loss, interval.seconds, interval.tokens
        state.seconds += seconds
        state.trained_tokens += tokens
        state.first_loss = loss if state.first_loss is None else state.first_loss
        state.last_loss = state.last_loss if loss is None else loss
        lr = self.schedule.learning_rate(state.step - 1)
        record = {
            "step": state.step,
            "epoch": round(self.schedule.epoch(state.step - 1), 4),
            "loss": loss,
            "lr": lr,
            "grad_norm": interval.grad_norm,
            "trained_tokens": tokens,
            "seconds": round(seconds, 4),
            "tokens_per_s": round(tokens / seconds, 1),
            "memory_bytes": memory.anonymous_bytes(),
            "loss_scale": state.scale.value,
        }
        state.interval = Interval()
        state.peak_memory_bytes = max(state.peak_memory_bytes, self._peak.bytes)
        self.metrics.write(**record)
        self.console.event("train", **record)
        self._progress.update(
            state.step,
            loss="-" if loss is None else f"{loss:.4f}",
            lr=f"{lr:.2e}",
            **{"tok/s": f"{tokens / seconds:.0f}", "GB": f"{self._peak.bytes / 1e9:.2f}"},
        )

    def _evaluation_due(self) -> bool:
        """After the last step the evaluate step scores, unless the choice of weights hangs on it."""
        train, step = self.recipe.train, self.state.step
        if self.heldout is None or train.eval_every is None or step == 0:
            return False
        if step == self.schedule.steps:
            return train.early_stop is not None
        return step % train.eval_every == 0

    def _evaluate(self) -> bool:
        """Score the held-out rows, shared out over the ranks; whether they were never scored better. A signal
        cuts it short."""
        assert self.heldout is not None
        ranks, size, step = self._ranks, self.recipe.train.micro_batch, self.state.step
        loss_sum, tokens = 0.0, self.heldout.trained_tokens
        for start in range(0, self.heldout.rows, size * ranks.world):
            if self._stop_asked(True):
                return False
            first = start + ranks.rank * size
            mine = range(first, min(first + size, self.heldout.rows))  # maybe none: padding, then
            with self._watchdog.step(step):
                loss_sum += float(self.backend.eval_step(fill_rows(self.heldout.batch(mine), size)))
        loss = ranks.total([loss_sum])[0] / max(tokens, 1)
        self._lap()
        self.metrics.write(
            step=step, heldout_loss=loss if math.isfinite(loss) else None, heldout_tokens=tokens
        )
        self.console.say("train.heldout", step=step, loss=f"{loss:.4f}")
        return self.state.best.take(step, loss)

    def _enough(self) -> bool:
        patience = self.recipe.train.early_stop
        return patience is not None and self.state.best.worse >= patience

    def _save_and_leave(self, number: int) -> None:
        """Save what stands, wait until it is on the disk, and leave with the exit code of signal `number`."""
        step = self.state.step
        self.metrics.event(step, "stopped", reason="signal", signal=number)
        if self.saver.newest != step:
            self.saver.save(self.state, self.backend.named_shards)
        self.saver.wait()
        raise Stopped("train.stopped", exit_code=128 + number, step=step, steps=self.schedule.steps)

    def _lap(self) -> float:
        """Seconds since the last call."""
        before, self._mark = self._mark, time.perf_counter()
        return self._mark - before

    def _figures(self) -> dict[str, Any]:
        state = self.state
        return {
            "steps": state.step,
            "planned_steps": self.schedule.steps,
            "trained_tokens": state.trained_tokens,
            "tokens_per_s": round(state.trained_tokens / max(state.seconds, 1e-9), 1),
            "first_loss": state.first_loss,
            "last_loss": state.last_loss,
            "best_heldout_loss": state.best.loss,
            "best_step": state.best.step,
            "skipped_steps": state.health.skipped,
            "loss_spikes": state.health.spikes,
            "rewinds": state.health.rewinds,
            "events": dict(self.metrics.events),
            "saving_seconds": round(self.saver.seconds, 3),
            "peak_memory_bytes": state.peak_memory_bytes,
        }


def batches_of(store: Rows, micro_batch: int) -> Iterator[Batch]:
    """All rows of a store in order, in batches of one shape."""
    for start in range(0, store.rows, micro_batch):
        batch = store.batch(list(range(start, min(start + micro_batch, store.rows))))
        yield fill_rows(batch, micro_batch)


def heldout_loss(backend: Backend, store: Rows, micro_batch: int) -> tuple[float, int]:
    """Mean cross entropy per label over a whole store, and the number of labels."""
    loss_sum, tokens = 0.0, 0
    for batch in batches_of(store, micro_batch):
        loss_sum += float(backend.eval_step(batch))
        tokens += batch.trained_tokens
    return loss_sum / max(tokens, 1), tokens
