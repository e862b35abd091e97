"""Distributed MindSpore checkpoints: rank folders -> one whole model, and a whole model -> rank folders.

Nothing is read before it is written: tensors are joined and cut row by row, at constant memory. Names stay as
they were found; models/names.py translates them.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tengtune import files
from tengtune.ui import language
from tengtune.ui.lists import first_few, joined, listed, size
from tengtune.ui.problems import UNFIT_MACHINE, Problem
from tengtune.weights import ckpt_io, safetensors_io
from tengtune.weights.grid import Grid, Part, copied
from tengtune.weights.layout import Layout, optimizer_sharded, repeated
from tengtune.weights.rank_files import Save, check_steps, different_steps, find_saves
from tengtune.weights.rank_part import refuse_part, strategy_beside
from tengtune.weights.safetensors_io import SHARD_BYTES, Advance
from tengtune.weights.source import read_folder
from tengtune.weights.strategy import Strategy, read_strategy, write_strategy
from tengtune.weights.stream import Rows, TensorStream, stream

COUNTERS = ("epoch_num", "step_num", "global_step")
"""What mindformers saves beside the weights to tell where the run stood."""

_STATE = re.compile(
    r"(adam_[mv]|moment[12s]|moments|accu_grads|accum|vhat|vmax)\."
    r"|(loss_scale|scale_sense|learning_rate|current_iterator_step|last_overflow_iterator_step"
    r"|beta[12]_power|batch_num|(epoch|step)_num|global_step)\Z",
    re.ASCII,
)
_WIDE = re.compile(
    r"(?:^|\.)(?![qk]_)(?:embed\w*|wte|word_embeddings|tok_embeddings|\w*norm|norm_out|ln_\w+)\.(?:embedding_)?weight\Z"
)
"""Tensors whose last axis is the hidden size: embeddings and norms, but for those of single heads."""

_ADAPTER = re.compile(r"lora|delta")

Tensors = dict[str, Rows]

Note = tuple[str, dict[str, object]]
"""A message's code and its values."""


@dataclass(frozen=True)
class Shards:
    """A distributed checkpoint that was checked and is not yet read.

    save: the files that are used; notes: what the user should know of the choice;
    tensors: the whole model by the names found; left_out: optimizer states and counters.
    """

    folder: Path
    strategy: Strategy
    save: Save
    tensors: Tensors
    left_out: list[str] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors.values())


def open_file(path: Path) -> Tensors:
    """A .ckpt or .safetensors file's tensors by name, lazily. Raises Problem."""
    if path.suffix == ".safetensors":
        return dict(safetensors_io.open_file(path))
    return ckpt_io.open_file(path)


def open_whole(path: Path) -> Tensors:
    """A whole model's tensors by the names found: a .ckpt or safetensors file, or a Hugging Face folder."""
    return dict(read_folder(path)) if path.is_dir() else open_file(path)


def is_state(name: str, tensor: Rows) -> bool:
    """Whether an entry of a checkpoint is the optimizer's or a counter: no weight is a scalar or a text."""
    return has_state_name(name) or not tensor.shape


def has_state_name(name: str) -> bool:
    """Whether MindSpore or mindformers saves an optimizer's state or a counter under this name."""
    return bool(_STATE.match(name))


