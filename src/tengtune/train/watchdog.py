"""A step that never ends: after half the time its stacks are written down, after all of it the run ends."""

from __future__ import annotations

import faulthandler
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from tengtune.train.metrics import Metrics
from tengtune.ui.console import Console
from tengtune.ui.problems import FAILED_RUN, Problem


class Watchdog:
    """`with Watchdog(...) as watchdog: ... with watchdog.step(n): ...` watches single steps from a thread.

    limit_s: how long a step may take; None watches nothing. stacks: the file that gets the stacks.
    A thread that hangs inside a device's library cannot be woken, so the end is the process's end: what is
    lost is the work since the last checkpoint.
    """

    def __init__(self, limit_s: float | None, stacks: Path, console: Console, metrics: Metrics) -> None:
        self._limit_s, self._stacks, self._console, self._metrics = limit_s, stacks, console, metrics
        self._watched: tuple[int, float] | None = None  # the step under way, and when it began
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    @contextmanager
    def step(self, number: int) -> Iterator[None]:
        """Watch what the block does as part of step `number`."""
        self._watched = (number, time.monotonic())
        try:
            yield
        finally:
            self._watched = None

    def _watch(self) -> None:
        assert self._limit_s is not None
        told = None
        while not self._end.wait(min(self._limit_s / 20, 5.0)):
            watched = self._watched
            if watched is None:
                continue
            number, since = watched
            waited = time.monotonic() - since
            if waited > self._limit_s / 2 and told != watched:
                told = watched
                self._write_stacks(number, waited)
                self._console.warn("train.slow_step", step=number, time=_time(waited), file=self._stacks)
                self._metrics.event(number, "slow", seconds=round(waited, 1), file=str(self._stacks))
            if waited > self._limit_s:
                self._give_up(number, waited)

    def _write_stacks(self, number: int, waited: float) -> None:
        self._stacks.parent.mkdir(parents=True, exist_ok=True)
        with open(self._stacks, "a", encoding="utf-8") as stream:
            now = time.strftime("%Y-%m-%dT%H:%M:%S%z")
            stream.write(f"\n{now} step {number} has taken {waited:.1f} s; the stacks of all threads:\n")
            stream.flush()
            faulthandler.dump_traceback(stream)

    def _give_up(self, number: int, waited: float) -> None:
        self._write_stacks(number, waited)
        self._metrics.event(number, "stopped", reason="stalled", seconds=round(waited, 1))
        problem = Problem(
            "train.stalled", where=self._stacks, exit_code=FAILED_RUN, step=number, time=_time(waited)
        )
        self._console.problem(problem)
        os._exit(problem.exit_code)

    def __enter__(self) -> Watchdog:
        if self._limit_s is not None:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        if self._limit_s is not None:
            self._thread.join()


def _time(seconds: float) -> str:
    return f"{seconds / 60:.1f} min" if seconds >= 60 else f"{seconds:.1f} s"
