"""Progress in bytes for work of several threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tengtune.ui import language
from tengtune.ui.console import Console

UNIT = 10**6


@contextmanager
def meter(console: Console, total: int, title: str) -> Iterator[Callable[[int], None]]:
    """Give `advance(bytes)`, which may be called from any thread and with a negative number."""
    lock, done, units = threading.Lock(), 0, -(-total // UNIT)
    with console.progress(units, language.say(title)) as bar:

        def advance(count: int) -> None:
            nonlocal done
            with lock:
                before, done = done, done + count
                if before // UNIT != done // UNIT:
                    bar.update(done // UNIT)

        yield advance
        if 0 < done // UNIT < units:  # the last part of a unit, and what needed no reading
            bar.update(units)
