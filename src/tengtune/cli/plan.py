"""`tengtune plan`"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tengtune.cli.command import Command, misused
from tengtune.cli.options import FOLDER, Number, make_console, settings_option
from tengtune.plan.profiles import OURS, PROFILES
from tengtune.plan.strategy import Base, Method, Offload
from tengtune.ui.problems import UNFIT_MACHINE, Problem

if TYPE_CHECKING:
    from tengtune.cli.plan_ask import Asked


class Gigabytes(click.ParamType):  # type: ignore[type-arg]  # older ones take none
    """So many GB, 1e9 bytes: "768", "768GB", "1.5T", "512 GiB"."""

    name = "gigabytes"
    wanted = "plan.a_size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number of GB; a usage error for anything else, for none, and for more than 1e9."""
        match = re.fullmatch(r"(\d+(?:\.\d+)?(?:e\d+)?)\s*([gt]?)(i?)b?", str(value).strip().lower())
        size = 0.0
        if match is not None:
            size = float(match[1]) * (1000.0 if match[2] == "t" else 1.0)
            size *= (1.024**4 if match[2] == "t" else 1.024**3) if match[3] else 1.0
        if not 0 < size <= 1e9:
            self.fail(str(value), param, ctx)
        return size


DEFAULT = Path("run.yaml")
_GB = Gigabytes()
_ROWS = click.IntRange(1, 1 << 20)


@click.command("plan", cls=Command, help="cli.plan")
@click.argument("run", required=False, type=FOLDER)
@click.option("--model", metavar="NAME|DIR", help="cli.opt_plan_model")
@click.option("--hardware", multiple=True, metavar="TEXT", help="cli.opt_plan_hardware")
@click.option("--method", multiple=True, type=click.Choice(["lora", "full"]), help="cli.opt_plan_method")
@click.option("--engine", type=click.Choice(list(PROFILES)), help="cli.opt_plan_engine")
@click.option("--zero", type=click.IntRange(0, 3), metavar="N", help="cli.opt_plan_zero")
@click.option("--offload", type=click.Choice(["none", "optimizer", "all"]), help="cli.opt_plan_offload")
@click.option("--base", type=click.Choice(["compute", "int8", "int8-all"]), help="cli.opt_plan_base")
@click.option("--rank", type=click.IntRange(1, 1024), metavar="N", help="cli.opt_plan_rank")
@click.option("--seq-len", type=click.IntRange(8, 1 << 20), metavar="N", help="cli.opt_plan_seq_len")
@click.option("--micro-batch", type=_ROWS, metavar="N", help="cli.opt_plan_micro_batch")
@click.option("--global-batch", type=_ROWS, metavar="N", help="cli.opt_plan_global_batch")
@click.option("--recompute", type=click.Choice(["none", "full"]), help="cli.opt_plan_recompute")
@click.option("--tensor", type=click.IntRange(1, 64), metavar="N", help="cli.opt_plan_tensor")
@click.option("--host-memory", type=_GB, metavar="GB", help="cli.opt_plan_host_memory")
@click.option("--disk", type=_GB, metavar="GB", help="cli.opt_plan_disk")
@click.option("--tokens", type=Number(min=1, max=1e15), metavar="N", help="cli.opt_plan_tokens")
@click.option("--explain", is_flag=True, help="cli.opt_plan_explain")
@click.option("--compare", is_flag=True, help="cli.opt_plan_compare")
@click.option("--write", "write_to", type=FOLDER, metavar="FILE", help="cli.opt_plan_write")
@click.option("--data", "data_files", multiple=True, type=FOLDER, help="cli.opt_plan_data")
@click.option("--png", type=FOLDER, metavar="FILE", help="cli.opt_plan_png")
@click.option("--force", is_flag=True, help="cli.opt_plan_force")
@settings_option
@click.option("-q", "--quiet", is_flag=True, help="cli.opt_quiet")
@click.option("--json", "as_json", is_flag=True, help="cli.opt_json")
def command(
    run: Path | None, model: str | None, hardware: tuple[str, ...], method: tuple[Method, ...],
    engine: str | None, zero: int | None, offload: Offload | None, base: Base | None, rank: int | None,
    seq_len: int | None, micro_batch: int | None, global_batch: int | None, recompute: str | None,
    tensor: int | None, host_memory: float | None, disk: float | None, tokens: float | None, explain: bool,
    compare: bool, write_to: Path | None, data_files: tuple[Path, ...], png: Path | None, force: bool,
    overrides: tuple[str, ...], quiet: bool, as_json: bool,
) -> int:  # fmt: skip
    """Whether a training fits the hardware, with the sum, how long it takes, and the best ways to run it."""
    from tengtune.cli import plan_ask, plan_files

    console = make_console(quiet, as_json)
    values: dict[str, Any] = {
        "zero": zero,
        "offload": offload,
        "base": base,
        "rank": rank,
        "row_tokens": seq_len,
        "rows": micro_batch,
        "tensor": tensor,
        "recompute": None if recompute is None else recompute == "full",
    }
    given = {name: value for name, value in values.items() if value is not None}
    if model is None and compare:
        raise misused("plan.compare_model")
    if compare and engine not in (None, *OURS):
        raise misused("plan.compare_engine")
    if model is None and run is None and not DEFAULT.exists():
        raise Problem("plan.needs_model", folder=Path.cwd())
    if model is None and (given or method or global_batch):
        raise misused("plan.run_or_model")
    if model is not None and (run is not None or overrides):
        raise misused("plan.run_or_model")
    plan_files.check(write_to, data_files, png, force, run, compare)
    if compare:
        from tengtune.cli import plan_compare

        asked_for = plan_compare.Sides(
            hardware, method, engine, given, global_batch, host_memory, disk, tokens
        )
        return plan_compare.show(console, str(model), asked_for)
    if len(hardware) > 1 or len(method) > 1:
        raise misused("plan.several")
    there = plan_ask.machine(next(iter(hardware), None), host_memory, disk)
    if model is None:
        asked = plan_ask.of_run(run or DEFAULT, overrides, there, engine, tokens)
    else:
        given |= {"method": method[0]} if method else {}
        asked = plan_ask.of_model(model, there, engine, given, global_batch, tokens)
    if write_to is not None:
        plan_files.write(asked, write_to, data_files, overrides)
    if png is not None:
        plan_files.draw(asked, png)
    colour = console.colour and console.out.isatty()
    text, data = _answer(asked, explain, as_json, colour)
    console.result("\n".join([text, *plan_files.made(asked, write_to, png)]), **data)
    refused = write_to is None and asked.plan.answer in ("no", "cannot")
    return UNFIT_MACHINE if refused else 0


