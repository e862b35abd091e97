"""Finding the files of a distributed checkpoint: one a rank, under the names MindSpore and mindformers leave.

`rank_N/qwen_rank_N-network.ckpt`, `qwen_rank_N-{epoch}_{step}.ckpt`, `checkpoint_N.ckpt`, the same as
safetensors, or any one name a folder. A later run into the same folders puts `_1`, `_2` ... before the "-",
and what an older one left stays beside it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tengtune.json_file import read_object
from tengtune.ui.lists import first_few, listed
from tengtune.ui.problems import Problem, os_errors

SUFFIXES = (".ckpt", ".safetensors")
_SAVED = ("checkpoint_network", "checkpoint")
"""Where a mindformers output folder keeps its checkpoints: weights alone, or with the optimizer's states."""

_FOLDER = re.compile(r"rank_(\d{1,6})", re.ASCII)
_NAME = re.compile(
    r"(?P<prefix>.*?)(?:(?P<word>rank|checkpoint)_(?P<rank>\d{1,6}))?(?:_(?P<run>\d{1,6}))?(?:-(?P<tail>.+))?",
    re.ASCII | re.DOTALL,
)
_TAIL = re.compile(r"(?P<epoch>\d{1,9})_(?P<step>\d{1,9})(?P<rest>.*)", re.ASCII | re.DOTALL)


@dataclass(frozen=True)
class Name:
    """What a checkpoint's file name says. family: all of it but the numbers; rank: None where it has none."""

    family: tuple[str, str, str, str]
    rank: int | None
    run: int
    epoch: int
    step: int

    @property
    def label(self) -> str:
        """The name with N for the rank."""
        prefix, word, kind, suffix = self.family
        rank = f"{word}_N" if word else ""
        run = f"_{self.run}" if self.run else ""
        tail = f"{self.epoch}_{self.step}{kind}" if self.step or self.epoch else kind
        return prefix + rank + run + (f"-{tail}" if tail else "") + suffix


@dataclass(frozen=True)
class Save:
    """What one run saved at one time: a file for each rank (some may be missing)."""

    name: Name
    files: dict[int, Path]

    @property
    def label(self) -> str:
        return self.name.label

    @property
    def order(self) -> tuple[int, int, int]:
        """Later saves are greater. Numbers, as `_10` comes after `_2`."""
        return self.name.run, self.name.epoch, self.name.step


def parse(file: str) -> Name:
    """Take a file's name apart."""
    stem, dot, suffix = file.rpartition(".")
    match = _NAME.fullmatch(stem)
    assert match is not None  # every part is optional, and the prefix takes the rest
    tail = _TAIL.fullmatch(match["tail"] or "")
    kind = tail["rest"] if tail else match["tail"] or ""
    return Name(
        family=(match["prefix"], match["word"] or "", kind, dot + suffix),
        rank=int(match["rank"]) if match["rank"] else None,
        run=int(match["run"] or 0),
        epoch=int(tail["epoch"]) if tail else 0,
        step=int(tail["step"]) if tail else 0,
    )


def rank_number(name: str) -> int | None:
    """N of a folder's name rank_N; None for other names."""
    match = _FOLDER.fullmatch(name)
    return int(match[1]) if match else None


def _ranked(entries: list[Path]) -> list[tuple[int, Path]]:
    """The folders rank_N among them, with their rank; rank_0 and rank_00 are both of rank 0."""
    return [(n, path) for path in entries if (n := rank_number(path.name)) is not None and path.is_dir()]


def find_saves(folder: Path) -> list[Save]:
    """The saves below `folder`, the newest first. It holds rank_N folders, or files that name their rank,
    or is the output folder of mindformers. Problem: nothing found, names of several kinds, a file in the
    folder of another rank, two files of one rank and save."""
    with os_errors(folder):
        entries = sorted(folder.iterdir())
    ranks = _ranked(entries)
    if ranks:
        with os_errors(folder):
            found = [(r, p) for r, ranked in ranks for p in sorted(ranked.iterdir())]
    else:
        named = [(parse(p.name).rank, p) for p in entries if "strategy" not in p.name]
        found = [(rank, p) for rank, p in named if rank is not None]
    found = [(rank, path) for rank, path in found if path.suffix in SUFFIXES and path.is_file()]
    if not found:
        saved = next((folder / name for name in _SAVED if (folder / name).is_dir()), None)
        if saved is not None:
            return find_saves(saved)
        raise Problem("shard.none", where=folder, found=listed([p.name for p in entries]) or "-")
    saves: dict[Name, dict[int, Path]] = defaultdict(dict)
    for rank, path in found:
        name = parse(path.name)
        if name.rank not in (None, rank):
            raise Problem("shard.wrong_folder", where=path, file=name.rank, folder=rank)
        key = Name(name.family, None, name.run, name.epoch, name.step)
        if rank in saves[key]:
            files = f"{_short(saves[key][rank])}\n{_short(path)}"
            raise Problem("shard.same_rank", where=folder, rank=rank, files=files)
        saves[key][rank] = path
    result = sorted((Save(name, files) for name, files in saves.items()), key=lambda s: s.order, reverse=True)
    labels = {save.name.family: save.label for save in result}
    if len(labels) > 1:
        raise Problem("shard.several_kinds", where=folder, kinds=first_few(sorted(labels.values())))
    return result


def check_steps(folder: Path, paths: Iterable[Path]) -> None:
    """Problem where meta.json beside the ranks' files (mindformers' book of the last save) tells of
    different steps. Only for names that carry no step: otherwise the books may be of a later save."""
    steps: dict[tuple[object, object], list[Path]] = defaultdict(list)
    for path in paths:
        meta = path.parent / "meta.json"
        if meta.is_file():
            content = read_object(meta, "shard.bad_meta")
            steps[str(content.get("last_epoch")), str(content.get("last_step"))].append(path)
    if len(steps) > 1:
        raise different_steps(
            folder, {f"last_epoch {e}, last_step {s}": found for (e, s), found in steps.items()}
        )


def different_steps(folder: Path, groups: dict[str, list[Path]]) -> Problem:
    """The Problem of ranks that were saved at different times: what -> the files of which it holds."""
    shown = [f"{what}: {listed([_short(p) for p in paths])}" for what, paths in groups.items()]
    return Problem("shard.different_steps", where=folder, groups=first_few(shown))


def _short(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"
