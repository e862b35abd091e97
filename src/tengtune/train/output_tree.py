"""`output.layout: mindformers`: what a training leaves, once more as mindformers' output folder has it.

    checkpoint_network/rank_N/qwen_rank_N-network.ckpt  the weights in the base's types; of LoRA the base's,
                                                        and the adapter's beside them
    checkpoint/rank_N/qwen_rank_N-{epoch}_{step}.ckpt   what is trained in float32, its adam_m and adam_v,
                                                        what is frozen, loss scale, counters; see meta.json
    strategy/ckpt_strategy_rank_N.ckpt                  how the ranks share both

Every rank holds 1/N of axis 0 where N divides it, as under enable_parallel_optimizer; otherwise the whole.
The folder is written whole, aside, and replaces the one before: no file of an earlier training stays in it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tengtune import files
from tengtune.backends.base import Source
from tengtune.models import layouts, names
from tengtune.models.layouts import MINDFORMERS
from tengtune.models.spec import ModelSpec
from tengtune.train.checkpoints import Checkpoint
from tengtune.ui.lists import size
from tengtune.ui.problems import UNFIT_MACHINE, Problem
from tengtune.weights import ckpt_io
from tengtune.weights.grid import Part
from tengtune.weights.record import NAME, Record, write_record
from tengtune.weights.shard import sharded_strategy, split_streams
from tengtune.weights.strategy import write_strategy
from tengtune.weights.stream import Array, Counted, Rows, TensorStream, stream

FOLDER = "output"
"""In the run folder, where mindformers has it under its own."""

_STATES = {"param": "", "exp_avg": "adam_m.", "exp_avg_sq": "adam_v."}
"""What a checkpoint of ours keeps, and what theirs puts before the name of the weight."""


def refuse(spec: ModelSpec, where: Path) -> None:
    """Problem for a model that mindformers has in other classes, which keep no such folder."""
    if spec.family == "qwen3":
        raise Problem("train.tree_qwen3", where=where)


def clear(folder: Path, wanted: bool) -> None:
    """Remove the tree of an earlier training, lest its weights be merged for this one's. Problem where one is
    `wanted` and something of another origin has its name."""
    if (folder / NAME).is_file():
        aside = files.working_names(folder)[1]
        files.remove(aside)
        os.replace(folder, aside)
        files.remove(aside)
    elif wanted and os.path.lexists(folder):
        raise Problem("train.tree_taken", where=folder)


def write(
    folder: Path, spec: ModelSpec, base: Source, checkpoint: Checkpoint, ranks: int, epoch_steps: int
) -> None:
    """Write the tree for so many ranks, atomically. base: the model's tensors by canonical name; epoch_steps:
    steps of an epoch. Problem: no space (before anything is written)."""
    states = {kind: _trained(checkpoint, kind) for kind in _STATES}
    network = {**base, **{name: _like(rows, base.get(name)) for name, rows in states["param"].items()}}
    trained = {**base, **states["param"]}
    stored = {name: layouts.stored_name(name, spec.family, MINDFORMERS) for name in trained}
    weights = {stored[name]: rows for name, rows in network.items()}
    everything = {stored[name]: rows for name, rows in trained.items()}
    for kind in ("exp_avg", "exp_avg_sq"):
        everything |= {f"{_STATES[kind]}{stored[name]}": rows for name, rows in states[kind].items()}
    strategy = sharded_strategy(everything, ranks)
    parts = [split_streams(tensors, strategy) for tensors in (weights, everything)]
    _check_space(folder, sum(part.nbytes for each in parts for rank in each for part in rank))
    epoch, step = divmod(checkpoint.state.step - 1, epoch_steps)
    counters = list(_counters(checkpoint, epoch + 1))
    with files.atomic_folder(folder) as partial:
        for rank, (light, full) in enumerate(zip(*parts, strict=True)):
            place, called = f"rank_{rank}", f"qwen_rank_{rank}"
            ckpt_io.write_file(partial / "checkpoint_network" / place / f"{called}-network.ckpt", light)
            last = f"{called}-{epoch + 1}_{step + 1}.ckpt"
            ckpt_io.write_file(partial / "checkpoint" / place / last, [*full, *counters])
            meta = {"last_epoch": epoch + 1, "last_step": step + 1, "last_ckpt_file": last}
            files.write_text(partial / "checkpoint" / place / "meta.json", json.dumps(meta) + "\n")
        write_strategy(strategy, partial / "strategy")
        write_record(partial, Record(MINDFORMERS))


def _trained(checkpoint: Checkpoint, kind: Any) -> dict[str, Rows]:
    """What the checkpoint keeps of a kind, by canonical name; of a linear that stands for several, as Qwen1's
    c_attn in an adapter, the parts: mindformers has an A for each."""
    found: dict[str, Rows] = {}
    for key in checkpoint.keys(kind):
        name, rows = key.partition("/")[2], checkpoint.rows(key)
        linear, last = names.split_lora(name) or (name, "")
        parts = names.parts_of(linear) if last else [linear]
        share = rows.shape[0] // len(parts)
        for number, part in enumerate(parts):
            own = slice(number * share, (number + 1) * share)
            cut = len(parts) > 1 and last == names.LORA_B
            found[part + last] = Part(rows, (own, slice(0, rows.shape[1]))) if cut else rows
    return found


def _like(rows: Rows, base: Array | None) -> Rows:
    """A trained tensor in the type of the base's; an adapter's as it is."""
    return rows if base is None or base.dtype == rows.dtype else _Cast(rows, base.dtype)


class _Cast(Counted):
    """A tensor in another dtype, rounded to the nearest even, as `full/` has it."""

    def __init__(self, rows: Rows, dtype: np.dtype[Any]) -> None:
        self._rows, self.shape, self.dtype = rows, rows.shape, dtype

    def __getitem__(self, rows: slice) -> Array:
        with np.errstate(over="ignore"):  # an overflow becomes an infinity, which the checks look for
            cast: Array = self._rows[rows].astype(self.dtype)
        return cast


def _counters(checkpoint: Checkpoint, epoch: int) -> Iterator[TensorStream]:
    """What mindformers saves behind the tensors, in its types."""
    state = checkpoint.state
    values: Mapping[str, Array] = {
        "loss_scale": np.array(state.scale.value, np.float32),
        "epoch_num": np.array(epoch, np.int64),
        "step_num": np.array(state.step, np.int64),
        "global_step": np.array([state.applied], np.int32),
    }
    for name, value in values.items():
        yield stream(name, value)


def _check_space(folder: Path, need: int) -> None:
    need, free = need + 2**20, files.free_bytes(folder)
    if need > free:
        values = {"need": size(need), "free": size(free)}
        raise Problem("train.tree_no_space", where=folder, exit_code=UNFIT_MACHINE, **values)
