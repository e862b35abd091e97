"""The loss scale that keeps float16 gradients from vanishing."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class LossScale:
    """Dynamic loss scaling as mindformers' Qwen recipe has it: from 65536, halved at an overflow, doubled
    after `window` good steps. With `enabled` False the scale is 1 and stays there."""

    enabled: bool
    value: float = 65536.0
    window: int = 1000
    good_steps: int = 0

    def __post_init__(self) -> None:
        if not self.enabled:
            self.value = 1.0

    def update(self, finite: bool) -> None:
        """Take note of one step."""
        if not self.enabled:
            return
        if not finite:
            self.value = max(self.value / 2, 1.0)
            self.good_steps = 0
            return
        self.good_steps += 1
        if self.good_steps == self.window:
            self.value = min(self.value * 2, 2.0**24)
            self.good_steps = 0
