"""tengtune report"""

from __future__ import annotations

from pathlib import Path

import click

from tengtune import engine
from tengtune.cli.command import Command
from tengtune.cli.options import reading_options
from tengtune.recipe import Recipe
from tengtune.ui.console import Console
from tengtune.ui.problems import Problem


@click.command("report", cls=Command, help="cli.report")
@reading_options
@click.option(
    "--tensorboard",
    "folder",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="cli.opt_tensorboard",
)
def command(recipe: Recipe, console: Console, force: bool, folder: Path | None) -> None:
    """Make report.html, of a finished run or of half a run."""
    if not (recipe.folder / "run.yaml").exists():
        raise Problem("report.no_run", where=recipe.folder, run=recipe.called())
    engine.run_needed("report", recipe, console, force)
    if folder is not None:
        from tengtune.steps import report

        written = report.export(recipe, folder)
        console.say("report.tensorboard", file=written)
    path = recipe.folder / "report.html"
    console.result(str(path), report=str(path))
