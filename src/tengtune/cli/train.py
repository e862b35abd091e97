"""tengtune train"""

from __future__ import annotations

import click

from tengtune import engine
from tengtune.cli.command import Command
from tengtune.cli.options import resume_option, step_options
from tengtune.recipe import Recipe
from tengtune.ui.console import Console


@click.command("train", cls=Command, help="cli.train")
@step_options
@resume_option
def command(recipe: Recipe, console: Console, force: bool, anew: bool) -> None:
    """Fine-tune, preparing the data first."""
    engine.run_needed("train", recipe, console, force, anew)
    console.result(str(recipe.folder), folder=str(recipe.folder))
