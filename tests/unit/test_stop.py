"""Signals that ask for an orderly end."""

from __future__ import annotations

import io
import signal
import threading
import time
from collections.abc import Callable

import pytest
from tests.fit_lab import console

from tengtune.train.stop import StopRequest


def until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.001)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_is_a_request_and_is_answered(number: signal.Signals) -> None:
    before, err = signal.signal(number, signal.SIG_DFL), io.StringIO()
    try:
        with StopRequest(console(err)) as stop:
            assert stop.signal == 0
            signal.raise_signal(number)
            until(lambda: "once more" in err.getvalue())
            assert stop.signal == number
            signal.raise_signal(number)  # at once again: a launcher passing the same one on
            time.sleep(0.05)
            assert err.getvalue().count("once more") == 1
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, before)


def test_an_ignored_signal_stays_ignored() -> None:
    """nohup ignores SIGHUP, so that a closed terminal does not end the run."""
    before, err = signal.signal(signal.SIGHUP, signal.SIG_IGN), io.StringIO()
    try:
        with StopRequest(console(err)) as stop:
            signal.raise_signal(signal.SIGHUP)
            signal.raise_signal(signal.SIGTERM)  # the pipe keeps the order
            until(lambda: stop.signal)
            assert stop.signal == signal.SIGTERM
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_thread_beside_the_main_one_catches_nothing() -> None:
    before = signal.getsignal(signal.SIGTERM)
    seen: list[object] = []

    def work() -> None:
        with StopRequest(console()) as stop:
            seen.extend([stop.signal, signal.getsignal(signal.SIGTERM)])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [0, before]