def _answer(asked: Asked, explain: bool, as_json: bool, colour: bool) -> tuple[str, dict[str, Any]]:
    """The screen, and the same as data."""
    from tengtune.plan import choices, claims, compare, nearest, remedy, screen

    plan, own = asked.plan, asked.plan if asked.recipe is not None else None
    question = asked.question
    sharing_asked = own is not None or "zero" in question.fixed
    remedies, claimed = remedy.advice(plan, sharing_asked), claims.of(plan)
    alone = not asked.ways and question.engines and not question.hardware.is_cpu
    least = compare.least(question) if alone else None
    rows = nearest.nearest(plan) if explain or as_json else []
    blocks = [
        choices.lines(question, asked.ways, own),
        claims.lines(claimed),
        nearest.lines(rows),
    ]
    told = least is not None or (alone and plan.answer == "no")  # else it is said what it lacks
    needed = choices.needed(least) if told else ""
    beside = screen.Beside(blocks, choices.notes(question, asked.ways, explain), needed)
    text = screen.text(plan, asked.name, remedies, asked.work, beside, explain, colour)
    data = screen.data(plan, asked.name, remedies, asked.work)
    minimum = None if least is None else choices.data([least])[0]
    more = {
        "minimum": minimum,
        "ways": choices.data(asked.ways),
        "nearest": nearest.data(rows),
        "claims": claims.data(claimed),
    }
    return text, {**data, **more}
