"""What the launcher says of ranks before it starts them."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from tengtune import cards
from tengtune.cluster import launch
from tengtune.recipe import load
from tengtune.ui.console import Console


@pytest.mark.parametrize(
    ("ranks", "there", "cores", "said"),
    [
        (4, 0, 2, "4 ranks on this machine, which has no card and 2 cores"),
        (2, 0, 2, ""),
        (4, 2, 64, "4 ranks on this machine, which has 2 cards"),
        (8, 8, 4, ""),  # cards do the work
    ],
)
def test_ranks_that_would_crowd_the_machine_are_told(
    ranks: int, there: int, cores: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENGTUNE_LANG", "en")
    monkeypatch.setattr(cards, "count", lambda: there)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)))
    (tmp_path / "run.yaml").write_text(f"model: m\ndata: a.json\nparallel: {{ranks: {ranks}}}\n")
    recipe = load(tmp_path / "run.yaml")
    err = io.StringIO()
    assert len(launch.plan(recipe, Console(err=err), False)) == ranks
    assert said in err.getvalue()
    assert bool(said) == bool(err.getvalue())
