"""Holding a Ctrl-C back while a framework must not be interrupted."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

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
def uninterrupted() -> Iterator[Held]:
    """Hold a Ctrl-C back until the block has ended. What the block is given tells whether one came. A process
    that catches or ignores it in its own way keeps that.

    A Ctrl-C in the midst of MindSpore's import comes out as a NameError or an abort: modules that are half
    there are taken for whole.
    """
    held = Held()
    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield held
        return
    signal.signal(signal.SIGINT, held)
    try:
        yield held
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if held.came:
            raise KeyboardInterrupt
