"""What the launcher says of ranks before it starts them."""

from __future__ import annotations

import io
import json
import os
import signal
from pathlib import Path

import pytest

from tengtune import cards
from tengtune.cluster import launch
from tengtune.recipe import load
from tengtune.ui.console import Console
from tengtune.ui.problems import Problem


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
    monkeypatch.setattr(cards, "count", lambda backend: there)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)))
    (tmp_path / "run.yaml").write_text(f"model: m\ndata: a.json\nparallel: {{ranks: {ranks}}}\n")
    recipe = load(tmp_path / "run.yaml")
    err = io.StringIO()
    assert len(launch.plan(recipe, Console(err=err), False)) == ranks
    assert said in err.getvalue()
    assert bool(said) == bool(err.getvalue())


@pytest.mark.parametrize(
    ("values", "noted"),
    [
        ({"rank": 1, "status": -9}, {"rank": 1, "reason": "killed", "signal": int(signal.SIGKILL)}),
        ({"rank": 0, "status": 4}, {"rank": 0, "exit_code": 4}),
        ({"rank": 2}, {"rank": 2, "reason": "silent"}),
        ({}, None),
    ],
)
def test_a_rank_that_failed_is_an_event_of_the_training(
    values: dict[str, object],
    noted: dict[str, object] | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Behind what rank 0 wrote, of which a kill may have cut the last line."""

    def failing(self: launch.Crew) -> None:
        (tmp_path / "runs" / "run" / "metrics.jsonl").write_text('{"step": 7, "loss": 1.5}\n{"step": 8, "lo')
        raise Problem("cluster.rank_failed", exit_code=4, **values)

    monkeypatch.setattr(launch.Crew, "run", failing)
    (tmp_path / "run.yaml").write_text("model: m\ndata: a.json\nparallel: {ranks: 4}\n")
    with pytest.raises(Problem):
        launch.launch(load(tmp_path / "run.yaml"), Console("quiet"), False)
    lines = (tmp_path / "runs" / "run" / "metrics.jsonl").read_text().splitlines()
    first, *events = [json.loads(line) for line in lines if line.endswith("}")]
    assert first == {"step": 7, "loss": 1.5}
    for event in events:
        del event["time"]
    assert events == ([] if noted is None else [{"step": 7, "event": "rank_failed", **noted}])
