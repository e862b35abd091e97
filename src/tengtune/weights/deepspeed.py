"""DeepSpeed's ZeRO checkpoints, stages 1 to 3: the float32 weights that the optimizer keeps, in parts.

The format (DeepSpeed 0.19, utils/zero_to_fp32.py and the state dicts that it reads): *_model_states.pt has
`param_shapes`, for each parameter group the names and shapes in the order of the flat values, and the frozen
parameters; *zero_pp_rank_<r>_mp_rank_00_optim_states.pt has rank r's part. Stages 1 and 2 cut the flat values
of a group into one part a rank; stage 3 cuts every parameter, each part padded to the same length.
"""

from __future__ import annotations

import re
from itertools import accumulate
from math import prod
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from tengtune.ui.lists import listed
from tengtune.ui.problems import Problem, os_errors
from tengtune.weights.ckpt_io import Joined
from tengtune.weights.distributed import model_names
from tengtune.weights.inert_pickle import load_archive, number, torch_module
from tengtune.weights.stream import Array, Rows

_OPTIMIZER = re.compile(r"(?:bf16_|fp16_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_?optim_states\.pt")
_MODEL = re.compile(r"(?:zero_pp_rank_(\d+)_)?mp_rank_(\d+)_model_states\.pt")

Values = list[Array]
"""Flat values in runs of bytes, one after the other."""


def find_checkpoint(folder: Path) -> Path | None:
    """The folder with the ranks' files: `folder` itself, or the one that its file `latest` names."""
    with os_errors(folder):
        latest = folder / "latest"
        tag = latest.read_text(encoding="utf-8", errors="replace").strip() if latest.is_file() else ""
        place = folder / tag if tag and Path(tag).name == tag else folder
        if place.is_dir() and any(_OPTIMIZER.fullmatch(path.name) for path in place.iterdir()):
            return place
    return None


def open_checkpoint(folder: Path) -> tuple[list[Path], dict[str, Rows]]:
    """The files and, by name, the tensors. Raises Problem: a rank is missing, or the parts do not add up."""
    optimizers, models = _files(folder, _OPTIMIZER), _files(folder, _MODEL)
    try:
        states = [load_archive(path)["optimizer_state_dict"] for path in optimizers]
        stage, count = int(number(states[0]["zero_stage"])), states[0]["partition_count"]
        ranks = max(count) if isinstance(count, list) else int(count)
        if ranks != len(states) or not models:
            raise Problem("convert.zero_ranks", where=folder, wanted=ranks, found=len(states))
        heads = [load_archive(path) for path in models]
        make = _stage_3 if stage == 3 else _stage_1_and_2
        tensors = make(folder, states, heads)
        for name, same in (heads[0].get("shared_params") or {}).items():
            if same in tensors:
                tensors[name] = tensors[same]
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise Problem("convert.bad_pickle", where=folder, reason=repr(error)[:200]) from error
    return [*models, *optimizers], model_names(tensors, folder)


def _files(folder: Path, pattern: re.Pattern[str]) -> list[Path]:
    """The ranks' files, by rank. Problem where the model itself was cut (tensor parallel)."""
    found = [(int(m[1] or 0), int(m[2]), p) for p in folder.iterdir() if (m := pattern.fullmatch(p.name))]
    if any(part for _, part, _ in found):
        raise Problem("convert.zero_parallel", where=folder, files=listed([p.name for *_, p in found]))
    return [path for *_, path in sorted(found)]


def _stage_1_and_2(folder: Path, states: list[Any], heads: list[Any]) -> dict[str, Rows]:
    """One run of values per parameter group, cut into the ranks' parts."""
    tensors = {name: _whole(value) for name, value in (heads[0].get("frozen_param_fragments") or {}).items()}
    paddings = states[0].get("param_alignment_paddings")
    for number_, shapes in enumerate(heads[0]["param_shapes"]):
        parts = [state["single_partition_of_fp32_groups"][number_] for state in states]
        flat, width = [_bytes(part) for part in parts], parts[0].element_size()
        gaps = paddings[number_] if paddings else [0] * len(shapes)
        start = 0
        for (name, shape), gap in zip(shapes.items(), gaps, strict=True):
            length = prod(shape) * width
            tensors[name] = _joined(_cut(flat, start, start + length), parts[0], shape, name, folder)
            start += length + gap * width
        # DeepSpeed aligns a group to twice the number of ranks; newer ones save it without that padding.
        _check_sum(folder, start, sum(run.size for run in flat), 2 * len(states) * width, number_)
    return tensors


def _stage_3(folder: Path, states: list[Any], heads: list[Any]) -> dict[str, Rows]:
    """Every parameter in one part of each rank; a rank's parts one after the other, over all its groups."""
    tensors: dict[str, Rows] = {}
    for name, shape in (heads[0].get("frozen_param_shapes") or {}).items():
        parts = [head["frozen_param_fragments"][name] for head in heads]
        runs = _cut([_bytes(part) for part in parts], 0, prod(shape) * parts[0].element_size())
        tensors[name] = _joined(runs, parts[0], shape, name, folder)
    groups = [state["fp32_flat_groups"] for state in states]
    flats = [[_bytes(group) for group in rank] for rank in groups]
    width, start = groups[0][0].element_size(), 0
    for name, shape in (item for group in heads[0]["param_shapes"] for item in group.items()):
        length = -(-prod(shape) // len(states)) * width
        runs = [run for flat in flats for run in _cut(flat, start, start + length)]
        runs = _cut(runs, 0, prod(shape) * width)
        tensors[name] = _joined(runs, groups[0][0], shape, name, folder)
        start += length
    _check_sum(folder, start, sum(run.size for run in flats[0]), 1, 0)
    return tensors


def _check_sum(folder: Path, used: int, there: int, step: int, group: int) -> None:
    """Problem where a group's values are not used up, in whole steps."""
    if -(-used // step) != -(-there // step):
        raise Problem("convert.zero_sizes", where=folder, group=group, used=used, there=there)


def _joined(runs: Values, like: Any, shape: Any, name: str, folder: Path) -> Rows:
    dtype = _DTYPES[str(like.dtype)]
    if sum(run.size for run in runs) != prod(shape) * dtype.itemsize:
        there, used = sum(run.size for run in runs), prod(shape) * dtype.itemsize
        raise Problem("convert.zero_sizes", where=folder, group=name, used=used, there=there)
    return Joined(runs, dtype, tuple(shape))


def _whole(tensor: Any) -> Rows:
    dtype = _DTYPES[str(tensor.dtype)]
    whole: Array = _bytes(tensor).view(dtype).reshape(tuple(tensor.shape))
    return whole


_DTYPES: dict[str, np.dtype[Any]] = {
    "torch.float32": np.dtype("<f4"),
    "torch.float16": np.dtype("<f2"),
    "torch.bfloat16": np.dtype(ml_dtypes.bfloat16),
}


def _bytes(tensor: Any) -> Array:
    """A torch tensor's bytes, without a copy."""
    raw: Array = tensor.detach().contiguous().reshape(-1).view(torch_module().uint8).numpy()
    return raw


def _cut(runs: Values, start: int, stop: int) -> Values:
    """The bytes from start to stop of runs that follow each other."""
    ends = list(accumulate(run.size for run in runs))
    return [
        run[max(0, start - end + run.size) : stop - end + run.size]
        for run, end in zip(runs, ends, strict=True)
        if start < end and end - run.size < stop
    ]
