"""tengtune evaluate"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tengtune import engine
from tengtune.cli.command import Command, misused
from tengtune.cli.options import reading_options, relay_interrupts
from tengtune.recipe import Recipe
from tengtune.ui import language
from tengtune.ui.console import Console

if TYPE_CHECKING:
    from tengtune.evaluate.questions import By

LARGE = 1e6
"""From here on a perplexity is written as a power of ten: its digits tell nothing."""


@click.command("evaluate", cls=Command, help="cli.evaluate")
@reading_options
@click.option("--file", "names", multiple=True, metavar="FILE", help="cli.opt_question_files")
@click.option("--limit", type=click.IntRange(min=1), help="cli.opt_limit")
@click.option("--shots", type=click.IntRange(min=0), help="cli.opt_shots")
@click.option(
    "--by",
    type=click.Choice(["letter", "text"]),
    help="cli.opt_by",
)
def command(
    recipe: Recipe,
    console: Console,
    force: bool,
    names: tuple[str, ...],
    limit: int | None,
    shots: int | None,
    by: By | None,
) -> None:
    """Score the model before and after training."""
    relay_interrupts(recipe)
    if not (names or limit or shots or by):
        figures = engine.run_trained("evaluate", recipe, console, force)
        show(figures, console)
        console.result(_summary(figures), **figures)
        return
    from tengtune.evaluate.read import Settings
    from tengtune.steps import evaluate

    named = {name: Path(name) for name in names} or evaluate.named(recipe)
    if not named:
        raise misused("cli.which_question_file")
    evaluate.check_files(named)
    engine.run_trained("merge", recipe, console)
    compared = evaluate.compare(recipe, named, Settings(limit, shots or 0, by or "letter"), console)
    for each in compared:
        for line in each.lines(texts=recipe.output.samples):
            console.event("question", **line)
    sets = [each.figures() for each in compared]
    show({"sets": sets}, console)
    console.event("result", sets=sets)


def show(figures: dict[str, Any], console: Console) -> None:
    """All scores as one table: before, after."""
    from tengtune.evaluate.score import count_of

    rows: list[list[str]] = []
    if figures.get("tokens"):
        tokens = language.say("evaluate.tokens", count=figures["tokens"])
        for name in ("loss", "perplexity"):
            pair = [figures[f"{name}_before"], figures[f"{name}_after"]]
            what = language.say(f"evaluate.{name}")
            rows.append([language.say("evaluate.of_count", what=what, count=tokens), *map(number, pair)])
    general = figures.get("general")
    for each in ([general] if general else []) + figures["sets"]:
        name = language.say("evaluate.general_name") if each is general else each["name"]
        for measure, shares in each["measures"].items():
            count = language.say("evaluate.questions", count=count_of(each, measure))
            what = language.say("evaluate.of_set", set=name, what=language.say(f"evaluate.{measure}"))
            label = language.say("evaluate.of_count", what=what, count=count)
            rows.append([label, *(f"{share:.1%}" for share in shares)])
        if each["loss"]:
            what = language.say("evaluate.of_set", set=name, what=language.say("evaluate.answer_loss"))
            rows.append([what, *map(number, each["loss"])])
    console.table(["", language.say("evaluate.before"), language.say("evaluate.after")], rows)


def number(value: float | None) -> str:
    """A loss or a perplexity; "-" for one that is no number."""
    return "-" if value is None else f"{value:.4f}" if value < LARGE else f"{value:.2e}"


def _summary(figures: dict[str, Any]) -> str:
    return f"loss {number(figures['loss_before'])} -> {number(figures['loss_after'])}"
