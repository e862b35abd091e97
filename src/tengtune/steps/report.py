"""report: the run as a page to look at, report.html, and loss.png where matplotlib is installed.

It is made from what lies in the run folder, finished or not, and runs no other step.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tengtune import files
from tengtune.engine import FAILURE, Result
from tengtune.pipeline import STEPS, step
from tengtune.recipe import Recipe
from tengtune.report import plot
from tengtune.report.evidence import collect, sources
from tengtune.report.page import page
from tengtune.ui import language
from tengtune.ui.console import Console
from tengtune.ui.problems import Problem

PAGE, PLOT = "report.html", "loss.png"
NEEDS = {each.name: [need for need in each.needs if step(need).kind == "work"] for each in STEPS}
"""Step -> the steps before it that always leave a record."""


def inputs(recipe: Recipe) -> list[Path]:
    failure = recipe.folder / FAILURE
    return [*sources(recipe), *([failure] if failure.exists() else [])]


def settings(recipe: Recipe) -> dict[str, Any]:
    """The page opens in the reader's language; a matplotlib that was installed since is made use of."""
    return {"samples": recipe.output.samples, "language": language.current(), "plot": plot.available()}


def run(recipe: Recipe, console: Console) -> Result:
    """Write the page; Problem when the run folder holds nothing to report on."""
    evidence = collect(recipe, NEEDS, recipe.folder / FAILURE)
    if not (evidence.records or evidence.metrics or evidence.failure):
        raise Problem("report.no_run", where=recipe.folder, run=recipe.called())
    for name, count in evidence.damaged.items():
        console.warn("report.damaged", file=recipe.folder / name, count=count)
    for name, reason in evidence.left_out.items():
        console.warn("report.left_out", file=recipe.folder / name, reason=reason)
    made = [PAGE]
    files.write_text(recipe.folder / PAGE, page(evidence))
    if not plot.available():
        console.say("report.no_plot")
    elif evidence.steps:
        with files.atomic_file(recipe.folder / PLOT) as stream:
            plot.draw(evidence, stream)
        made.append(PLOT)
    return Result(made)


def export(recipe: Recipe, folder: Path) -> Path:
    """The figures of metrics.jsonl as a TensorBoard event file in `folder`; Problem when there are none."""
    from tengtune.report.tensorboard import write_events
    from tengtune.train import metrics

    source = recipe.folder / "metrics.jsonl"
    if not source.exists():
        raise Problem("report.no_metrics", where=source, run=recipe.called())
    # A run folder has one event file: exported again it is replaced, not seen twice.
    path = folder / recipe.folder.name / f"events.out.tfevents.0.{recipe.folder.name}"
    write_events(path, metrics.read(source), source.stat().st_mtime)
    return path
