"""What is measured inside the process that trains, the same for every contender."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from tengtune.memory import PeakMemory, anonymous_bytes


@dataclass
class Measured:
    """Training alone, without imports, loading and tokenizing.

    seconds by the wall, cpu_s of the process; loaded_bytes and peak_bytes: anonymous RSS just before
    training and at its highest. loss is the mean over the steps.
    """

    seconds: float
    cpu_s: float
    loaded_bytes: int
    peak_bytes: int
    trained_tokens: int
    loss: float

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))


def measured(train: Callable[[], tuple[int, float]]) -> Measured:
    """Run `train`, which returns (trained tokens, loss), and measure it."""
    loaded = anonymous_bytes()
    wall, cpu = time.perf_counter(), time.process_time()
    with PeakMemory(interval_s=0.01) as peak:
        tokens, loss = train()
    return Measured(time.perf_counter() - wall, time.process_time() - cpu, loaded, peak.bytes, tokens, loss)
