"""Bringing a Ctrl-C to Python's handler, past the one that MindSpore puts in its place.

Each graph that MindSpore compiles or runs sets a handler of SIGINT that sends the process a SIGTERM. So the
signal is blocked, in the main thread and in all that are started from there, and a thread of ours waits for
it. What is started as a process of its own inherits the block, and must not need the signal.
"""

from __future__ import annotations

import _thread
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tengtune.backends.choice import choose
from tengtune.recipe import Recipe
from tengtune.ui.problems import Problem

WAKE = signal.SIGURG
"""Ends the wait of a system call, as the blocked signal does not; nothing else means anything by it."""
AGAIN_S = 0.1
"""A wait that was about to begin when it was to be ended has begun by then."""


@contextmanager
def relayed(recipe: Recipe) -> Iterator[None]:
    """Inside the block a Ctrl-C calls Python's handler though MindSpore computes; where Python has none, it
    ends the process. To be entered before numpy is imported, whose threads could take the signal else.

    Nothing changes with another back end, in another thread than the main one, or where it is ignored.
    """
    ours = threading.current_thread() is threading.main_thread()
    if not ours or not _on_mindspore(recipe) or signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, WAKE))
    wake = signal.signal(WAKE, lambda number, frame: None)
    thread = threading.Thread(target=_relay, args=(threading.get_ident(),), name="relay", daemon=True)
    thread.start()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (WAKE,))
    try:
        yield
    finally:
        signal.pthread_kill(thread.ident or 0, WAKE)
        thread.join()
        signal.signal(signal.SIGINT, signal.getsignal(signal.SIGINT))  # takes MindSpore's away
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        signal.signal(WAKE, wake)


def _on_mindspore(recipe: Recipe) -> bool:
    try:
        return choose(recipe) == "mindspore"
    except Problem:  # there is no back end, which is told where it is needed
        return False


def _relay(main: int) -> None:
    """Wait for Ctrl-C after Ctrl-C, until this thread itself is sent `WAKE`."""
    while signal.sigwait((signal.SIGINT, WAKE)) == signal.SIGINT:
        if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
            os._exit(128 + signal.SIGINT)
        _thread.interrupt_main(signal.SIGINT)
        signal.pthread_kill(main, WAKE)
        time.sleep(AGAIN_S)
        signal.pthread_kill(main, WAKE)
