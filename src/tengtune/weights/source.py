"""A model folder's weights by canonical name: one file or shards with an index, checked, never copied."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import cast

from tengtune.json_file import read_object
from tengtune.models import layouts, names
from tengtune.models.layouts import HALF_REVERSED, HF
from tengtune.models.spec import ModelSpec
from tengtune.ui import language
from tengtune.ui.lists import first_few, listed
from tengtune.ui.problems import Problem, os_errors
from tengtune.weights import safetensors_io, torch_zip
from tengtune.weights.safetensors_io import INDEX, SINGLE
from tengtune.weights.stacks import stored_shapes, take_apart
from tengtune.weights.stream import Array, Rows, is_float, same_bits

TORCH_SINGLE = "pytorch_model.bin"
TORCH_INDEX = "pytorch_model.bin.index.json"
MINDSPORE_INDEX = "param_name_map.json"
"""MindSpore's index of safetensors files, with or without a key "weight_map" around the names."""

_PLAIN_NAME = re.compile(r"[\w.-]{1,200}(\.safetensors|\.bin)", re.ASCII)

_WEIGHTS = re.compile(r"(model.*\.safetensors|pytorch_model.*\.bin)", re.DOTALL)
"""What a model's weight files are called, so that some program may load them."""


def open_weights(path: Path) -> dict[str, Array]:
    """The tensors of one weight file by name, as read-only views of its memory map; Problem if damaged."""
    if path.suffix == ".safetensors":
        return safetensors_io.open_file(path)
    return torch_zip.open_file(path)


def open_source(folder: Path, spec: ModelSpec) -> dict[str, Array]:
    """Every tensor of `spec` by canonical name, as a read-only memory map in the file's own dtype.

    Headers, names, shapes and dtypes are checked, values are not. A tied model may store its head as
    well, if it equals the embedding; the copy is left out. Raises Problem.
    """
    tensors = canonical_tensors(read_folder(folder), spec, HF, folder)
    return {name: cast(Array, rows) for name, rows in tensors.items()}  # one below the other: views of arrays


def canonical_tensors(
    found: Mapping[str, Rows], spec: ModelSpec, layout: str, where: Path
) -> dict[str, Rows]:
    """The tensors of files in a layout of the spec's family by canonical name, as views, checked as above."""
    wanted, stored = stored_shapes(spec, layout), dict(found)
    head, embedding = (
        layouts.stored_name(n, spec.family, layout) for n in ("lm_head.weight", "model.embed_tokens.weight")
    )
    if spec.tie and head in stored and embedding in stored:
        if not same_bits(stored[head], stored[embedding]):
            raise Problem("weights.tied_head", where=where)
        del stored[head]
    signs = layouts.detect(stored) if layout == HF else None
    if signs == ("qwen1", HALF_REVERSED):
        raise Problem("weights.half_reversed", where=where)
    if signs is not None and signs[1] != HF:
        raise Problem("weights.mindspore", where=where, found=listed(list(stored)))
    faults = [
        fault
        for name, shape in wanted.items()
        if (fault := _fault(name, shape, stored.get(name))) is not None
    ]
    for name in stored:
        if name not in wanted and not names.is_derived(name):
            faults.append(language.say("weights.fault_unknown", name=name))
    if faults == [language.say("weights.fault_missing", name=head)]:
        raise Problem("weights.no_head", where=where, name=head)
    if faults:
        pairs = [(stored[n].shape, shape) for n, shape in wanted.items() if n in stored]
        differ = [(one, shape) for one, shape in pairs if one != shape]
        part = bool(differ) and all(_is_fraction(one, shape) for one, shape in differ)
        code = "weights.mismatch_part" if part else "weights.mismatch"
        raise Problem(code, where=where, faults=first_few(faults))
    return take_apart(spec, stored, layout)


