"""Which rows make which step, and the learning rate of each step."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tengtune.recipe import Recipe


@dataclass(frozen=True)
class Schedule:
    """The whole run, step by step, as a pure function of its fields: nothing to save but the step.

    rows: packed rows in the training store. A step takes `global_batch` rows of the epoch's own
    permutation; an epoch's last step takes what is left. `steps` in all.
    """

    rows: int
    global_batch: int
    steps: int
    seed: int
    lr: float
    lr_schedule: str
    lr_min_ratio: float
    warmup_steps: int

    @property
    def steps_per_epoch(self) -> int:
        return -(-self.rows // self.global_batch)

    def step_rows(self, step: int) -> npt.NDArray[np.int64]:
        """Row numbers of step `step` (from 0)."""
        epoch, within = divmod(step, self.steps_per_epoch)
        order = np.random.Generator(np.random.PCG64([self.seed, epoch])).permutation(self.rows)
        return order[within * self.global_batch : (within + 1) * self.global_batch]

    def epoch(self, step: int) -> float:
        """Epochs done after step `step`."""
        return (step + 1) / self.steps_per_epoch

    def learning_rate(self, step: int) -> float:
        """Linear warm-up from lr/warmup_steps, then cosine or linear down to lr x lr_min_ratio, or
        constant. The last step has the lowest rate."""
        if step < self.warmup_steps:
            return self.lr * (step + 1) / self.warmup_steps
        if self.lr_schedule == "constant":
            return self.lr
        left = max(self.steps - 1 - self.warmup_steps, 1)
        done = min((step - self.warmup_steps) / left, 1.0)
        share = 0.5 * (1 + math.cos(math.pi * done)) if self.lr_schedule == "cosine" else 1 - done
        low = self.lr * self.lr_min_ratio
        return low + (self.lr - low) * share


def plan(recipe: Recipe, rows: int) -> Schedule:
    """The schedule of a run over `rows` packed rows."""
    train = recipe.train
    per_epoch = -(-rows // train.global_batch)
    steps = train.max_steps or max(math.ceil(train.epochs * per_epoch - 1e-9), 1)
    return Schedule(
        rows=rows,
        global_batch=train.global_batch,
        steps=steps,
        seed=recipe.seed,
        lr=train.learning_rate,
        lr_schedule=train.lr_schedule,
        lr_min_ratio=train.lr_min_ratio,
        warmup_steps=math.ceil(train.warmup_ratio * steps),
    )
