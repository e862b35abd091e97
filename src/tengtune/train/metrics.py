"""metrics.jsonl: one line a logged step and one an event, the truth from which every curve is drawn.

A line with "loss" is an interval of steps up to "step", one with "heldout_loss" an evaluation after it, one
with "event" something notable: resumed, skipped, spike, rewound, slow, stopped.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from tengtune import files
from tengtune.json_file import objects
from tengtune.ui.problems import os_errors

FIGURES = (
    "loss", "heldout_loss", "lr", "grad_norm", "seconds", "tokens_per_s", "memory_bytes", "loss_scale",
)  # fmt: skip
"""What a record may hold that is a number, or null where there was none."""
LARGEST, MOST_STEPS = 3.4028234e38, 2**53
"""Figures are what a float32 holds, as they are computed, and steps what a float64 counts: more is damage."""
FEWEST = 5
"""Logged losses over which a mean is taken, at least."""


class Metrics:
    """Appends records to `metrics.jsonl`, each at once, so that a killed run keeps what it logged.

    A run that goes on after step `step` first cuts the figures of later steps, which it will make again.
    Events stay: they did happen. With `step` 0 the file starts empty. damaged: lines of it that were no
    records, and are gone.
    """

    def __init__(self, path: Path, step: int = 0) -> None:
        self._path = path
        found = list(objects(path, is_record)) if step and path.exists() else []
        kept = [r for r in found if r is not None and (r["step"] <= step or "event" in r)]
        self.damaged = found.count(None)
        self.events = Counter(str(record["event"]) for record in kept if "event" in record)
        files.write_text(path, "".join(_line(record) for record in kept))
        self._stream = open(path, "ab", buffering=0)  # noqa: SIM115 (closed by close())

    def write(self, **record: Any) -> None:
        """Append one record; Problem when the disk does not take it."""
        data = _line(record).encode()
        with os_errors(self._path):
            while data:
                data = data[self._stream.write(data) :]

    def event(self, step: int, kind: str, **values: Any) -> None:
        """Append something notable that happened at step `step`."""
        self.events[kind] += 1
        self.write(step=step, event=kind, time=time.strftime("%Y-%m-%dT%H:%M:%S%z"), **values)

    def sync(self) -> None:
        """Flush to the disk what was written."""
        with os_errors(self._path):
            os.fsync(self._stream.fileno())

    def close(self) -> None:
        """Close the file."""
        self._stream.close()


def read(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a metrics file; damaged lines, and a last one cut by a kill, are left out."""
    return (record for record in objects(path, is_record) if record is not None)


def course(losses: Sequence[float]) -> tuple[float, float, int] | None:
    """The mean of the first and of the last logged losses, and of how many: a tenth of them, FEWEST at least.
    None with too few: the loss of one batch says more of its rows than of the training."""
    count = max(FEWEST, len(losses) // 10)
    if len(losses) < 2 * count:
        return None
    return fmean(losses[:count]), fmean(losses[-count:]), count


def is_record(value: dict[str, Any]) -> bool:
    """Whether a JSON object is a record as Metrics writes them."""
    figures = [value[key] for key in FIGURES if value.get(key) is not None]
    step = value.get("step")
    return (
        type(step) is int
        and 0 <= step <= MOST_STEPS
        and isinstance(value.get("event", ""), str)
        and type(value.get("seconds", 0.0)) in (int, float)
        and all(type(figure) in (int, float) and abs(figure) <= LARGEST for figure in figures)
    )


def _line(record: dict[str, Any]) -> str:
    return json.dumps(record, allow_nan=False) + "\n"