def open_shards(folder: Path, strategy: Path | None = None, *, compare: bool = True) -> Shards:
    """Find the newest complete save below `folder` and check that it and its strategy belong together.

    `strategy`: a strategy file or a folder of them; without one, `strategy` in or beside `folder`. compare:
    whether pieces that several ranks hold are compared when they are read. Raises Problem: a rank or a part
    is missing, ranks of different steps, a strategy of another run.
    """
    saves = find_saves(folder)
    plan = _find_strategy(folder, strategy, saves)
    save, notes = _choose(folder, saves, plan)
    opened = {rank: open_file(path) for rank, path in sorted(save.files.items())}
    if not save.name.step:
        check_steps(folder, save.files.values())
    _check_counters(folder, save, opened)
    gathered = _Gathered(plan, opened, compare)
    if gathered.faults:
        raise _misfit("shard.does_not_fit", folder, plan, gathered.faults)
    twins = copied(each for each in gathered.tensors.values() if isinstance(each, Grid))
    if twins:
        one, other = (str(save.files[rank]) for rank in twins)
        ranks = " / ".join(map(str, twins))
        raise Problem("shard.copied", where=folder, ranks=ranks, one=one, other=other)
    if not gathered.tensors:
        raise Problem("shard.no_weights", where=folder, found=listed(gathered.left_out) or "-")
    if gathered.absent:
        absent = listed(gathered.absent)
        notes.append(("shard.absent", {"count": len(gathered.absent), "names": absent}))
    return Shards(folder, plan, save, gathered.tensors, gathered.left_out, notes)


def merged_streams(shards: Shards) -> list[TensorStream]:
    """The whole model, to be written anywhere; a Problem while it is read where copies of a part differ."""
    return [stream(name, tensor) for name, tensor in shards.tensors.items()]


def _misfit(code: str, where: Path | None, strategy: Strategy, faults: list[str]) -> Problem:
    file = str(strategy.files[0]) if strategy.files else "-"
    return Problem(code, where=where, faults=first_few(faults), strategy=file, layout=strategy.describe())


def _find_strategy(folder: Path, given: Path | None, saves: list[Save]) -> Strategy:
    """The strategy given, or the one a run keeps beside its checkpoints; none is needed for one rank."""
    path = given or strategy_beside(folder)
    if path is not None:
        return read_strategy(path)
    if any(len(save.files) > 1 for save in saves):
        raise Problem("shard.no_strategy", where=folder, ranks=len(saves[0].files))
    for file in saves[0].files.values():  # one rank's own folder was given, perhaps
        refuse_part(folder, file, open_file(file))
    return Strategy(({},), 1)


def _choose(folder: Path, saves: list[Save], strategy: Strategy) -> tuple[Save, list[Note]]:
    """The newest complete save, and what is to be said of it and of the others."""
    notes: list[Note] = []
    for number, save in enumerate(saves):
        beyond = sorted(rank for rank in save.files if rank >= strategy.ranks)
        if beyond:
            raise Problem(
                "shard.other_ranks",
                where=folder,
                save=save.label,
                beyond=listed(beyond),
                layout=strategy.describe(),
            )
        lost = _lost_ranks(strategy, save.files)
        if lost:
            notes.append(("shard.incomplete", {"save": save.label, "ranks": listed(lost)}))
            continue
        absent = sorted(set(range(strategy.ranks)) - save.files.keys())
        if absent:
            notes.append(("shard.replaced", {"save": save.label, "ranks": listed(absent)}))
        if number + 1 < len(saves):
            older = listed([s.label for s in saves[number + 1 :]])
            notes.append(("shard.older", {"save": save.label, "older": older}))
        return save, notes
    if not _lost_ranks(strategy, {rank: path for save in saves for rank, path in save.files.items()}):
        raise different_steps(folder, {save.label: list(save.files.values()) for save in saves})
    lost, newest = _lost_ranks(strategy, saves[0].files), saves[0]
    raise Problem(
        "shard.missing_rank",
        where=folder,
        missing=listed(lost),
        found=listed(sorted(newest.files)),
        save=newest.label,
        layout=strategy.describe(),
    )


def _lost_ranks(strategy: Strategy, have: Mapping[int, Path]) -> list[int]:
    """The ranks without a file that hold a part no other rank with a file holds."""
    lost: set[int] = set()
    for number, stage in enumerate(strategy.stages):
        first = number * strategy.devices
        there = np.array([first + rank in have for rank in range(strategy.devices)])
        gone = np.zeros(strategy.devices, bool)
        for layout in {*stage.values(), repeated(0, strategy.devices)}:
            if (gone | there).all():  # no rank is absent, or each is lost already
                break
            pieces = layout.pieces()
            gone |= ~np.isin(pieces, pieces[there])
        lost |= {first + int(rank) for rank in np.flatnonzero(gone)}
    return sorted(lost)


