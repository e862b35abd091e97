"""The training loop with everything around it, in a folder of a test."""

from __future__ import annotations

import io
from contextlib import closing
from pathlib import Path
from typing import Any

from tengtune.backends.base import Backend
from tengtune.recipe import Recipe
from tengtune.train import resume, schedule
from tengtune.train.checkpoints import Shelf
from tengtune.train.fit import Fit, Rows
from tengtune.train.loss_scale import LossScale
from tengtune.train.metrics import Metrics
from tengtune.train.saver import Saver
from tengtune.train.state import State
from tengtune.ui.console import Console

SAME = {"run": "this one"}
ABOUT = {"backend": "fake", "device": "cpu", "dtype": "float32"}


def console(err: io.StringIO | None = None) -> Console:
    return Console("normal", io.StringIO(), err or io.StringIO())


def run_fit(
    folder: Path,
    backend: Backend,
    store: Rows,
    recipe: Recipe,
    heldout: Rows | None = None,
    err: io.StringIO | None = None,
) -> dict[str, Any]:
    """Train, going on from the newest checkpoint in folder/checkpoints if there is one; the figures."""
    voice, shelf = console(err), Shelf(folder / "checkpoints")
    found = resume.find(shelf, SAME, voice)
    state = found.state if found else State(LossScale(enabled=backend.dtype == "float16"))
    if found:
        backend.load_shards(found.shards(), state.applied)
    with closing(Metrics(folder / "metrics.jsonl", state.step)) as metrics:
        whole = state.step if found else None
        saver = Saver(shelf, SAME, ABOUT, recipe.train.keep, 0, whole, metrics.sync)
        plan = schedule.plan(recipe, store.rows)
        return Fit(backend, store, plan, recipe, voice, metrics, saver, state, heldout).run()
