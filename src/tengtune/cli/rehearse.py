"""tengtune rehearse"""

from __future__ import annotations

import shlex
from dataclasses import asdict

import click

from tengtune import engine
from tengtune.cli.command import Command
from tengtune.cli.options import run_file
from tengtune.recipe import Recipe
from tengtune.ui import language
from tengtune.ui.console import Console
from tengtune.ui.problems import Problem

NOT_SHOWN = ("memory", "device", "links", "weights", "learning", "speed")
"""What a CPU and a narrow model cannot show."""


@click.command("rehearse", cls=Command, help="cli.rehearse")
@run_file
def command(recipe: Recipe, console: Console) -> None:
    """Do the whole run on this machine's CPUs with a narrow model."""
    from tengtune.rehearsal.stage import Rehearsal

    try:
        engine.check_run(recipe)
    except Problem as problem:
        if problem.code != "weights.none":
            raise
        console.warn("rehearse.no_weights", folder=recipe.model_folder)
    if recipe.to_download:
        folder, model = recipe.model_folder, recipe.hub_model
        raise Problem("rehearse.no_model", where=folder, model=model, folder=shlex.quote(str(folder)))
    rehearsal = Rehearsal(recipe, console)
    if rehearsal.ranks < recipe.parallel.ranks:
        console.say("rehearse.fewer_ranks", ranks=rehearsal.ranks, wanted=recipe.parallel.ranks)
    done, say = rehearsal.run(), language.say
    rows = [[say(f"rehearse.{stage.name}"), f"{stage.seconds:.1f} s", stage.showed] for stage in done]
    console.table(say("rehearse.columns").split("|"), rows)
    left = [say(f"rehearse.left_{name}") for name in NOT_SHOWN]
    for line in (say("rehearse.left"), *left):
        console.part(f"{line}\n")
    console.event("rehearsal", stages=[asdict(stage) for stage in done], not_shown=left)
    console.result(str(rehearsal.folder), folder=str(rehearsal.folder))
