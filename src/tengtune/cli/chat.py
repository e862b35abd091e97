"""tengtune chat"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tengtune import engine
from tengtune.cli.command import Command, misused
from tengtune.cli.options import model_options
from tengtune.recipe import Recipe
from tengtune.ui import language
from tengtune.ui.console import Console

if TYPE_CHECKING:
    from tengtune.answer.speaker import Settings


@click.command("chat", cls=Command, help="cli.chat")
@model_options
@click.option("--compare", is_flag=True, help="cli.opt_compare")
def command(recipe: Recipe, console: Console, folder: Path | None, asked: Settings, compare: bool) -> None:
    """Talk to the model: that of a run, or any Hugging Face folder."""
    from tengtune.answer.chat import Chat, Side
    from tengtune.answer.speaker import open_speaker

    if compare and folder is not None and folder.resolve() == recipe.model_folder:
        raise misused("chat.nothing_to_compare")
    if folder is None:
        engine.run_trained("merge", recipe, console)
        folder = recipe.folder / "merged"
    sides = [Side(open_speaker(recipe, folder, asked), language.say("chat.after") if compare else "")]
    if compare:
        before = open_speaker(recipe, recipe.model_folder, asked)
        sides.insert(0, Side(before, language.say("chat.before")))
    Chat(sides, console).run()
