"""The options that commands share, in one place."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import click

from tengtune.ui.console import Console
from tengtune.ui.problems import Problem

Command = Callable[..., None]

FOLDER = click.Path(path_type=Path)
UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9}


def run_file(function: Command) -> Command:
    """Give a command the run file (default run.yaml), --set, --quiet and --json.

    The function receives (recipe, console, **its own options).
    """

    @click.argument("run", default="run.yaml", type=click.Path(path_type=Path))
    @click.option("-s", "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="train.epochs=1 ...")
    @click.option("-q", "--quiet", is_flag=True, help="只输出结果 / results only")
    @click.option("--json", "as_json", is_flag=True, help="JSON 行 / JSON lines")
    @wraps(function)
    def wrapper(run: Path, overrides: tuple[str, ...], quiet: bool, as_json: bool, **options: Any) -> None:
        from tengtune import recipe as recipes

        function(recipes.load(run, overrides), make_console(quiet, as_json), **options)

    return wrapper


def make_console(quiet: bool, as_json: bool) -> Console:
    """The console that --quiet and --json ask for."""
    return Console("json" if as_json else "quiet" if quiet else "normal")


def run_options(function: Command) -> Command:
    """run_file for a command that works in the run folder: adds --fresh and prepares the folder."""

    @run_file
    @click.option("--fresh", is_flag=True, help="旧目录改名保留，重新开始 / set the old folder aside")
    @wraps(function)
    def wrapper(recipe: Any, console: Console, fresh: bool, **options: Any) -> None:
        from tengtune import engine

        engine.prepare(recipe, fresh)
        function(recipe, console, **options)

    return wrapper


def step_options(function: Command) -> Command:
    """run_options for one step's command: adds --force."""
    force = click.option("--force", is_flag=True, help="即使已是最新也重做 / redo even if up to date")
    return run_options(force(function))


def resume_option(function: Command) -> Command:
    """--resume auto|never; the function receives `anew`, True for never."""

    @click.option(
        "--resume",
        type=click.Choice(["auto", "never"]),
        default="auto",
        help="从检查点继续（默认），或从头训练 / go on from a checkpoint (default), or train from the start",
    )
    @wraps(function)
    def wrapper(*arguments: Any, resume: str, **options: Any) -> None:
        function(*arguments, anew=resume == "never", **options)

    return wrapper


def parse_size(text: str) -> int:
    """ "5GB", "500 MB" or a number of bytes."""
    match = re.fullmatch(r"(\d{1,15})\s*([KMG]B)?", text.strip(), re.IGNORECASE)
    count = int(match[1]) * UNITS[(match[2] or "").upper()] if match else 0
    if not count:
        raise Problem("merge.bad_size", where=f"--shard-size {text}", text=text)
    return count
