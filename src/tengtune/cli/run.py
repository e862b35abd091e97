"""tengtune run"""

from __future__ import annotations

import click

from tengtune import engine
from tengtune.cli.command import Command
from tengtune.cli.evaluate import number, show
from tengtune.cli.options import resume_option, run_options
from tengtune.cli.predict import show_samples
from tengtune.recipe import Recipe
from tengtune.ui import language
from tengtune.ui.console import Console


@click.command("run", cls=Command, help="cli.run")
@run_options
@resume_option
def command(recipe: Recipe, console: Console, fresh: bool, anew: bool) -> None:
    """Do all the steps that are needed, in order."""
    engine.check_run(recipe)
    engine.prepare(recipe, fresh)
    engine.run_all(recipe, console, anew)
    show_samples(recipe, console)
    score = (engine.read_record(recipe.folder / "evaluate.json") or {}).get("figures", {})
    if score:
        show(score, console)
    if score.get("tokens"):
        pair = {name: number(score[f"loss_{name}"]) for name in ("before", "after")}
        console.result(language.say("run.score", **pair), **score)
    made = {"merged": recipe.folder / "merged", "report": recipe.folder / "report.html"}
    console.result(
        language.say("run.done", **made, run=recipe.called()),
        **{name: str(path) for name, path in made.items()},
    )
