"""tengtune convert"""

from __future__ import annotations

from functools import wraps
from pathlib import Path
from typing import Any

import click

from tengtune import engine
from tengtune.cli.command import Command
from tengtune.cli.options import FOLDER, Number, make_console, parse_size, reading_options
from tengtune.files import refuse_full
from tengtune.lock import beside, held
from tengtune.recipe import Recipe
from tengtune.ui import language
from tengtune.ui.console import Console
from tengtune.ui.lists import size
from tengtune.ui.problems import Problem

TARGETS = ("hf", "mindspore", "mindspore-safetensors")
DTYPES = ("float32", "float16", "bfloat16")
SHORT = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}  # as in convert_weight.py
LAYOUTS = (
    "mindformers", "qkv-concat", "mcore", "mcore-contiguous-qkv", "mcore-contiguous-mlp", "mcore-contiguous",
    "slora",
)  # fmt: skip


@reading_options
@click.argument("dst", required=False, type=FOLDER)
def in_run(recipe: Recipe, console: Console, force: bool, dst: None) -> None:
    """Convert weights to another layout, format or type: SRC -> the folder DST."""
    engine.run_trained("convert", recipe, console, force)
    console.result(str(recipe.folder / "mindspore"), folder=str(recipe.folder / "mindspore"))


@click.command("convert", cls=Command, help="cli.convert")
@click.option("--to", type=click.Choice(TARGETS), help="cli.opt_to")
@click.option("--dtype", type=click.Choice([*DTYPES, *SHORT]), help="cli.opt_dtype")
@click.option("--layout", type=click.Choice(LAYOUTS), help="cli.opt_layout")
@click.option("--shard-size", metavar="SIZE", help="cli.opt_shard_size")
@click.option("--config", type=FOLDER, help="cli.opt_config_tokenizer")
@click.option("--part", type=click.Choice(["model", "adapter"]), help="cli.opt_part")
@click.option("--lora-alpha", type=Number(0, min_open=True), help="cli.opt_lora_alpha")
@click.option("--trust", is_flag=True, help="cli.opt_trust")
@click.option("--dry-run", is_flag=True, help="cli.opt_dry_run")
@wraps(in_run)
def command(
    run: Path,
    dst: Path | None,
    to: str | None,
    dtype: str | None,
    layout: str | None,
    shard_size: str | None,
    config: Path | None,
    part: str | None,
    lora_alpha: float | None,
    trust: bool,
    dry_run: bool,
    **options: Any,
) -> None:
    given = (to, dtype, layout, shard_size, config, part, lora_alpha, trust, dry_run)
    if dst is None and not any(given) and not run.is_dir() and run.suffix in (".yaml", ".yml"):
        in_run(run=run, dst=None, **options)
        return
    if dst is not None and to is None and not (options["overrides"] or options["force"]):
        raise Problem("convert.no_to", where=dst)
    if dst is None or to is None or options["overrides"] or options["force"]:
        raise Problem("convert.options")
    console, limit = make_console(options["quiet"], options["as_json"]), parse_size(shard_size or "5GB")
    if dst.suffix in (".ckpt", ".safetensors", ".bin"):
        raise Problem("convert.out_is_file", where=dst)
    if shard_size and to == "mindspore":
        raise Problem("convert.one_file", where=dst)
    refuse_full(dst, "convert")
    from tengtune.steps import convert
    from tengtune.weights.convert_adapter import AdapterConversion
    from tengtune.weights.output import refuse_here, refuse_input

    refuse_here(dst)
    refuse_input("convert.out_is_input", dst, *filter(None, (run, config)))
    kind = SHORT.get(dtype or "", dtype)
    job = convert.open_job(
        run, to, layout=layout, dtype=kind, config=config, part=part, alpha=lora_alpha, trust=trust
    )  # fmt: skip
    if shard_size and isinstance(job, AdapterConversion):
        raise Problem("convert.one_file", where=dst)
    if dry_run:
        convert.describe(job, console)
        console.result(
            language.say("convert.dry_run", size=size(job.nbytes), folder=dst), **convert.figures(job)
        )
        return
    with held(beside(dst), console):
        refuse_full(dst, "convert")
        console.result(str(dst), folder=str(dst), **convert.convert(job, dst, console, limit))


next(parameter for parameter in command.params if parameter.name == "run").metavar = "SRC"
