"""Holding a Ctrl-C back while a framework must not be interrupted."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

SAME_S = 1.0
"""A signal so soon after the first is the same request: a terminal and a launcher both pass it on."""


class Held:
    """A handler that notes that a signal came; a second one ends the process at once."""

    def __init__(self) -> None:
        self.first = 0.0

    @property
    def came(self) -> bool:
        """Whether one has come."""
        return self.first > 0

    def __call__(self, number: int, frame: object) -> None:
        now = time.monotonic()
        if self.came and now - self.first > SAME_S:
            os._exit(128 + signal.SIGINT)
        self.first = self.first or now


@contextmanager
def uninterrupted(*also: signal.Signals) -> Iterator[Held]:
    """Hold a Ctrl-C back until the block has ended, and take the signals `also` for one. What the block is
    given tells whether one came. A process that catches or ignores any of them in its own way keeps that.

    A Ctrl-C in the midst of MindSpore's import comes out as a NameError or an abort: modules that are half
    there are taken for whole.
    """
    held = Held()
    before: dict[signal.Signals, Any] = dict.fromkeys(also, signal.SIG_DFL)
    before[signal.SIGINT] = signal.default_int_handler
    ours = threading.current_thread() is threading.main_thread()
    if not ours or any(signal.getsignal(number) is not handler for number, handler in before.items()):
        yield held
        return
    for number in before:
        signal.signal(number, held)
    try:
        yield held
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if held.came:
            raise KeyboardInterrupt
