"""SIGTERM, SIGHUP and Ctrl-C during training: the first asks for an orderly end, a second ends at once."""

from __future__ import annotations

import os
import signal
import threading
import time
from types import TracebackType
from typing import Any

from tengtune.ui.console import Console

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SAME_S = 1.0
"""A signal so soon after the first is the same request: a terminal and a launcher both pass it on."""


class StopRequest:
    """`with StopRequest(console) as stop: ... if stop.signal: ...`: the signal's number, 0 before it came.

    Python runs signal handlers between two instructions of the main thread, which may be minutes apart while
    a device computes or hangs. The interpreter's wake-up pipe is written at once, and a thread reads it: so
    the answer on the screen, and the second signal, do not wait. Outside the main thread nothing is caught.
    """

    def __init__(self, console: Console) -> None:
        self.signal = 0
        self._console = console
        self._before: dict[int, Any] = {}
        self._thread: threading.Thread | None = None

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is not threading.main_thread():
            return self
        self._pipe = os.pipe()
        os.set_blocking(self._pipe[1], False)
        self._wakeup = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP, and so do we
                self._before[number] = signal.signal(number, _let_the_thread_act)
        self._thread = threading.Thread(target=self._watch, name="signals", daemon=True)
        self._thread.start()
        return self

    def _watch(self) -> None:
        first = 0.0
        while number := os.read(self._pipe[0], 1)[0]:
            if number not in self._before or time.monotonic() - first < SAME_S:
                continue
            if self.signal:
                if self._console.err.isatty():
                    os.write(2, b"\033[?25h\n")  # the cursor, which a progress line may have hidden
                os._exit(128 + number)
            self.signal, first = number, time.monotonic()
            self._console.say("train.stopping", signal=signal.Signals(self.signal).name)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._thread is None:
            return
        signal.set_wakeup_fd(self._wakeup)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.write(self._pipe[1], b"\0")
        self._thread.join()
        for end in self._pipe:
            os.close(end)


def _let_the_thread_act(number: int, frame: object) -> None:
    """A handler there must be, or the signal's own action is taken."""
