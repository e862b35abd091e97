"""tengtune run"""

from __future__ import annotations

import click

from tengtune import engine
from tengtune.cli.command import Command
from tengtune.cli.evaluate import show
from tengtune.cli.options import relay_interrupts, resume_option, run_options
from tengtune.cli.predict import show_samples
from tengtune.recipe import Recipe
from tengtune.ui import language
from tengtune.ui.console import Console


@click.command("run", cls=Command, help="cli.run")
@run_options
@resume_option
def command(recipe: Recipe, console: Console, fresh: bool, anew: bool) -> None:
    """Do all the steps that are needed, in order."""
    relay_interrupts(recipe)
    from tengtune.train import output_tree

    engine.check_run(recipe)
    engine.prepare(recipe, fresh)
    engine.run_all(recipe, console, anew)
    show_samples(recipe, console)
    score = (engine.read_record(recipe.folder / "evaluate.json") or {}).get("figures", {})
    if score:
        show(score, console)
    if score.get("tokens"):
        console.event("result", **score)
    made = {"merged": "merged", "report": "report.html"}
    if recipe.output.layout == "mindformers":
        made["output"] = output_tree.FOLDER
    paths = {name: str(recipe.folder / file) for name, file in made.items()}
    lines = [language.say(f"run.{name}", path=path) for name, path in paths.items()]
    console.result("\n".join([*lines, language.say("run.ask", run=recipe.called())]), **paths)
