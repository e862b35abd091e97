"""The options that commands share, in one place."""

from __future__ import annotations

import math
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


class Number(click.FloatRange):
    """A number between bounds; NaN, which passes every comparison of click's, is none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if math.isnan(number):
            self.fail(f"{value!r} is not a number", param, ctx)
        return number


UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9}


settings_option = click.option(
    "-s", "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="cli.opt_set"
)


def run_file(function: Command) -> Command:
    """Give a command the run file (default run.yaml), --set, --quiet and --json.

    The function receives (recipe, console, **its own options).
    """

    @click.argument("run", default="run.yaml", type=click.Path(path_type=Path))
    @settings_option
    @click.option("-q", "--quiet", is_flag=True, help="cli.opt_quiet")
    @click.option("--json", "as_json", is_flag=True, help="cli.opt_json")
    @wraps(function)
    def wrapper(run: Path, overrides: tuple[str, ...], quiet: bool, as_json: bool, **options: Any) -> None:
        from tengtune import recipe as recipes

        function(recipes.load(run, overrides), make_console(quiet, as_json), **options)

    return wrapper


def relay_interrupts(recipe: Any) -> None:
    """For a command that computes: until it ends, a Ctrl-C reaches Python whatever the back end does."""
    from tengtune.backends.relay import relayed

    click.get_current_context().with_resource(relayed(recipe))


def make_console(quiet: bool, as_json: bool) -> Console:
    """The console that --quiet and --json ask for."""
    return Console("json" if as_json else "quiet" if quiet else "normal")


def run_options(function: Command) -> Command:
    """run_file for a command that works in the run folder: adds --fresh."""
    return run_file(click.option("--fresh", is_flag=True, help="cli.opt_fresh")(function))


def step_options(function: Command) -> Command:
    """run_options for one step's command: adds --force."""
    force = click.option("--force", is_flag=True, help="cli.opt_force")
    return run_options(force(function))


def reading_options(function: Command) -> Command:
    """run_file and --force for a command that looks at what a run made, or goes on with it: the function's
    recipe is the run folder's own (engine.reopen), and no folder is made or set aside."""

    @run_file
    @click.option("--force", is_flag=True, help="cli.opt_force")
    @wraps(function)
    def wrapper(recipe: Any, console: Console, **options: Any) -> None:
        from tengtune import engine

        function(engine.reopen(recipe, console), console, **options)

    return wrapper


def model_options(function: Command) -> Command:
    """For a command that asks a model: [RUN], --model DIR, --set, --quiet, --json and what decides answers.
    With --model and no RUN there is no run file.

    The function receives (recipe, console, folder or None, Settings, **its own options); the recipe is the
    run folder's own (engine.reopen) where there is a run file.
    """

    @click.argument("run", required=False, type=FOLDER)
    @click.option("--model", "folder", type=FOLDER, help="cli.opt_model")
    @settings_option
    @click.option("-q", "--quiet", is_flag=True, help="cli.opt_quiet")
    @click.option("--json", "as_json", is_flag=True, help="cli.opt_json")
    @click.option("--system", metavar="TEXT", help="cli.opt_system")
    @click.option("--max-new-tokens", type=click.IntRange(min=1), help="cli.opt_max_new_tokens")
    @click.option("--stop", "stops", multiple=True, metavar="TEXT", help="cli.opt_stop")
    @click.option("--temperature", type=Number(0, 100), help="cli.opt_temperature")
    @click.option("--top-p", type=Number(0, 1, min_open=True), help="cli.opt_top_p")
    @click.option("--top-k", type=click.IntRange(0, 2**31), help="cli.opt_top_k")
    @click.option("--seed", type=click.IntRange(0, 2**32), default=0, help="cli.opt_seed")
    @wraps(function)
    def wrapper(
        run: Path | None, folder: Path | None, overrides: tuple[str, ...], quiet: bool, as_json: bool,
        system: str | None, max_new_tokens: int | None, stops: tuple[str, ...],
        temperature: float | None, top_p: float | None, top_k: int | None, seed: int, **options: Any,
    ) -> None:  # fmt: skip
        from tengtune import engine
        from tengtune import recipe as recipes

        console = make_console(quiet, as_json)
        if run is None and folder is not None:
            recipe = recipes.for_model(folder, overrides)
        else:
            recipe = engine.reopen(recipes.load(run or Path("run.yaml"), overrides), console)
        relay_interrupts(recipe)  # before numpy is imported
        from tengtune.answer.speaker import Settings

        sampling = {"temperature": temperature, "top_p": top_p, "top_k": top_k}
        asked = Settings(max_new_tokens, stops, system, sampling, seed)
        function(recipe, console, folder, asked, **options)

    return wrapper


def resume_option(function: Command) -> Command:
    """--resume auto|never; the function receives `anew`, True for never."""

    @click.option(
        "--resume",
        type=click.Choice(["auto", "never"]),
        default="auto",
        help="cli.opt_resume",
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
