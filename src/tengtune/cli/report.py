"""tengtune report"""

from __future__ import annotations

from pathlib import Path

import click

from tengtune import engine
from tengtune.cli.options import step_options
from tengtune.recipe import Recipe
from tengtune.ui.console import Console


@click.command("report")
@step_options
@click.option(
    "--tensorboard",
    "folder",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="另导出 TensorBoard 事件文件 / also export a TensorBoard event file",
)
def command(recipe: Recipe, console: Console, force: bool, folder: Path | None) -> None:
    """生成 report.html，不论运行是否完成 / Make report.html, of a finished run or of half a run."""
    engine.run_needed("report", recipe, console, force)
    if folder is not None:
        from tengtune.steps import report

        written = report.export(recipe, folder)
        console.say("report.tensorboard", file=written)
    path = recipe.folder / "report.html"
    console.result(str(path), report=str(path))
