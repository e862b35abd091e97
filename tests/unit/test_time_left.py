"""The time left on a progress line."""

from __future__ import annotations

import io

import pytest

from tengtune.ui import progress
from tengtune.ui.console import Console


def test_what_comes_before_the_first_update_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are compiled in the first step, which takes minutes, and in no other."""
    now = [0.0]
    monkeypatch.setenv("TENGTUNE_LANG", "en")
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    err = io.StringIO()
    with Console(err=err).progress(31, "train", 1) as line:
        for step, seconds in ((2, 120.0), (12, 150.0), (31, 207.0)):
            now[0] = seconds
            line.update(step)
    # Ten steps took 30 seconds; 19 are left, of 3 seconds each.
    assert err.getvalue().splitlines() == ["train 2/31", "train 12/31  0:57 left", "train 31/31  0:00 left"]
