"""tengtune train"""

from __future__ import annotations

import click

from tengtune import engine
from tengtune.cli.command import Command
from tengtune.cli.options import relay_interrupts, resume_option, step_options
from tengtune.recipe import Recipe
from tengtune.ui.console import Console


@click.command("train", cls=Command, help="cli.train")
@step_options
@resume_option
@click.option("--node-rank", type=click.IntRange(min=0), help="cli.opt_node_rank")
@click.option("--master", metavar="HOST:PORT", help="cli.opt_master")
@click.option("--dry-run", is_flag=True, help="cli.opt_train_dry_run")
def command(
    recipe: Recipe,
    console: Console,
    fresh: bool,
    force: bool,
    anew: bool,
    node_rank: int | None,
    master: str | None,
    dry_run: bool,
) -> None:
    """Fine-tune, preparing the data first."""
    relay_interrupts(recipe)
    from tengtune.cluster.launch import launch, plan, set_meeting

    set_meeting(node_rank, master)
    engine.check_step("train", recipe)
    if dry_run:
        lines = [start.line() for start in plan(recipe, console, anew)]
        _tell(recipe, len(lines), console)
        console.result("\n".join(lines), commands=lines)
        return
    if node_rank:  # machine 0 makes the run folder, prepares the data and keeps the record
        launch(recipe, console, anew)
    else:
        engine.prepare(recipe, fresh)
        engine.run_needed("train", recipe, console, force, anew)
        console.result(str(recipe.folder), folder=str(recipe.folder))


def _tell(recipe: Recipe, ranks: int, console: Console) -> None:
    """What the run would be: ranks, rows of a step, and of data that are rows already how many steps."""
    from tengtune.data.store import open_store
    from tengtune.models import positions, spec
    from tengtune.train import schedule

    train = recipe.train
    console.say(
        "train.would_step",
        ranks=ranks,
        world=recipe.parallel.ranks,
        rows=train.global_batch,
        seq_len=recipe.data.seq_len,
        micro=train.micro_batch,
        times=recipe.accumulation,
    )
    for code, values in positions.beyond(spec.from_folder(recipe.model_folder), recipe.data.seq_len):
        console.warn(code, **values)
    folder = recipe.folder / "data" / "train"
    if folder.is_dir():
        rows = open_store(folder).rows
        plan = schedule.plan(recipe, rows)
        console.say("train.would_rows", rows=rows, steps=plan.steps, epoch=plan.steps_per_epoch)
    else:
        console.say("train.would_prepare", run=recipe.called())
    console.say("train.would_start", run=recipe.called())