def _check_counters(folder: Path, save: Save, opened: dict[int, Tensors]) -> None:
    """Problem where the ranks' own counters differ."""
    for name in COUNTERS:
        groups: dict[str, list[Path]] = defaultdict(list)
        for rank, tensors in opened.items():
            tensor = tensors.get(name)
            if isinstance(tensor, np.ndarray) and tensor.size == 1:
                groups[f"{name} {tensor.item()}"].append(save.files[rank])
        if len(groups) > 1:
            raise different_steps(folder, groups)


class _Gathered:
    """The whole tensors over all ranks' files, and what is wrong with them."""

    def __init__(self, strategy: Strategy, opened: dict[int, Tensors], compare: bool) -> None:
        self.tensors: Tensors = {}
        self.faults: list[str] = []
        left_out: dict[str, None] = {}
        absent: dict[str, None] = {}
        known = 0
        for number, layouts in enumerate(strategy.stages):
            first = number * strategy.devices
            ranks = {r: opened[r] for r in range(first, first + strategy.devices) if r in opened}
            for name in dict.fromkeys(name for tensors in ranks.values() for name in tensors):
                holders = [(rank, tensors[name]) for rank, tensors in ranks.items() if name in tensors]
                cut = name in layouts and layouts[name].tensor_map  # no counter, whatever the files hold
                if _STATE.match(name) or not (cut or any(rows.shape for _, rows in holders)):
                    left_out[name] = None
                    continue
                known += name in layouts
                layout = layouts.get(name) or repeated(len(holders[0][1].shape), strategy.devices)
                self._add(name, layout, holders, compare or name not in layouts)
            absent |= {name: None for name in layouts if not _STATE.match(name)}
        self.left_out = list(left_out)
        self.absent = [name for name in absent if name not in self.tensors and name not in left_out]
        if self.tensors and not known and any(strategy.stages):
            self.faults.append(language.say("shard.fault_other_names", name=next(iter(self.tensors))))
        self.faults += _misshapen(self.tensors)

    def _add(self, name: str, layout: Layout, holders: list[tuple[int, Rows]], compare: bool) -> None:
        kinds = {(rows.shape, rows.dtype.name): rank for rank, rows in holders}
        shape = holders[0][1].shape
        if len(kinds) > 1:
            found = joined(f"rank {rank} {list(s)} {d}" for (s, d), rank in kinds.items())
            self.faults.append(language.say("shard.fault_ranks_differ", name=name, found=found))
        elif len(shape) != len(layout.counts):
            axes = len(layout.counts)
            self.faults.append(language.say("shard.fault_axes", name=name, found=list(shape), axes=axes))
        else:
            twin = self.tensors.get(name)
            grid = Grid(name, layout, holders, compare, twin if isinstance(twin, Grid) else None)
            if twin is not None and (twin.shape, twin.dtype) != (grid.shape, grid.dtype):
                found = f"{list(twin.shape)} {twin.dtype.name}, {list(grid.shape)} {grid.dtype.name}"
                self.faults.append(language.say("shard.fault_ranks_differ", name=name, found=found))
            elif holes := grid.holes:
                count = len(holes)
                self.faults.append(language.say("shard.fault_holes", name=name, count=count, place=holes[0]))
            else:
                self.tensors[name] = grid


def _misshapen(tensors: Tensors) -> Iterator[str]:
    """Signs of a strategy of another run whose pieces happen to fit: in a decoder every matrix has an axis
    as long as the embedding is wide (an adapter's have not)."""
    wide = {tensor.shape[-1]: name for name, tensor in tensors.items() if _WIDE.search(name)}
    if len(wide) > 1:
        shown = listed([f"{name} {list(tensors[name].shape)}" for name in wide.values()])
        yield language.say("shard.fault_widths", found=shown)
    if len(wide) == 1:
        width, first = wide.popitem()
        for name, tensor in tensors.items():
            joined = isinstance(tensor, Grid) and len(tensor.places) > 1 and len(tensor.shape) == 2
            if joined and width not in tensor.shape and not _ADAPTER.search(name):
                found = list(tensor.shape)
                yield language.say("shard.fault_width", name=name, found=found, width=width, first=first)


