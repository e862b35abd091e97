"""tengtune evaluate"""

from __future__ import annotations

import click

from tengtune import engine
from tengtune.cli.options import step_options
from tengtune.recipe import Recipe
from tengtune.ui.console import Console


@click.command("evaluate")
@step_options
def command(recipe: Recipe, console: Console, force: bool) -> None:
    """在留出数据上给训练前后的模型打分 / Score the held-out part, before and after."""
    figures = engine.run_needed("evaluate", recipe, console, force)
    console.result(
        f"loss {figures['loss_before']} -> {figures['loss_after']} ({figures['tokens']} tokens)",
        **figures,
    )
