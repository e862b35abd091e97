"""tengtune merge"""

from __future__ import annotations

import re
from functools import wraps
from pathlib import Path
from typing import Any

import click

from tengtune import engine
from tengtune.cli.options import make_console, step_options
from tengtune.recipe import Recipe
from tengtune.ui.console import Console
from tengtune.ui.problems import Problem

FOLDER = click.Path(path_type=Path)
UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9}


@step_options
def in_run(recipe: Recipe, console: Console, force: bool) -> None:
    """把适配器并入底座；也可用 --base --adapter --out 单独合并 / Merge a run, or any base and adapter."""
    engine.run_needed("merge", recipe, console, force)
    console.result(str(recipe.folder / "merged"), folder=str(recipe.folder / "merged"))


@click.command("merge")
@click.option("--base", type=FOLDER, help="底座模型目录 / the base model's folder")
@click.option("--adapter", type=FOLDER, help="PEFT 适配器目录 / the PEFT adapter's folder")
@click.option("--out", type=FOLDER, help="输出目录 / the folder to make")
@click.option("--shard-size", metavar="SIZE", help="单个文件上限，默认 5GB / largest file, 5GB by default")
@wraps(in_run)
def command(
    base: Path | None, adapter: Path | None, out: Path | None, shard_size: str | None, **options: Any
) -> None:
    if base is None and adapter is None and out is None and shard_size is None:
        in_run(**options)
        return
    if base is None or adapter is None or out is None:
        raise Problem("merge.all_three")
    from tengtune.steps.merge import merge_adapter

    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise Problem("merge.out_exists", where=out)
    console = make_console(options["quiet"], options["as_json"])
    figures = merge_adapter(base, adapter, out, console, _bytes(shard_size or "5GB"))
    console.result(str(out), folder=str(out), **figures)


def _bytes(text: str) -> int:
    """ "5GB", "500 MB" or a number of bytes."""
    match = re.fullmatch(r"(\d{1,15})\s*([KMG]B)?", text.strip(), re.IGNORECASE)
    count = int(match[1]) * UNITS[(match[2] or "").upper()] if match else 0
    if not count:
        raise Problem("merge.bad_size", where=f"--shard-size {text}", text=text)
    return count
