"""What happens when numbers stop being numbers: skip, count, say it, and stop before time is wasted."""

from __future__ import annotations

from dataclasses import dataclass

from tengtune.ui.console import Console
from tengtune.ui.problems import FAILED_RUN, Problem

MAX_SKIPPED_IN_A_ROW = 20


@dataclass
class Guard:
    """Counts skipped steps (a non-finite gradient leaves weights and optimizer untouched)."""

    console: Console
    skipped: int = 0
    in_a_row: int = 0

    def check(self, step: int, finite: bool, scale: float, scaled: bool) -> None:
        """Take note of one step; raise Problem when the run cannot recover."""
        if finite:
            self.in_a_row = 0
            return
        self.skipped += 1
        self.in_a_row += 1
        self.console.warn("train.skipped", step=step + 1, scale=f"{scale:g}")
        if scaled and scale <= 1.0:
            raise Problem("train.forward_overflow", exit_code=FAILED_RUN, step=step + 1)
        if not scaled and self.in_a_row >= 3:
            raise Problem("train.not_finite", exit_code=FAILED_RUN, step=step + 1, count=self.in_a_row)
        if self.in_a_row >= MAX_SKIPPED_IN_A_ROW:
            raise Problem("train.not_finite", exit_code=FAILED_RUN, step=step + 1, count=self.in_a_row)
