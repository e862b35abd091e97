"""`tengtune data RUN` makes the rows of tokens; `tengtune data show [RUN] N` shows one document's mask."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from tengtune import engine
from tengtune import recipe as recipes
from tengtune.cli import data_check, data_convert
from tengtune.cli.command import Command, Group
from tengtune.cli.options import make_console, settings_option, step_options
from tengtune.recipe import Recipe
from tengtune.ui import language
from tengtune.ui.console import Console
from tengtune.ui.problems import Problem


class _DataGroup(Group):
    """A group whose first sub-command may be left out: `data run.yaml` is `data make run.yaml`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or args[0] not in (*self.commands, *ctx.help_option_names):
            args = ["make", *args]
        return super().parse_args(ctx, args)


@click.group("data", cls=_DataGroup, help="cli.data")
def command() -> None:
    """Turn data files into packed rows of tokens, and look at them."""


command.add_command(data_check.check)
command.add_command(data_convert.convert)


@command.command("make", cls=Command, help="cli.data_make")
@step_options
def make(recipe: Recipe, console: Console, fresh: bool, force: bool) -> None:
    """Make the rows of tokens (the default)."""
    engine.check_step("data", recipe)
    engine.prepare(recipe, fresh)
    figures = engine.run_needed("data", recipe, console, force)
    console.result(str(recipe.folder / "data"), **figures)


@command.command("show", cls=Command, help="cli.data_show")
@click.argument("arguments", nargs=-1, required=True, metavar="[RUN] N")
@settings_option
@click.option("--heldout", is_flag=True, help="cli.opt_heldout")
@click.option("--no-color", is_flag=True, help="cli.opt_no_color")
@click.option("--json", "as_json", is_flag=True, help="cli.opt_json")
def show(
    arguments: tuple[str, ...], overrides: tuple[str, ...], heldout: bool, no_color: bool, as_json: bool
) -> None:
    """Show document N and what of it is trained; numbers begin with 0."""
    from tengtune.data.fault import place
    from tengtune.data.store import open_store
    from tengtune.text.tokenizer import open_tokenizer
    from tengtune.text.view import legend, mask_view

    file, number = _run_and_number(arguments)
    chosen, part = recipes.load(file, overrides), "heldout" if heldout else "train"
    run = chosen.called()
    folder = chosen.folder / "data" / part
    if not folder.exists():
        raise Problem("view.no_store", where=folder, part=part, run=run)
    store = open_store(folder)
    tokenizer = open_tokenizer(chosen.model_folder)
    if store.about.tokenizer != tokenizer.fingerprint:
        raise Problem("view.other_tokenizer", where=tokenizer.file, run=run)
    if not number < store.documents:
        last = store.documents - 1
        raise Problem("view.no_document", where=folder, number=number, documents=store.documents, last=last)
    example = store.example(number)
    colour = not no_color and sys.stdout.isatty() and "NO_COLOR" not in os.environ
    name, _, record = example.source.rpartition(":")
    title = language.say(
        "view.title",
        number=number,
        documents=store.documents,
        part=language.say(f"data.{part}"),
        source=place(name, int(record)),
    )
    make_console(False, as_json).result(
        f"{title}\n{legend(example, colour)}\n\n{mask_view(example, tokenizer, colour)}",
        source=example.source,
        ids=example.ids.tolist(),
        trained=example.train.tolist(),
    )


def _run_and_number(arguments: tuple[str, ...]) -> tuple[Path, int]:
    """[RUN] N; the run file is run.yaml when left out."""
    *run, number = arguments
    if len(run) > 1 or not number.isascii() or not number.isdecimal():
        raise Problem("view.no_number", given=" ".join(arguments))
    return Path(*run) if run else Path("run.yaml"), int(number)
