"""Loading a framework without being interrupted."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold a Ctrl-C back until the block has ended. One in the midst of MindSpore's import comes out as a
    NameError or an abort, for modules that are half there are taken for whole. A second one ends the process
    at once."""
    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    came = False

    def note(number: int, frame: object) -> None:
        nonlocal came
        if came:
            os._exit(128 + number)
        came = True

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if came:
            raise KeyboardInterrupt
