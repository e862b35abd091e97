"""tengtune merge"""

from __future__ import annotations

from functools import wraps
from pathlib import Path
from typing import Any

import click

from tengtune import engine
from tengtune.cli.command import Command
from tengtune.cli.options import FOLDER, make_console, parse_size, reading_options
from tengtune.lock import beside, held
from tengtune.recipe import Recipe
from tengtune.ui.console import Console
from tengtune.ui.problems import Problem

WAYS: list[tuple[set[str], set[str]]] = [
    ({"base", "adapter", "out"}, {"shard_size"}),
    ({"shards", "out"}, {"strategy", "first_copy", "shard_size"}),
    ({"split", "strategy", "out"}, set()),
    ({"split", "ranks", "out"}, set()),
]
"""What can be done without a run file: the options each way needs, and those it may have."""


@reading_options
def in_run(recipe: Recipe, console: Console, force: bool) -> None:
    """Merge a run's adapter into its base; or any base and adapter; or rank folders."""
    engine.run_trained("merge", recipe, console, force)
    console.result(str(recipe.folder / "merged"), folder=str(recipe.folder / "merged"))


@click.command("merge", cls=Command, help="cli.merge")
@click.option("--base", type=FOLDER, help="cli.opt_base")
@click.option("--adapter", type=FOLDER, help="cli.opt_adapter")
@click.option("--shards", type=FOLDER, help="cli.opt_shards")
@click.option("--strategy", type=FOLDER, help="cli.opt_strategy")
@click.option("--first-copy", is_flag=True, help="cli.opt_first_copy")
@click.option("--split", type=FOLDER, help="cli.opt_split")
@click.option("--ranks", type=click.IntRange(1, 4096), help="cli.opt_ranks")
@click.option("--out", type=FOLDER, help="cli.opt_out_folder")
@click.option("--shard-size", metavar="SIZE", help="cli.opt_shard_size")
@wraps(in_run)
def command(
    base: Path,
    adapter: Path,
    shards: Path,
    strategy: Path | None,
    first_copy: bool,
    split: Path,
    ranks: int | None,
    out: Path,
    shard_size: str | None,
    **options: Any,
) -> None:
    values = {
        "base": base, "adapter": adapter, "shards": shards, "strategy": strategy, "first_copy": first_copy,
        "split": split, "ranks": ranks, "out": out, "shard_size": shard_size,
    }  # fmt: skip
    given = {name for name, value in values.items() if value}
    if not given:
        in_run(**options)
        return
    if not any(needs <= given <= needs | may for needs, may in WAYS):
        raise Problem("merge.options")
    console, limit = make_console(options["quiet"], options["as_json"]), parse_size(shard_size or "5GB")
    if shard_size and "shards" in given and out.suffix in (".ckpt", ".safetensors"):
        raise Problem("convert.one_file", where=out)
    from tengtune.files import refuse_full
    from tengtune.steps import merge
    from tengtune.weights.output import refuse_here, refuse_input

    refuse_here(out)
    refuse_input("merge.out_is_input", out, *filter(None, (base, adapter, shards, strategy, split)))
    with held(beside(out), console):
        refuse_full(out, "merge")
        if "base" in given:
            figures = merge.merge_adapter(base, adapter, out, console, limit)
        elif "shards" in given:
            figures = merge.merge_shards(shards, strategy, out, console, limit, compare=not first_copy)
        else:
            figures = merge.split_whole(split, strategy, ranks, out, console)
    console.result(str(out), folder=str(out), **figures)
