"""tengtune predict"""

from __future__ import annotations

import json
from pathlib import Path

import click

from tengtune import engine
from tengtune.cli.options import step_options
from tengtune.recipe import Recipe
from tengtune.ui.console import Console


@click.command("predict")
@step_options
@click.option("-p", "--prompt", "prompts", multiple=True, metavar="TEXT", help="问题 / a question")
@click.option(
    "--model",
    "folder",
    type=click.Path(path_type=Path),
    help="默认 merged/ / default: merged/",
)
def command(
    recipe: Recipe, console: Console, force: bool, prompts: tuple[str, ...], folder: Path | None
) -> None:
    """回答问题；不带 --prompt 时对比训练前后 / Answer --prompt; without one, compare before and after."""
    from tengtune.steps import predict

    if prompts or folder:
        if folder is None:
            engine.run_needed("merge", recipe, console)
        predict.ask(recipe, folder or recipe.folder / "merged", list(prompts), console)
        return
    engine.run_needed("predict", recipe, console, force)
    show_samples(recipe, console)


def show_samples(recipe: Recipe, console: Console) -> None:
    """The table of answers before and after."""
    path = recipe.folder / "samples.jsonl"
    if not path.exists():
        return
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    for row in rows:
        console.event("sample", **row)
    columns = ["prompt", "before", "after"]
    console.table(columns, [[row[c].strip() for c in columns] for row in rows])
