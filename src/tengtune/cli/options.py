"""The options every step has, in one place."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import click

from tengtune import recipe as recipes
from tengtune.recipe import Recipe
from tengtune.ui.console import Console


def run_file(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command the run file (default run.yaml), --set, --quiet and --json.

    The function receives (recipe, console, **its own options).
    """

    @click.argument("run", default="run.yaml", type=click.Path(path_type=Path))
    @click.option("-s", "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="e.g. train.epochs=1")
    @click.option("-q", "--quiet", is_flag=True, help="只输出结果 / results only")
    @click.option("--json", "as_json", is_flag=True, help="JSON 行 / JSON lines")
    @wraps(function)
    def wrapper(run: Path, overrides: tuple[str, ...], quiet: bool, as_json: bool, **options: Any) -> None:
        console = Console("json" if as_json else "quiet" if quiet else "normal")
        recipe: Recipe = recipes.load(run, overrides)
        function(recipe, console, **options)

    return wrapper
