"""What happens when numbers stop being numbers: skip, count, say it, go back, stop before time is wasted."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field
from typing import Literal

from tengtune.train.loss_scale import LossScale
from tengtune.train.metrics import Metrics
from tengtune.ui.console import Console
from tengtune.ui.problems import FAILED_RUN, Problem

Policy = Literal["skip", "rewind", "stop"]

BAD_IN_A_ROW = 3
"""So many bad steps in a row are no single bad row: the weights themselves are spoilt."""
OVERFLOWS_IN_A_ROW = 20
"""The same under a loss scale, whose search for its value takes steps by design."""
MAX_REWINDS = 3

RECENT, ENOUGH = 32, 8
"""Steps whose losses a new one is held against, and how many there must be."""


@dataclass
class Health:
    """What went wrong so far. in_a_row: bad steps up to now; recent: losses of the last good steps;
    spiked: the last good step was a spike."""

    skipped: int = 0
    in_a_row: int = 0
    rewinds: int = 0
    spikes: int = 0
    spiked: bool = False
    recent: list[float] = field(default_factory=list)


@dataclass
class Guard:
    """Judges each step by its figures. A step whose gradient is not finite left the weights untouched.

    skip: go on; after BAD_IN_A_ROW such steps stop. rewind: then go back instead. stop: at the first.
    """

    policy: Policy
    health: Health
    console: Console
    metrics: Metrics

    def check(self, step: int, loss: float, finite: bool, scale: LossScale) -> bool:
        """Take note of step number `step` (from 1); True when the weights should go back to a checkpoint.

        Raises Problem when the run cannot or may not go on; ForwardOverflow when no loss scale can help.
        """
        health = self.health
        if finite and math.isfinite(loss):
            health.in_a_row = 0
            self._look_for_a_spike(step, loss)
            return False
        health.skipped += not finite
        health.in_a_row += 1
        self.console.warn("train.skipped", step=step, scale=f"{scale.value:g}")
        self.metrics.event(step, "skipped", scale=scale.value)
        if scale.enabled and not finite:
            if scale.value <= 1.0:
                raise ForwardOverflow(step)
            if health.in_a_row < OVERFLOWS_IN_A_ROW:
                return False
        elif self.policy != "stop" and health.in_a_row < BAD_IN_A_ROW:
            return False
        if self.policy == "rewind" and health.rewinds < MAX_REWINDS:
            return True
        self.metrics.event(step, "stopped", reason="not finite")
        raise Problem("train.not_finite", exit_code=FAILED_RUN, step=step, count=health.in_a_row)

    def rewound(self, step: int, back_to: int) -> None:
        """Take note that after step `step` the weights went back to those of step `back_to`."""
        self.health.rewinds += 1
        self.health.in_a_row = 0
        self.console.warn("train.rewound", step=step, back_to=back_to, first=back_to + 1)
        self.metrics.event(step, "rewound", back_to=back_to)

    def _look_for_a_spike(self, step: int, loss: float) -> None:
        """A loss far above the median of the recent ones, measured in their own scatter."""
        health = self.health
        spike = False
        if len(health.recent) >= ENOUGH:
            median = statistics.median(health.recent)
            # 1.4826 makes the median deviation of normal data their standard deviation.
            scatter = 1.4826 * statistics.median(abs(each - median) for each in health.recent)
            spike = loss > median + max(8 * scatter, 0.5 * abs(median))
            if spike and not health.spiked:
                health.spikes += 1
                self.console.warn("train.spike", step=step, loss=f"{loss:.4f}", median=f"{median:.4f}")
                self.metrics.event(step, "spike", loss=loss, median=median)
        health.spiked = spike
        health.recent = [*health.recent, loss][-RECENT:]


class ForwardOverflow(Exception):
    """At step `step` float16 overflowed although the loss scale is 1."""

    def __init__(self, step: int) -> None:
        super().__init__(f"step {step}")
        self.step = step
