"""The progress line: what is done, loss, tokens per second, time left, memory. And the line of a wait."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tengtune.ui import language

if TYPE_CHECKING:
    from tengtune.ui.console import Console


EVERY_S = 10.0
"""A log file gets no more lines of progress than one in so many seconds, and no fewer while something is
waited for."""


class Waiting:
    """`with console.waiting(what): ...` says every EVERY_S what is waited for, and how long already.

    A thread says it: what is waited for may be one call of minutes. What is done sooner is not mentioned.
    `end` ends it before the block does.
    """

    def __init__(self, console: Console, what: str) -> None:
        self._console, self._what = console, what
        self._start, self._over = time.monotonic(), threading.Event()
        self._thread = threading.Thread(target=self._tell, name="waiting", daemon=True)

    def __enter__(self) -> Waiting:
        if self._console.mode == "normal":
            self._thread.start()
        return self

    def _tell(self) -> None:
        while not self._over.wait(EVERY_S):
            passed = _clock(time.monotonic() - self._start)
            self._console.say("ui.waiting", what=self._what, time=passed)

    def end(self) -> None:
        """Nothing is waited for any more."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()


class Progress:
    """`with console.progress(total, title) as bar: bar.update(done, loss=..., ...)`.

    Figures are named as the field names them in every language (loss, lr, GB); the rest is in the user's.

    On a terminal one live line; elsewhere (a log file) a plain line at most every EVERY_S. Until the first
    update, for which graphs and kernels may have to be compiled, it says that it waits for that; the time
    left is reckoned from there.
    """

    def __init__(self, console: Console, total: int, title: str, done: int = 0) -> None:
        self.console, self.total, self.title, self._before = console, total, title, done
        self._first = Waiting(console, language.say("ui.first", title=title))
        self._began: tuple[float, int] | None = None  # when the first update came, and what was done by then
        self._last_line = float("-inf")
        self._live: Any = None
        self._task: Any = None

    def __enter__(self) -> Progress:
        if self.console.mode == "normal" and self.console.err.isatty():
            from rich.console import Console as RichConsole
            from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as RichProgress

            self._live = RichProgress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                TextColumn("{task.completed}/{task.total} {task.fields[figures]}"),
                TimeRemainingColumn(),
                console=RichConsole(file=self.console.err),
            )
            self._live.start()
            self._task = self._live.add_task(self.title, total=self.total, completed=self._before, figures="")
        self._first.__enter__()
        return self

    def update(self, done: int, **figures: object) -> None:
        """Show `done` of `total` and the given figures (already formatted)."""
        self._first.end()
        began, before = self._began = self._began or (time.monotonic(), done)
        text = "  ".join(f"{name} {value}" for name, value in figures.items())
        if self._live is not None:
            self._live.update(self._task, completed=done, figures=text)
            return
        now = time.monotonic()
        if self.console.mode == "normal" and (done >= self.total or now - self._last_line >= EVERY_S):
            self._last_line = now
            parts = [f"{self.title} {done}/{self.total}", text]
            if done > before:
                left = (now - began) / (done - before) * (self.total - done)
                parts.append(language.say("ui.time_left", time=_clock(left)))
            self.console._line(self.console.err, "  ".join(part for part in parts if part))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._first.end()
        if self._live is not None:
            self._live.stop()


def _clock(seconds: float) -> str:
    """Seconds as h:mm:ss or m:ss."""
    whole = int(seconds)
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"
