"""Whether PyTorch computes here what it should: see backends/probe.py."""

from __future__ import annotations

import importlib
from collections.abc import Callable

import torch
from torch import Tensor

from tengtune.backends import probe
from tengtune.backends.probe import Loaded, Measured, Trials
from tengtune.backends.torch import kernels
from tengtune.backends.torch.device import DTYPES, choose_device
from tengtune.backends.torch.parallel import Group


def prepare(wanted: str) -> tuple[Loaded, Trials]:
    """The device, and what can be tried on it. wanted: "npu" or "cuda", which must be there, or "cpu"."""
    if wanted == "npu":
        importlib.import_module("torch_npu")  # raises what choose_device takes for "not here"
    device = choose_device()
    if device.type != wanted:
        raise RuntimeError(f"torch {torch.__version__} sees no {wanted}, it would compute on {device}")
    trials = {f"product_{name}": _product(device, name) for name in ("float16", "bfloat16")}
    trials |= {
        "attention": lambda: _attention(device),
        "fused": lambda: _fused(importlib.import_module("torch_npu"), device),
        "sum": lambda: _sum(device),
    }
    return _loaded(device), trials


def _loaded(device: torch.device) -> Loaded:
    if device.type == "cpu":
        return Loaded(torch.__version__, "cpu", "CPU", 1)
    cards = getattr(torch, device.type)
    return Loaded(torch.__version__, str(device), str(cards.get_device_name(0)), int(cards.device_count()))


def _product(device: torch.device, name: str) -> Callable[[], Measured]:
    def trial() -> Measured:
        a, b = (_there(device, name, probe.SIDE, probe.SIDE, seed=seed) for seed in (0, 1))
        return probe.measured(_here(a @ b), _here(a) @ _here(b), name)

    return trial


def _heads(device: torch.device, name: str) -> list[Tensor]:
    tokens, counts = sum(probe.LENGTHS), (probe.HEADS, probe.KEY_HEADS, probe.KEY_HEADS)
    return [_there(device, name, tokens, n, probe.HEAD_SIZE, seed=i) for i, n in enumerate(counts)]


def _attention(device: torch.device) -> Measured:
    """The back end's plain attention against the formula."""
    name = "float32" if device.type == "cpu" else "float16"
    heads = _heads(device, name)
    found = kernels.PLAIN.attention(heads[0], heads[1], heads[2], probe.LENGTHS)
    q, k, v = (_here(each).double().numpy() for each in heads)
    return probe.measured(_here(found), probe.attention(q, k, v, probe.LENGTHS), name, probe.MORE_ROUNDINGS)


def _fused(ops: object, device: torch.device) -> Measured:
    """The card's attention against the plain one, forward and backward, as the back end compares them."""
    fused = kernels.Fused(ops, device).attention
    error, limit = kernels.apart(fused, kernels.PLAIN.attention, (*_heads(device, "float16"), probe.LENGTHS))
    return Measured(error, limit)


def _sum(device: torch.device) -> Measured:
    """The sum over the ranks, of rank + 1."""
    group = Group(device, None)
    tensor = torch.full((1024,), group.rank + 1.0, device=device)
    group.sum_([tensor])
    return probe.measured(_here(tensor), torch.full((1024,), group.world * (group.world + 1) / 2), "float32")


def _there(device: torch.device, name: str, *shape: int, seed: int) -> Tensor:
    return torch.from_numpy(probe.some(*shape, seed=seed)).to(device).to(DTYPES[name])


def _here(tensor: Tensor) -> Tensor:
    return tensor.detach().float().cpu()


if __name__ == "__main__":
    probe.serve(prepare)
