"""A Ctrl-C where a framework puts its own handler in Python's place."""

from __future__ import annotations

import signal

import pytest
from tests.fault_lab import python

from tengtune.backends.relay import relayed
from tengtune.recipe import Recipe

SETTING = """
import ctypes, os, signal, sys, threading, time
from tengtune.backends import relay
relay.choose = lambda recipe: "mindspore"
signal.alarm(30)  # ends the process if no wait is ended

def theirs():
    "As MindSpore does: a handler of C's own, here the default action, in place of Python's."
    ctypes.CDLL(None).signal(signal.SIGINT, None)

def ask(seconds=0.0):
    time.sleep(seconds)
    os.kill(os.getpid(), signal.SIGINT)
"""


def ended(script: str) -> tuple[int, str, str]:
    done = python(SETTING + script)
    return done.returncode, done.stdout, done.stderr


def test_pythons_handler_is_called_whatever_stands_in_its_place() -> None:
    script = """
with relay.relayed(None):
    theirs()
    for _ in range(2):
        try:
            ask()
            time.sleep(60)
        except KeyboardInterrupt:
            print("caught")
try:
    ask()  # after the block it is Python's again
    time.sleep(60)
except KeyboardInterrupt:
    print("caught", [thread.name for thread in threading.enumerate()])
"""
    assert ended(script) == (0, "caught\ncaught\ncaught ['MainThread']\n", "")


def test_a_wait_for_input_is_ended() -> None:
    script = """
reading, writing = os.pipe()
with relay.relayed(None):
    theirs()
    threading.Thread(target=ask, args=(0.3,), daemon=True).start()
    try:
        os.read(reading, 1)
    except KeyboardInterrupt:
        print("caught")
"""
    assert ended(script) == (0, "caught\n", "")


def test_without_a_handler_of_pythons_the_process_ends() -> None:
    script = """
signal.signal(signal.SIGINT, signal.SIG_DFL)
with relay.relayed(None):
    ask()
    time.sleep(60)
"""
    assert ended(script) == (130, "", "")


def test_where_it_is_ignored_it_stays_so() -> None:
    script = """
signal.signal(signal.SIGINT, signal.SIG_IGN)
with relay.relayed(None):
    ask()
    print(threading.active_count())
"""
    assert ended(script) == (0, "1\n", "")


def test_other_back_ends_leave_pythons_handler_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tengtune.backends.relay.choose", lambda recipe: "torch")
    with relayed(Recipe.model_construct()):
        assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
