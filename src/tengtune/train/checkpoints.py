"""A checkpoint: a folder `step_N` that holds a run's trained tensors, optimizer and state after step N.

    rank_00000-of-00001.safetensors   what that rank kept: "<kind>/<name>", kind param, exp_avg or exp_avg_sq
    layout.json                       the shape of every tensor and the ranges the ranks hold of it, size and
                                      SHA-256 of every rank's file, the run's settings and its state, and in
                                      "check" the SHA-256 of all this

The format is the same for both back ends and any number of ranks: a rank's share is a flat range of a tensor,
so reading gives whole tensors however many ranks wrote them. A folder under that name is whole, because it is
written aside, flushed and renamed; what happened to it later shows in sizes and hashes.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np

from tengtune import __version__, files, json_file
from tengtune.backends.base import Array, Shard, ShardKind
from tengtune.train import state as states
from tengtune.train.ranks import Alone, Ranks
from tengtune.train.state import State
from tengtune.ui import language
from tengtune.ui.problems import Problem, os_errors
from tengtune.weights.ckpt_io import Joined
from tengtune.weights.safetensors_io import open_file, write_file
from tengtune.weights.stream import PIECE_BYTES, Rows, TensorStream

FORMAT, VERSION = "tengtune checkpoint", 1
LAYOUT = "layout.json"
DAMAGED = "checkpoint.damaged"

Shards = Callable[[], Iterator[Shard]]
"""A back end's named_shards: the same tensors in the same order at every call."""


@dataclass(frozen=True)
class RankFile:
    """One rank's file: name, size, hash, and key -> (shape of the whole tensor, offset, elements held)."""

    name: str
    size: int
    sha256: str
    ranges: dict[str, tuple[tuple[int, ...], int, int]]


def write(folder: Path, shards: Shards, about: Mapping[str, Any], ranks: Ranks = Alone()) -> None:  # noqa: B008
    """Write a checkpoint; it is there whole or not at all. Each of `ranks` calls it and writes its share.

    about: `state`, `same` and whatever else layout.json shall say. Problem when the system does not let us.
    """
    if ranks.rank == 0:
        with files.atomic_folder(folder) as partial_folder:
            parts = _write_shares(partial_folder, shards, ranks)
            text = json.dumps(layout(parts, about), ensure_ascii=False, indent=1, allow_nan=False)
            files.write_text(partial_folder / LAYOUT, text + "\n")
    else:
        _write_shares(files.working_names(folder)[0], shards, ranks)
    ranks.most(0)  # it has its name


def _write_shares(folder: Path, shards: Shards, ranks: Ranks) -> list[RankFile]:
    """Write this rank's share into the folder rank 0 has made; what every rank has written."""
    ranks.most(0)  # it is there
    mine = write_rank(folder, shards, ranks.rank, ranks.world)
    return [_rank_file(json.loads(text)) for text in ranks.gather(json.dumps(dataclasses.asdict(mine)))]


def _rank_file(values: dict[str, Any]) -> RankFile:
    ranges = {key: (tuple(shape), *held) for key, (shape, *held) in values["ranges"].items()}
    return RankFile(**{**values, "ranges": ranges})


def write_rank(folder: Path, shards: Shards, rank: int, world: int) -> RankFile:
    """Write one rank's share, tensor by tensor."""
    source = shards()
    ranges, streams = {}, []
    for key, held, shape, dtype in map(_about, shards()):
        ranges[key] = held
        streams.append(TensorStream(key, shape, dtype, partial(_next_array, source, key)))
    path = folder / f"rank_{rank:05}-of-{world:05}.safetensors"
    write_file(path, streams)
    return RankFile(path.name, path.stat().st_size, _sha256(path), ranges)


def _about(shard: Shard) -> tuple[str, tuple[tuple[int, ...], int, int], tuple[int, ...], np.dtype[Any]]:
    """Its key, its place in the whole, its array's shape and type: what is known of it without its values, of
    which only one tensor's may be held at a time."""
    held = (shard.shape, shard.offset, shard.array.size)
    return f"{shard.kind}/{shard.name}", held, shard.array.shape, shard.array.dtype


