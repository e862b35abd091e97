"""Whether a file of weights is one rank's of several, which may hold a part of every tensor only: what its
place and the strategy beside it tell."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tengtune.ui.problems import Problem
from tengtune.weights.rank_files import SUFFIXES, parse, rank_number
from tengtune.weights.strategy import Strategy, read_strategy


@dataclass(frozen=True)
class RankPart:
    """One rank's file. folder: the one that holds all ranks; certain: whether the strategy says that the file
    holds a part; otherwise it may hold the whole."""

    rank: int
    ranks: int
    folder: Path
    certain: bool


def strategy_beside(folder: Path) -> Path | None:
    """The folder of strategy files that a run keeps in or beside the one of its ranks."""
    return next((each for place in (folder, folder.parent) if (each := place / "strategy").is_dir()), None)


def rank_part(file: Path, names: Iterable[str]) -> RankPart | None:
    """What is known of a file with tensors of these names; None where it holds the whole model, as far as can
    be told."""
    parent = file.absolute().parent
    rank, folder = rank_number(parent.name), parent.parent
    if rank is None:
        rank, folder = _in_name(file), parent
    beside = strategy_beside(folder)
    others = _ranks_in(folder)
    if rank is None or (beside is None and (folder == parent or len(others) < 2)):
        return None
    strategy = _read(beside)
    if strategy is None or rank >= strategy.ranks:
        return RankPart(rank, max(len(others), rank + 1), folder, certain=False)
    layouts = strategy.stages[rank // strategy.devices]
    cut = any(max(layouts[name].counts, default=1) > 1 for name in names if name in layouts)
    if not cut and len(strategy.stages) == 1:
        return None
    # Tools that merge leave the whole model in a folder rank_0 of its own, perhaps beside the strategy.
    return RankPart(rank, strategy.ranks, folder, certain=rank > 0 or len(others) > 1)


def _in_name(file: Path) -> int | None:
    """The rank that a checkpoint's own name tells."""
    return parse(file.name).rank if file.suffix in SUFFIXES else None


def _ranks_in(folder: Path) -> set[int]:
    """The ranks that have a folder there, or a file named for them."""
    try:
        entries = list(folder.iterdir())
    except OSError:
        return set()
    found = (rank_number(entry.name) if entry.is_dir() else _in_name(entry) for entry in entries)
    return {rank for rank in found if rank is not None}


def refuse_part(where: Path, file: Path, names: Iterable[str]) -> None:
    """Problem for a file that certainly holds a part only."""
    part = rank_part(file, names)
    if part is not None and part.certain:
        folder = shlex.quote(str(part.folder))
        raise Problem("shard.rank_part", where=where, rank=part.rank, ranks=part.ranks, folder=folder)


def _read(beside: Path | None) -> Strategy | None:
    try:
        return None if beside is None else read_strategy(beside)
    except Problem:
        return None
