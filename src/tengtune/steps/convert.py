"""convert: weights from one layout and file format to another; of a run its merged model, for MindSpore."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from tengtune.engine import Result
from tengtune.hub.meter import meter
from tengtune.recipe import Recipe
from tengtune.ui import language
from tengtune.ui.console import Console
from tengtune.ui.lists import listed, size
from tengtune.ui.problems import Problem
from tengtune.weights.cast import saturation
from tengtune.weights.companions import foreign_tokenizer
from tengtune.weights.convert import CKPT_FILE, HUGGING_FACE, Conversion, open_conversion, write_conversion
from tengtune.weights.convert_adapter import AdapterConversion, open_adapter, write_adapter_conversion
from tengtune.weights.found import open_found
from tengtune.weights.rank_part import refuse_part
from tengtune.weights.safetensors_io import SHARD_BYTES

FOLDER = "mindspore"


def inputs(recipe: Recipe) -> list[Path]:
    return [recipe.folder / "merged"]


def settings(recipe: Recipe) -> dict[str, Any]:
    return {"to": CKPT_FILE}


def run(recipe: Recipe, console: Console) -> Result:
    """Make `mindspore/` of `merged/`; Problem as `convert`."""
    job = open_job(recipe.folder / "merged", CKPT_FILE)
    return Result([FOLDER], convert(job, recipe.folder / FOLDER, console))


Job = Conversion | AdapterConversion


def open_job(
    source: Path,
    to: str,
    *,
    layout: str | None = None,
    dtype: str | None = None,
    config: Path | None = None,
    part: str | None = None,
    alpha: float | None = None,
    trust: bool = False,
) -> Job:
    """Look at what `source` holds, and check that it can be converted as asked. See weights/convert.py and
    weights/convert_adapter.py for the options and Problems; part: model or adapter, where both are there."""
    found = open_found(source, trust)
    refuse_part(source, found.files[0], found.tensors)
    if found.lora_and_model and part is None:
        raise Problem("convert.both", where=source, lora=len(found.lora), tensors=len(found.tensors))
    if part == "adapter" and not found.lora:
        raise Problem("convert.no_adapter", where=source)
    if found.lora and part != "model":
        return open_adapter(found, to, layout, dtype, alpha)
    return open_conversion(found.without_lora(), to, layout, dtype, config)


def convert(job: Job, out: Path, console: Console, shard_bytes: int = SHARD_BYTES) -> dict[str, Any]:
    """Write the conversion, with progress; its figures."""
    describe(job, console)
    start = time.monotonic()
    if isinstance(job, AdapterConversion):
        write_adapter_conversion(job, out)
    else:
        with meter(console, job.nbytes, "convert.progress") as advance:
            write_conversion(job, out, shard_bytes, advance)
    if job.saturated:
        code, values = saturation("convert", str(job.dtype), job.saturated)
        console.warn(code, **values)
    console.say("convert.done", folder=out)
    return {**figures(job), "saturated": job.saturated, "seconds": round(time.monotonic() - start, 3)}


def describe(job: Job, console: Console) -> None:
    """What is to be done, and what should be known of it."""
    found = job.found
    if found.left_out:
        console.say("convert.left_out", count=len(found.left_out), names=listed(list(found.left_out)))
    if isinstance(job, AdapterConversion):
        scale = f"{job.alpha / job.rank:g}"
        values = {"linears": len(job.linears), "rank": job.rank, "alpha": f"{job.alpha:g}", "scale": scale}
        console.say("convert.adapter", layout=found.named, target=job.layout, **values)
        return
    for code, note in job.notes:
        console.warn(code, **note)
    if job.to != HUGGING_FACE and foreign_tokenizer(job.base):
        console.warn("convert.foreign_tokenizer", folder=job.base)
    console.say(
        "convert.model",
        family=found.family,
        layout=job.source,
        format=found.kind,
        target=job.target,
        files="ckpt" if job.to == CKPT_FILE else "safetensors",
        tensors=len(job.tensors),
        size=size(job.nbytes),
        dtype=job.dtype or language.say("convert.same_dtype"),
    )


def figures(job: Job) -> dict[str, Any]:
    """What a conversion is, for records and --json."""
    common = {"to": job.to, "format": job.found.kind, "family": job.found.family, "bytes": job.nbytes}
    common |= {"from_layout": job.found.named, "left_out": len(job.found.left_out)}
    if isinstance(job, AdapterConversion):
        return {
            **common,
            "layout": job.layout,
            "rank": job.rank,
            "alpha": job.alpha,
            "linears": len(job.linears),
        }
    return {**common, "from_layout": job.source, "layout": job.target, "tensors": len(job.tensors)}
