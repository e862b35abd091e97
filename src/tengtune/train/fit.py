"""The training loop, one for both back ends: it knows rows, steps and figures, and no framework."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tengtune import memory
from tengtune.backends.base import Backend, StepHandles
from tengtune.recipe import Recipe
from tengtune.train.batch import Batch, fill_rows
from tengtune.train.guard import Guard
from tengtune.train.loss_scale import LossScale
from tengtune.train.metrics import Metrics
from tengtune.train.schedule import Schedule
from tengtune.ui.console import Console
from tengtune.ui.progress import Progress


class Rows(Protocol):
    """What the loop needs of a store (data/store.py)."""

    rows: int
    trained_tokens: int

    def batch(self, rows: Sequence[int]) -> Batch: ...


@dataclass
class Fit:
    """One run of the loop over `store`, with its running figures."""

    backend: Backend
    store: Rows
    schedule: Schedule
    recipe: Recipe
    console: Console
    metrics: Metrics
    heldout: Rows | None = None
    trained_tokens: int = 0
    step_seconds: float = 0.0
    first_loss: float = math.nan
    last_loss: float = math.nan
    _pending: list[tuple[StepHandles, int, int]] = field(default_factory=list)

    def run(self) -> dict[str, Any]:
        """All steps; returns the figures of the run. Raises Problem when the run cannot go on."""
        scale = LossScale(enabled=self.backend.dtype == "float16")
        guard = Guard(self.console)
        with (
            memory.PeakMemory() as peak,
            self.console.progress(self.schedule.steps, "train") as progress,
        ):
            mark = time.perf_counter()
            for step in range(self.schedule.steps):
                handles = self._step(step, scale.value)
                if scale.enabled:  # the next step's scale hangs on this one
                    finite = bool(float(handles.finite))
                    guard.check(step, finite, scale.value, scaled=True)
                    scale.update(finite)
                last = step + 1 == self.schedule.steps
                if (step + 1) % self.recipe.train.log_every == 0 or last:
                    mark = self._log(step, mark, scale, guard, progress, peak)
                if self._evaluate_now(step, last):
                    self._log_heldout(step)
                    mark = time.perf_counter()
        return {
            "steps": self.schedule.steps,
            "trained_tokens": self.trained_tokens,
            "tokens_per_s": round(self.trained_tokens / self.step_seconds, 1),
            "first_loss": self.first_loss,
            "last_loss": self.last_loss,
            "skipped_steps": guard.skipped,
            "peak_memory_bytes": peak.bytes,
        }

    def _step(self, step: int, scale: float) -> StepHandles:
        size = self.recipe.train.micro_batch
        rows = self.schedule.step_rows(step)
        batches = [
            fill_rows(self.store.batch(rows[i : i + size].tolist()), size)  # one shape for all batches
            for i in range(0, len(rows), size)
        ]
        tokens = sum(batch.trained_tokens for batch in batches)
        lr = self.schedule.learning_rate(step)
        handles = self.backend.train_step(batches, max(tokens, 1), lr, scale)
        self._pending.append((handles, step, tokens))
        return handles

    def _log(
        self,
        step: int,
        mark: float,
        scale: LossScale,
        guard: Guard,
        progress: Progress,
        peak: memory.PeakMemory,
    ) -> float:
        """Read the handles of the interval, write its line, show it; the new time mark."""
        loss_sum, tokens, norm = 0.0, 0, math.nan
        for handles, at, count in self._pending:
            finite = bool(float(handles.finite))
            if not scale.enabled:
                guard.check(at, finite, scale.value, scaled=False)
            if finite:
                loss_sum, tokens, norm = (
                    loss_sum + float(handles.loss_sum),
                    tokens + count,
                    float(handles.grad_norm),
                )
        self._pending.clear()
        now = time.perf_counter()
        seconds = now - mark
        self.step_seconds += seconds
        self.trained_tokens += tokens
        loss = loss_sum / tokens if tokens else math.nan
        self.first_loss = loss if math.isnan(self.first_loss) else self.first_loss
        self.last_loss = loss
        lr = self.schedule.learning_rate(step)
        record = {
            "step": step + 1,
            "epoch": round(self.schedule.epoch(step), 4),
            "loss": loss,
            "lr": lr,
            "grad_norm": norm,
            "trained_tokens": tokens,
            "seconds": round(seconds, 4),
            "tokens_per_s": round(tokens / seconds, 1),
            "memory_bytes": memory.anonymous_bytes(),
            "loss_scale": scale.value,
        }
        self.metrics.write(**record)
        self.console.event("train", **record)
        progress.update(
            step + 1,
            loss=f"{loss:.4f}",
            lr=f"{lr:.2e}",
            **{"tok/s": f"{tokens / seconds:.0f}", "GB": f"{peak.bytes / 1e9:.2f}"},
        )
        return now

    def _evaluate_now(self, step: int, last: bool) -> bool:
        every = self.recipe.train.eval_every
        return self.heldout is not None and every is not None and (step + 1) % every == 0 and not last

    def _log_heldout(self, step: int) -> None:
        assert self.heldout is not None
        loss, tokens = heldout_loss(self.backend, self.heldout, self.recipe.train.micro_batch)
        self.metrics.write(step=step + 1, heldout_loss=loss, heldout_tokens=tokens)
        self.console.say("train.heldout", step=step + 1, loss=f"{loss:.4f}")


def heldout_loss(backend: Backend, store: Rows, micro_batch: int) -> tuple[float, int]:
    """Mean cross entropy per label over a whole store, and the number of labels."""
    loss_sum, tokens = 0.0, 0
    for start in range(0, store.rows, micro_batch):
        batch = store.batch(list(range(start, min(start + micro_batch, store.rows))))
        loss_sum += float(backend.eval_step(fill_rows(batch, micro_batch)))
        tokens += batch.trained_tokens
    return loss_sum / max(tokens, 1), tokens
