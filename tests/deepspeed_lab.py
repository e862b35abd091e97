"""DeepSpeed checkpoint folders for tests, in the format that DeepSpeed 0.19's zero_to_fp32.py reads, written
with torch.save from whole tensors. Objects of DeepSpeed's own classes are in them, as in real ones."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

Weights = dict[str, Tensor]


@contextmanager
def deepspeed_classes() -> Iterator[tuple[type[IntEnum], type]]:
    """DeepSpeed's modules as far as pickling by name needs them; gone afterwards."""
    places = ("deepspeed", "deepspeed.runtime", "deepspeed.runtime.zero", "deepspeed.runtime.zero.config")
    names = [*places, "deepspeed.runtime.fp16", "deepspeed.runtime.fp16.loss_scaler"]
    stage = IntEnum("ZeroStageEnum", {"disabled": 0, "optimizer_states": 1, "gradients": 2, "weights": 3})
    scaler = type("LossScaler", (), {})
    stage.__module__, scaler.__module__ = places[-1], names[-1]
    modules = {name: ModuleType(name) for name in names}
    modules[places[-1]].ZeroStageEnum = stage  # type: ignore[attr-defined]
    modules[names[-1]].LossScaler = scaler  # type: ignore[attr-defined]
    sys.modules.update(modules)
    try:
        yield stage, scaler
    finally:
        for name in names:
            del sys.modules[name]


def write_zero(
    folder: Path,
    weights: Weights,
    stage: int,
    ranks: int,
    *,
    groups: int = 2,
    frozen: frozenset[str] | set[str] = frozenset(),
    shared: dict[str, str] | None = None,
    padded: bool = True,
) -> Path:
    """Write `folder`/global_step7 and `latest`. groups: parameter groups; frozen: names that are not trained;
    padded: stages 1 and 2 with the alignment at the end of a group that older versions saved."""
    place = folder / "global_step7"
    place.mkdir(parents=True)
    (folder / "latest").write_text("global_step7")
    trained = [name for name in weights if name not in frozen]
    chosen = [trained[i::groups] for i in range(groups)]
    common: dict[str, Any] = {
        "buffer_names": [],
        "param_shapes": [OrderedDict((n, weights[n].shape) for n in names) for names in chosen],
        "frozen_param_shapes": OrderedDict((n, weights[n].shape) for n in weights if n in frozen),
        "shared_params": shared or {},
        "ds_version": "0.19.8",
    }
    with deepspeed_classes() as (enum, scaler):
        for rank in range(ranks):
            own = {"zero_stage": enum(stage), "loss_scaler": scaler(), "partition_count": ranks}
            if stage == 3:
                own["fp32_flat_groups"] = [_rank_of_each(weights, names, rank, ranks) for names in chosen]
            else:
                own["partition_count"] = [ranks] * groups
                own["single_partition_of_fp32_groups"] = [
                    _part_of_all(weights, names, rank, ranks, padded) for names in chosen
                ]
            state = {"optimizer_state_dict": own, "ds_config": {}, "ds_version": "0.19.8"}
            torch.save(state, place / f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
            if stage == 3 or rank == 0:
                name = f"zero_pp_rank_{rank}_mp_rank_00" if stage == 3 else "mp_rank_00"
                fragments = {n: weights[n].clone() for n in sorted(frozen)}
                if stage == 3:
                    fragments = {n: _fragment(tensor, rank, ranks) for n, tensor in fragments.items()}
                head = {**common, "module": {}, "frozen_param_fragments": fragments}
                torch.save(head, place / f"{name}_model_states.pt")
    return folder


def _part_of_all(weights: Weights, names: list[str], rank: int, ranks: int, padded: bool) -> Tensor:
    """Stages 1 and 2: one run of all values, padded to twice the ranks, cut into even parts."""
    flat = torch.cat([weights[name].float().reshape(-1) for name in names])
    whole = torch.nn.functional.pad(flat, (0, -len(flat) % (2 * ranks)), value=float("nan"))
    part = whole.chunk(ranks)[rank].clone()
    beyond = (rank + 1) * len(part) - len(flat)
    return part if padded or beyond <= 0 else part[: len(part) - beyond].clone()


def _rank_of_each(weights: Weights, names: list[str], rank: int, ranks: int) -> Tensor:
    """Stage 3: of every parameter, padded to a multiple of the ranks, this rank's part."""
    return torch.cat([_fragment(weights[name].float(), rank, ranks) for name in names])


def _fragment(tensor: Tensor, rank: int, ranks: int) -> Tensor:
    flat = tensor.reshape(-1)
    padded = torch.nn.functional.pad(flat, (0, -len(flat) % ranks))
    return padded.chunk(ranks)[rank].clone()