def layout(ranks: list[RankFile], about: Mapping[str, Any]) -> dict[str, Any]:
    """The contents of layout.json for the files of all ranks, in the order of their numbers."""
    tensors: dict[str, Any] = {}
    for rank, file in enumerate(ranks):
        for key, (shape, offset, size) in file.ranges.items():
            entry = tensors.setdefault(key, {"shape": list(shape), "ranges": []})
            entry["ranges"].append({"rank": rank, "offset": offset, "size": size})
    about = {
        "format": FORMAT,
        "version": VERSION,
        "tengtune": __version__,
        "saved": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        **about,
        "world": len(ranks),
        "files": [{"name": f.name, "size": f.size, "sha256": f.sha256} for f in ranks],
        "tensors": tensors,
    }
    return {**about, "check": json_file.digest(about)}


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was found whole."""

    folder: Path
    about: dict[str, Any]
    state: State
    _files: list[dict[str, Array]]

    @property
    def world(self) -> int:
        """Ranks that wrote it."""
        return len(self._files)

    def shards(self) -> Iterator[Shard]:
        """Every tensor, whole, one at a time: mapped from the file where one rank held it all."""
        for key in self.about["tensors"]:
            kind, _, name = key.partition("/")
            yield Shard(name, cast(ShardKind, kind), self.tensor(key))

    def keys(self, kind: ShardKind) -> list[str]:
        """The tensors of a kind, as "kind/name"."""
        return [key for key in self.about["tensors"] if key.startswith(f"{kind}/")]

    def tensor(self, key: str) -> Array:
        """One tensor, whole, by "kind/name"."""
        entry = self.about["tensors"][key]
        parts = [(r["offset"], self._files[r["rank"]][key].reshape(-1)) for r in entry["ranges"]]
        whole = parts[0][1]
        if len(parts) > 1:
            whole = np.empty(math.prod(entry["shape"]), whole.dtype)
            for offset, part in parts:
                whole[offset : offset + part.size] = part
        array: Array = whole.reshape(entry["shape"])
        return array

    def rows(self, key: str) -> Rows:
        """One tensor by "kind/name", of which no more is read than is asked for."""
        entry = self.about["tensors"][key]
        ranges = sorted(entry["ranges"], key=lambda r: int(r["offset"]))
        held = [self._files[r["rank"]][key].reshape(-1) for r in ranges]
        return Joined([part.view(np.uint8) for part in held], held[0].dtype, tuple(entry["shape"]))


class Parameters(Mapping[str, Array]):
    """The trained tensors of a checkpoint by name, each joined when it is asked for."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._names = [key.removeprefix("param/") for key in checkpoint.keys("param")]

    def __getitem__(self, name: str) -> Array:
        return self._checkpoint.tensor(f"param/{name}")

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def read(folder: Path) -> Checkpoint:
    """Open a checkpoint and check all of it, byte by byte. Problem `checkpoint.damaged` with the reason when
    it is not what was written; other Problems when the system cannot read it."""
    if not (folder / LAYOUT).is_file():
        raise _damaged(folder / LAYOUT, "missing")
    about = json_file.read_object(folder / LAYOUT, DAMAGED)
    try:
        if (about["format"], about["version"]) != (FORMAT, VERSION):
            raise _damaged(folder / LAYOUT, "version", version=about["version"])
        if about["check"] != json_file.digest({key: about[key] for key in about if key != "check"}):
            raise _damaged(folder / LAYOUT, "sha256")
        if not (isinstance(about["saved"], str) and isinstance(about.get("same", {}), dict)):
            raise TypeError("saved, same")
        for file in about["files"]:
            _check_file(folder / file["name"], int(file["size"]), file["sha256"])
        opened = [open_file(folder / file["name"]) for file in about["files"]]
        for key, entry in about["tensors"].items():
            _check_ranges(folder / LAYOUT, key, entry, opened)
        return Checkpoint(folder, about, states.from_json(about["state"]), opened)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise _damaged(folder / LAYOUT, "entry", reason=f"{type(error).__name__}: {error}") from error


def _check_file(path: Path, size: int, sha256: str) -> None:
    if not path.is_file():
        raise _damaged(path, "missing")
    if path.stat().st_size != size:
        raise _damaged(path, "size", there=f"{path.stat().st_size:,}", wanted=f"{size:,}")
    if _sha256(path) != sha256:
        raise _damaged(path, "sha256")


def _check_ranges(path: Path, key: str, entry: dict[str, Any], opened: list[dict[str, Array]]) -> None:
    """The ranges of a tensor must follow one another from its first element to its last."""
    end = 0
    for part in sorted(entry["ranges"], key=lambda r: int(r["offset"])):
        if part["offset"] != end or opened[part["rank"]][key].size != part["size"]:
            raise _damaged(path, "ranges", tensor=key)
        end += part["size"]
    if end != math.prod(entry["shape"]):
        raise _damaged(path, "ranges", tensor=key)


def _damaged(path: Path, fault: str, **values: object) -> Problem:
    """The Problem with the text `checkpoint.fault_<fault>` as its reason."""
    return Problem(DAMAGED, where=path, reason=language.say(f"checkpoint.fault_{fault}", **values))


def _next_array(source: Iterator[Shard], key: str) -> Iterator[Array]:
    shard = next(source)
    if f"{shard.kind}/{shard.name}" != key:
        raise ValueError(f"{shard.kind}/{shard.name} came, {key} was announced")
    yield np.ascontiguousarray(shard.array)


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with os_errors(path), open(path, "rb") as stream:
        while piece := stream.read(PIECE_BYTES):
            digest.update(piece)
    return digest.hexdigest()


class Shelf:
    """The checkpoints of a run: the folder `checkpoints/` with one folder per step."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, step: int) -> Path:
        """Where the checkpoint of a step lies."""
        return self.folder / f"step_{step}"

    def steps(self) -> list[int]:
        """The steps that have a checkpoint, whole or damaged, in rising order."""
        if not self.folder.is_dir():
            return []
        numbers = (f.name.removeprefix("step_") for f in self.folder.iterdir() if f.name.startswith("step_"))
        plain = (number for number in numbers if number.isascii() and number.isdecimal())
        return sorted(int(number) for number in plain if str(int(number)) == number)  # step_04 is not ours

    def discard(self, step: int) -> None:
        """Delete a checkpoint; killed midway, it leaves none that looks whole."""
        _discard(self.path(step))

    def clear(self) -> None:
        """Delete all checkpoints, and nothing else that lies there."""
        for step in self.steps():
            self.discard(step)

    def sweep(self) -> None:
        """Delete what killed runs left half-written or half-deleted."""
        for path in (_aside(self.folder), *self.folder.glob(f"*{files.PARTIAL}")):
            files.remove(path)


def _aside(path: Path) -> Path:
    return path.with_name(path.name + files.PARTIAL)


def _discard(path: Path) -> None:
    with os_errors(path):
        files.remove(_aside(path))
        os.replace(path, _aside(path))
        files.remove(_aside(path))
