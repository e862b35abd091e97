"""`tengtune plan`"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tengtune.cli.command import Command, misused
from tengtune.cli.options import FOLDER, make_console, settings_option
from tengtune.plan.profiles import PROFILES
from tengtune.plan.strategy import Base, Method, Offload, Strategy
from tengtune.ui.problems import UNFIT_MACHINE, Problem

if TYPE_CHECKING:
    from tengtune.models.spec import ModelSpec
    from tengtune.plan.hardware import Hardware
    from tengtune.plan.judge import Plan
    from tengtune.plan.work import Work

_GB = click.FloatRange(min=0, min_open=True, max=1e9)


@click.command("plan", cls=Command, help="cli.plan")
@click.argument("run", required=False, type=FOLDER)
@click.option("--model", metavar="NAME|DIR", help="cli.opt_plan_model")
@click.option("--hardware", metavar="TEXT", help="cli.opt_plan_hardware")
@click.option("--method", type=click.Choice(["lora", "full"]), help="cli.opt_plan_method")
@click.option("--engine", type=click.Choice(list(PROFILES)), help="cli.opt_plan_engine")
@click.option("--zero", type=click.IntRange(0, 3), help="cli.opt_plan_zero")
@click.option("--offload", type=click.Choice(["none", "optimizer", "all"]), help="cli.opt_plan_offload")
@click.option("--base", type=click.Choice(["compute", "int8", "int8-all"]), help="cli.opt_plan_base")
@click.option("--rank", type=click.IntRange(1, 1024), help="cli.opt_plan_rank")
@click.option("--seq-len", type=click.IntRange(8, 1 << 20), help="cli.opt_plan_seq_len")
@click.option("--micro-batch", type=click.IntRange(1, 1 << 20), help="cli.opt_plan_micro_batch")
@click.option("--recompute", type=click.Choice(["none", "full"]), help="cli.opt_plan_recompute")
@click.option("--host-memory", type=_GB, metavar="GB", help="cli.opt_plan_host_memory")
@click.option("--disk", type=_GB, metavar="GB", help="cli.opt_plan_disk")
@click.option("--tokens", type=click.FloatRange(min=1, max=1e15), metavar="N", help="cli.opt_plan_tokens")
@click.option("--explain", is_flag=True, help="cli.opt_plan_explain")
@settings_option
@click.option("-q", "--quiet", is_flag=True, help="cli.opt_quiet")
@click.option("--json", "as_json", is_flag=True, help="cli.opt_json")
def command(
    run: Path | None, model: str | None, hardware: str | None, method: Method | None, engine: str | None,
    zero: int | None, offload: Offload | None, base: Base | None, rank: int | None, seq_len: int | None,
    micro_batch: int | None, recompute: str | None, host_memory: float | None, disk: float | None,
    tokens: float | None, explain: bool, overrides: tuple[str, ...], quiet: bool, as_json: bool,
) -> int:  # fmt: skip
    """Whether a training fits the hardware, with the sum, and how long it takes."""
    from tengtune.plan import judge, remedy, screen
    from tengtune.plan.work import Work

    console = make_console(quiet, as_json)
    asked: dict[str, Any] = {
        "method": method,
        "offload": offload,
        "base": base,
        "rank": rank,
        "row_tokens": seq_len,
        "rows": micro_batch,
        "recompute": None if recompute is None else recompute == "full",
    }
    given = {name: value for name, value in asked.items() if value is not None}
    there = _machine(_hardware(hardware), host_memory, disk)
    if model is None:
        if given or zero is not None:
            raise misused("plan.run_or_model")
        plan, name, work = _of_run(run or Path("run.yaml"), overrides, there, engine, tokens)
    else:
        if run is not None or overrides:
            raise misused("plan.run_or_model")
        strategy = replace(Strategy(), **given, cards=there.count or 1, nodes=there.nodes)
        if there.is_cpu:
            strategy = replace(strategy, width_bytes=4)
        if offload == "all" and zero not in (None, 3):
            raise misused("plan.offload_all")
        spec, name, work = _named(model), model, None if tokens is None else Work(tokens)
        if engine is None and offload in (None, "none"):
            plan = judge.choose(spec, strategy, there, zero)
        else:
            level = (3 if offload == "all" else 0) if zero is None else zero
            plan = judge.make(spec, replace(strategy, zero=level), engine or "torch", there)
    remedies = remedy.advice(plan)
    colour = console.colour and console.out.isatty()
    shown = screen.text(plan, name, remedies, work, explain, colour)
    console.result(shown, **screen.data(plan, name, remedies, work))
    return UNFIT_MACHINE if plan.verdict == "no" else 0


def _of_run(
    run: Path, overrides: tuple[str, ...], there: Hardware, engine: str | None, tokens: float | None
) -> tuple[Plan, str, Work | None]:
    """The plan of a run file, what it calls its model, and what there is to train, if that is known."""
    from tengtune import recipe as recipes
    from tengtune.plan import judge, work

    recipe = recipes.load(run, overrides, (there.count or 1) // there.nodes)
    ranks, nodes = recipe.parallel.ranks, recipe.parallel.nodes
    if there.count is not None and ranks > there.count:
        raise Problem("plan.more_ranks", where=recipe.file, ranks=ranks, cards=there.count)
    spec = _named(recipe.model.path, recipe.model_folder)
    lora, train, parallel = recipe.lora, recipe.train, recipe.parallel
    width = 4 if recipe.model.dtype == "float32" or (there.is_cpu and recipe.model.dtype == "auto") else 2
    strategy = Strategy(
        method=train.method,
        cards=ranks,
        nodes=nodes,
        rows=train.micro_batch,
        row_tokens=recipe.data.seq_len,
        zero=parallel.zero,
        offload=parallel.offload,
        recompute=train.recompute == "full",
        rank=lora.rank,
        targets=tuple(lora.targets),
        base=lora.base,
        train_embeddings=lora.train_embeddings is True,
        width_bytes=width,
        checkpoints=train.keep,
        accumulate=recipe.accumulation,
    )
    chosen = engine or ("torch" if recipe.backend == "auto" else recipe.backend)
    given = None if tokens is None else work.Work(tokens * train.epochs, train.epochs)
    return judge.make(spec, strategy, chosen, there), recipe.model.path, given or work.of_run(recipe)


def _named(model: str, folder: Path | None = None) -> ModelSpec:
    """The model's shape: of its folder or its config.json alone where they are there, else by its name."""
    from tengtune.json_file import read_object
    from tengtune.models import known, spec

    path = folder or Path(model)
    if path.is_file():
        return spec.from_config(read_object(path, "model.bad_json"), path)
    if (path / "config.json").is_file():
        return spec.from_folder(path)
    found = known.spec(model)
    if found is None:
        raise Problem("plan.unknown_model", where=model, near=known.near(model))
    return found


def _hardware(text: str | None) -> Hardware:
    """What --hardware names, else this machine's cards; Problem where it has none."""
    from tengtune.plan import hardware

    if text is not None:
        found = hardware.find(text)
        return hardware.with_this_host(found) if found.is_cpu else found
    here = hardware.here()
    if here is None:
        raise Problem("plan.needs_hardware")
    return here


def _machine(hardware: Hardware, host_memory: float | None, disk: float | None) -> Hardware:
    """The hardware with what was said of its machine, in GB."""
    if host_memory is not None:
        hardware = replace(hardware, host_bytes=int(host_memory * 1e9))
    return hardware if disk is None else replace(hardware, disk_bytes=int(disk * 1e9))
