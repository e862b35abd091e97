"""merge: base + adapter (or fully tuned weights) -> `merged/`, a Hugging Face folder that stands alone."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tengtune.engine import Result
from tengtune.files import refuse_taken
from tengtune.models import layouts
from tengtune.recipe import Recipe
from tengtune.ui import language
from tengtune.ui.console import Console
from tengtune.ui.lists import listed, size
from tengtune.weights.cast import saturation
from tengtune.weights.found import open_all
from tengtune.weights.merge import open_merge, place_full, write_merge
from tengtune.weights.output import refuse_input
from tengtune.weights.rank_part import refuse_part
from tengtune.weights.safetensors_io import SHARD_BYTES, Advance
from tengtune.weights.shard import (
    merged_streams,
    open_shards,
    sharded_strategy,
    split_streams,
    write_split,
    write_whole,
)
from tengtune.weights.strategy import read_strategy


def inputs(recipe: Recipe) -> list[Path]:
    return [recipe.model_folder, _trained(recipe)]


def settings(recipe: Recipe) -> dict[str, Any]:
    return {"method": recipe.train.method}


def run(recipe: Recipe, console: Console) -> Result:
    """Make `merged/`; Problem: adapter and base do not fit, no space, values not finite."""
    out = recipe.folder / "merged"
    refuse_taken(out)
    if recipe.train.method == "lora":
        return Result(["merged"], merge_adapter(recipe.model_folder, _trained(recipe), out, console))
    linked = place_full(recipe.model_folder, _trained(recipe), out)
    how = language.say("merge.by_link" if linked else "merge.by_copy")
    console.say("merge.linked", folder=out, how=how)
    return Result(["merged"], {"linked": linked})


def merge_adapter(
    base: Path, adapter: Path, out: Path, console: Console, shard_bytes: int = SHARD_BYTES
) -> dict[str, Any]:
    """Merge one adapter into one base model, with progress; the figures of the merge."""
    merge = open_merge(base, adapter)
    console.say(
        "merge.adapter",
        pairs=len(merge.adapter.pairs),
        rank=merge.adapter.rank,
        scale=f"{merge.adapter.scale:g}",
        base=base.name,
        tensors=len(merge.source),
        size=size(merge.nbytes),
    )
    start = time.monotonic()
    with _progress(console, merge.nbytes) as advance:
        write_merge(merge, out, shard_bytes, advance)
    by_dtype: dict[str, list[str]] = {}
    for name in merge.saturated:
        by_dtype.setdefault(merge.source[name].dtype.name, []).append(name)
    for dtype, tensors in by_dtype.items():
        code, values = saturation("merge", dtype, tensors)
        console.warn(code, **values)
    if merge.spoilt:
        console.warn("merge.spoilt", tensors=listed(merge.spoilt))
    console.say("merge.done", folder=out)
    return {
        "bytes": merge.nbytes,
        "tensors": len(merge.source),
        "adapted": len(merge.adapter.pairs),
        "rank": merge.adapter.rank,
        "scale": merge.adapter.scale,
        "saturated": merge.saturated,
        "not_finite": merge.spoilt,
        "seconds": round(time.monotonic() - start, 3),
    }


def merge_shards(
    shards: Path,
    strategy: Path | None,
    out: Path,
    console: Console,
    shard_bytes: int = SHARD_BYTES,
    compare: bool = True,
) -> dict[str, Any]:
    """Join the rank folders of a distributed MindSpore run into one model, in the names found; its figures.

    out: a .ckpt or .safetensors file, or else a folder of safetensors. See weights/shard.py for the Problems.
    """
    whole = open_shards(shards, strategy, compare=compare)
    refuse_input("merge.out_is_input", out, shards, *whole.strategy.files, *whole.save.files.values())
    for code, values in whole.notes:
        console.warn(code, **values)
    console.say(
        "merge.shards",
        save=whole.save.label,
        files=len(whole.save.files),
        tensors=len(whole.tensors),
        size=size(whole.nbytes),
        left_out=len(whole.left_out),
        layout=whole.strategy.describe(),
        strategy=whole.strategy.files[0] if whole.strategy.files else "-",
    )
    start = time.monotonic()
    with _progress(console, whole.nbytes) as advance:
        write_whole(merged_streams(whole), out, shard_bytes, advance)
    console.say("merge.shards_done", out=out)
    adapted = sum(layouts.lora_linear(name) is not None for name in whole.tensors)
    if adapted:
        console.say("merge.shards_adapter", tensors=adapted, out=shlex.quote(str(out)))
    return {
        "save": whole.save.label,
        "ranks": sorted(whole.save.files),
        "layout": whole.strategy.describe(),
        "notes": [language.say(code, **values) for code, values in whole.notes],
        "bytes": whole.nbytes,
        "tensors": len(whole.tensors),
        "adapter_tensors": adapted,
        "left_out": len(whole.left_out),
        "seconds": round(time.monotonic() - start, 3),
    }


def split_whole(
    whole: Path, strategy: Path | None, ranks: int | None, out: Path, console: Console
) -> dict[str, Any]:
    """Cut a whole model into rank folders for a strategy, or for a number of ranks; its figures.

    whole: a file, or a folder of weights. See weights/shard.py for the Problems. Files are of the kind the
    model was found in.
    """
    kind, files, source = open_all(whole)
    refuse_input("merge.out_is_input", out, whole, *files, *([strategy] if strategy else []))
    refuse_part(whole, files[0], source)
    if (signs := layouts.detect(source)) is not None and signs[1] == layouts.HF:
        console.warn("merge.split_hf")
    plan = read_strategy(strategy) if strategy else sharded_strategy(source, ranks or 1)
    console.say("merge.split", tensors=len(source), layout=plan.describe())
    parts = split_streams(source, plan)
    if ranks is not None and ranks > 1 and not plan.cuts:
        nbytes = sum(rows.nbytes for rows in source.values())
        console.warn("merge.nothing_cut", ranks=ranks, size=size(nbytes))
    suffix = ".ckpt" if kind == "ckpt" else ".safetensors"
    start = time.monotonic()
    with _progress(console, sum(part.nbytes for rank in parts for part in rank)) as advance:
        write_split(parts, plan, out, suffix, advance)
    console.say("merge.split_done", out=out)
    return {"ranks": plan.ranks, "layout": plan.describe(), "seconds": round(time.monotonic() - start, 3)}


@contextmanager
def _progress(console: Console, nbytes: int) -> Iterator[Advance]:
    """A bar over megabytes; gives the function that is told of the bytes just written."""
    done = 0
    with console.progress(_megabytes(nbytes), language.say("merge.progress")) as bar:

        def advance(count: int) -> None:
            nonlocal done
            before, done = done, done + count
            if _megabytes(done) > _megabytes(before):
                bar.update(_megabytes(done))

        yield advance


def _megabytes(count: int) -> int:
    return -(-count // 10**6)


def _trained(recipe: Recipe) -> Path:
    return recipe.folder / ("adapter" if recipe.train.method == "lora" else "full")