def read_folder(folder: Path) -> dict[str, Array]:
    """All tensors of a folder by the names in its files; Problem when a file is missing or damaged."""
    paths, weight_map = weight_files(folder)
    stored: dict[str, Array] = {}
    places: dict[str, str] = {}
    for path in paths:
        for name, array in open_weights(path).items():
            if name in places:
                raise Problem(
                    "weights.twice", where=folder, tensor=name, first=places[name], second=path.name
                )
            places[name], stored[name] = path.name, array
    if weight_map is not None and places != weight_map:
        tensors = sorted({name for name, _ in places.items() ^ weight_map.items()})
        moved = [f"{t}: {weight_map.get(t, '-')} -> {places.get(t, '-')}" for t in tensors]
        index = next(name for name in (INDEX, MINDSPORE_INDEX, TORCH_INDEX) if (folder / name).exists())
        raise Problem("weights.wrong_shard", where=folder / index, tensors=first_few(moved))
    return stored


def weight_files(folder: Path) -> tuple[list[Path], dict[str, str] | None]:
    """The weight files of a folder and, for shards, the index's tensor name -> file name.

    As in transformers, safetensors count before .bin, and one file before an index.
    """
    kinds = ((SINGLE, INDEX), (SINGLE, MINDSPORE_INDEX), (TORCH_SINGLE, TORCH_INDEX))
    for single, index in kinds:
        if (folder / single).exists():
            return [folder / single], None
        if (folder / index).exists():
            return _shards(folder, _read_index(folder / index, Path(single).suffix))
    raise _no_weights(folder)


def other_weights(folder: Path, known: Collection[str]) -> list[str]:
    """The names of a model's weight files in a folder that are not among the known ones."""
    with os_errors(folder):
        names_there = sorted(entry.name for entry in folder.iterdir())
    return [name for name in names_there if _WEIGHTS.fullmatch(name) and name not in known]


def _shards(folder: Path, weight_map: dict[str, str]) -> tuple[list[Path], dict[str, str]]:
    shards = sorted(set(weight_map.values()))
    missing = [name for name in shards if not (folder / name).exists()]
    if missing:
        raise Problem(
            "weights.missing_shards",
            where=folder,
            count=len(missing),
            total=len(shards),
            missing=first_few(missing),
        )
    return [folder / name for name in shards], weight_map


def _read_index(path: Path, suffix: str) -> dict[str, str]:
    content = read_object(path, "weights.bad_index")
    weight_map = content.get("weight_map", content if path.name == MINDSPORE_INDEX else None)
    if not isinstance(weight_map, dict) or not weight_map:
        raise Problem("weights.bad_index", where=path, reason=language.say("weights.index_no_map"))
    for name in weight_map.values():
        # A file elsewhere would be read as if it were part of this model.
        plain = _PLAIN_NAME.fullmatch(name) if isinstance(name, str) else None
        if plain is None or plain[1] != suffix:
            reason = language.say("weights.index_outside", file=str(name)[:200])
            raise Problem("weights.bad_index", where=path, reason=reason)
    return weight_map


def _no_weights(folder: Path) -> Problem:
    with os_errors(folder):
        found = sorted(entry.name for entry in folder.iterdir())
    if checkpoints := [name for name in found if name.endswith(".ckpt")]:
        return Problem("weights.mindspore", where=folder, found=listed(checkpoints))
    pickles = [name for name in found if name.endswith((".bin", ".pt", ".pth"))]
    if pickles:
        return Problem("weights.other_names", where=folder, found=listed(pickles))
    return Problem("weights.none", where=folder, found=listed(found) or "-")


def _is_fraction(shape: tuple[int, ...], whole: tuple[int, ...]) -> bool:
    """Whether a tensor of this shape can be an even piece of the whole one."""
    return len(shape) == len(whole) and all(n and not w % n for n, w in zip(shape, whole, strict=True))


def _fault(name: str, shape: tuple[int, ...], array: Rows | None) -> str | None:
    """What is wrong with a stored tensor; None if nothing is."""
    if array is None:
        return language.say("weights.fault_missing", name=name)
    if array.shape != shape:
        found, wanted = list(array.shape), list(shape)
        return language.say("weights.fault_wrong_shape", name=name, found=found, wanted=wanted)
    if not is_float(array.dtype):
        return language.say("weights.fault_not_float", name=name, found=array.dtype.name)
    return None