def write_whole(
    streams: list[TensorStream], out: Path, shard_bytes: int = SHARD_BYTES, advance: Advance | None = None
) -> None:
    """Write tensors to `out`, atomically: a .ckpt or .safetensors file, or else a folder of safetensors; then
    read its structure back. Raises Problem: no space (before anything is written)."""
    files.remove(out.with_name(out.name + files.PARTIAL))
    _check_space(out, sum(tensor.nbytes for tensor in streams))
    if out.suffix == ".ckpt":
        ckpt_io.write_file(out, streams, advance)
    elif out.suffix == ".safetensors":
        safetensors_io.write_file(out, streams, advance)
    else:
        with files.atomic_folder(out) as folder:
            safetensors_io.write_folder(folder, streams, shard_bytes, advance)
    written = {name: (rows.shape, rows.dtype) for name, rows in open_whole(out).items()}
    if written != {tensor.name: (tensor.shape, tensor.dtype) for tensor in streams}:
        raise Problem("shard.not_as_written", where=out)


def sharded_strategy(source: Mapping[str, Rows], ranks: int) -> Strategy:
    """The strategy of `ranks` data-parallel ranks with optimizer sharding (mindformers' usual one)."""
    return Strategy(({n: optimizer_sharded(t.shape, ranks) for n, t in source.items()},), ranks)


def split_streams(source: Mapping[str, Rows], strategy: Strategy) -> list[list[TensorStream]]:
    """What each rank gets of a whole model. Raises Problem: names or shapes do not fit the strategy."""
    return [_parts(source, strategy, rank) for rank in range(strategy.ranks)]


def write_split(
    parts: list[list[TensorStream]],
    strategy: Strategy,
    out: Path,
    suffix: str = ".ckpt",
    advance: Advance | None = None,
) -> None:
    """Write `out`/rank_N/checkpoint_N.ckpt (or .safetensors) and the strategy files beside them, atomically.

    Raises Problem: no space (before anything is written)."""
    files.remove(out.with_name(out.name + files.PARTIAL))
    _check_space(out, sum(part.nbytes for rank in parts for part in rank))
    write: Any = ckpt_io.write_file if suffix == ".ckpt" else safetensors_io.write_file
    with files.atomic_folder(out) as folder:
        for rank, streams in enumerate(parts):
            write(folder / f"rank_{rank}" / f"checkpoint_{rank}{suffix}", streams, advance)
        write_strategy(strategy, folder / "strategy")


def _parts(source: Mapping[str, Rows], strategy: Strategy, rank: int) -> list[TensorStream]:
    """What one rank gets."""
    layouts = strategy.stages[rank // strategy.devices]
    named = {name for stage in strategy.stages for name in stage}
    faults = [language.say("shard.fault_not_in_strategy", name=name) for name in source if name not in named]
    parts = []
    for name, layout in layouts.items():
        whole = source.get(name)
        if whole is None:
            if not _STATE.match(name):
                faults.append(language.say("shard.fault_not_in_model", name=name))
            continue
        box = layout.part(whole.shape, rank % strategy.devices)
        if box is None:
            found, counts = list(whole.shape), list(layout.counts)
            faults.append(language.say("shard.fault_uneven", name=name, found=found, counts=counts))
        else:
            parts.append(stream(name, Part(whole, box) if box else whole))
    if faults:
        raise _misfit("shard.cannot_split", None, strategy, faults)
    return parts


def _check_space(out: Path, need: int) -> None:
    need, free = need + 2**20, files.free_bytes(out)
    if need > free:
        raise Problem("merge.no_space", where=out, exit_code=UNFIT_MACHINE, need=size(need), free=size(free))
