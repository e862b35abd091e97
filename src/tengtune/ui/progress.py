"""The progress line: what is done, loss, tokens per second, time left, memory."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tengtune.ui import language

if TYPE_CHECKING:
    from tengtune.ui.console import Console


class Progress:
    """`with console.progress(total, title) as bar: bar.update(done, loss=..., ...)`.

    Figures are named as the field names them in every language (loss, lr, GB); the rest is in the user's.

    On a terminal one live line; elsewhere (a log file) a plain line at most every ten seconds.
    """

    def __init__(self, console: Console, total: int, title: str, done: int = 0) -> None:
        self.console, self.total, self.title, self._before = console, total, title, done
        self.start = time.monotonic()
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
        return self

    def update(self, done: int, **figures: object) -> None:
        """Show `done` of `total` and the given figures (already formatted)."""
        text = "  ".join(f"{name} {value}" for name, value in figures.items())
        if self._live is not None:
            self._live.update(self._task, completed=done, figures=text)
            return
        now = time.monotonic()
        if self.console.mode == "normal" and (done >= self.total or now - self._last_line >= 10):
            self._last_line = now
            left = (now - self.start) / max(done - self._before, 1) * (self.total - done)
            parts = (
                f"{self.title} {done}/{self.total}",
                text,
                language.say("ui.time_left", time=_clock(left)),
            )
            self.console._line(self.console.err, "  ".join(part for part in parts if part))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()


def _clock(seconds: float) -> str:
    """Seconds as h:mm:ss or m:ss."""
    whole = int(seconds)
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"
