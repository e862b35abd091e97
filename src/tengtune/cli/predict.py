"""tengtune predict"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tengtune import engine
from tengtune.cli.command import Command, misused
from tengtune.cli.options import FOLDER, model_options
from tengtune.json_file import objects
from tengtune.recipe import Recipe
from tengtune.ui import language
from tengtune.ui.console import Console
from tengtune.ui.lists import listed
from tengtune.ui.problems import Problem

if TYPE_CHECKING:
    from tengtune.answer.batch import Tally
    from tengtune.answer.speaker import Settings


@click.command("predict", cls=Command, help="cli.predict")
@model_options
@click.option("--force", is_flag=True, help="cli.opt_force")
@click.option("-p", "--prompt", "prompts", multiple=True, metavar="TEXT", help="cli.opt_prompt")
@click.option("--file", "questions", type=FOLDER, help="cli.opt_questions")
@click.option("--out", type=FOLDER, help="cli.opt_answers")
def command(
    recipe: Recipe,
    console: Console,
    folder: Path | None,
    asked: Settings,
    force: bool,
    prompts: tuple[str, ...],
    questions: Path | None,
    out: Path | None,
) -> None:
    """Answer questions; asked none, compare the answers before and after training."""
    from tengtune.answer.questions import is_text

    if (questions is None) != (out is None):
        raise misused("predict.file_and_out")
    if any(not prompt.strip() for prompt in prompts):
        raise misused("predict.empty_prompt")
    if not all(is_text(prompt) for prompt in prompts):
        raise misused("predict.prompt_not_utf8")
    if not prompts and questions is None:
        if folder is not None:
            raise misused("predict.what_to_ask")
        engine.run_trained("predict", recipe, console, force)
        show_samples(recipe, console)
        return
    from tengtune.answer import batch
    from tengtune.steps import predict

    if questions is not None and out is not None:
        batch.require(questions)
        batch.require_place(out)
    if folder is None:
        engine.run_trained("merge", recipe, console)
        folder = recipe.folder / "merged"
    if prompts:
        predict.ask(recipe, folder, prompts, asked, console)
    if questions is not None and out is not None:
        tally = predict.answer_file(recipe, folder, (questions, out), asked, console, force)
        _sum_up(tally, out, console)


def _sum_up(tally: Tally, out: Path, console: Console) -> None:
    """What became of the records of --file, and where they are; Problem where none could be asked."""
    count = len(tally.errors)
    if 0 < tally.total == count:
        raise Problem("predict.none_asked", where=out)
    if count:
        records = listed(tally.errors)
        console.warn("predict.errors", count=count, total=tally.total, records=records)
    if tally.reason:
        record, reason = tally.reason
        console.warn("predict.limit", count=tally.cut, total=tally.total, record=record, reason=reason)
    elif tally.cut:
        console.warn("predict.cut_before", count=tally.cut, total=tally.total)
    console.result(str(out), out=str(out), records=tally.total, errors=count, cut=tally.cut)


def show_samples(recipe: Recipe, console: Console) -> None:
    """The table of answers before and after."""
    path = recipe.folder / "samples.jsonl"
    if not path.exists():
        return
    rows = [row for row in objects(path, lambda row: {"prompt", "before", "after"} <= row.keys()) if row]
    for row in rows:
        console.event("sample", **row)
    from tengtune.answer.ending import shown

    cells = [
        [row["prompt"], *(row.get("error") or row[name] for name in ("before", "after"))] for row in rows
    ]
    shown_cells = [[shown(str(cell)) for cell in each] for each in cells]
    console.table(language.say("cli.sample_columns").split("|"), shown_cells)
