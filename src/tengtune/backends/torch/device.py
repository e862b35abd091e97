"""The device and the compute type, found by trying them; and what a full memory looks like."""

from __future__ import annotations

import importlib
import importlib.util
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from tengtune.recipe import Dtype
from tengtune.ui.problems import FAILED_RUN, UNFIT_MACHINE, Problem

DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}
_NO_MEMORY = ("out of memory", "can't allocate memory", "not enough memory")


@dataclass(frozen=True)
class Placement:
    """Where the model computes, and in what type: of frozen weights and activations. What is trained,
    and its optimizer, is kept in `master`, never narrower than float32."""

    device: torch.device
    dtype: torch.dtype

    @property
    def master(self) -> torch.dtype:
        return torch.promote_types(self.dtype, torch.float32)


def place(wanted: Dtype) -> Placement:
    """This process's device, and the compute type of the run file; Problem if the device cannot do it."""
    device = choose_device()
    return Placement(device, choose_dtype(device, wanted))


def choose_device() -> torch.device:
    """An Ascend card, else a CUDA card, else the CPU; of several cards the one of this local rank."""
    index = int(os.environ.get("LOCAL_RANK", "0"))
    if npu_available():
        importlib.import_module("torch_npu").npu.set_device(index)
        return torch.device("npu", index)
    if torch.cuda.is_available():
        torch.cuda.set_device(index)
        return torch.device("cuda", index)
    return torch.device("cpu")


def npu_available() -> bool:
    """Whether torch_npu is installed, loads (it needs CANN's libraries) and sees a card."""
    if importlib.util.find_spec("torch_npu") is None:
        return False
    try:
        return bool(importlib.import_module("torch_npu").npu.is_available())
    except (ImportError, OSError, RuntimeError, AttributeError):  # a mere folder of that name has no npu
        return False


def choose_dtype(device: torch.device, wanted: Dtype) -> torch.dtype:
    """`auto`: float32 on a CPU, else bfloat16 where a cast and a product work, else float16."""
    if wanted != "auto":
        dtype = DTYPES[wanted]
        if not computes(device, dtype):
            raise Problem("device.no_dtype", exit_code=UNFIT_MACHINE, dtype=wanted, device=str(device))
        return dtype
    if device.type == "cpu":
        return torch.float32
    return torch.bfloat16 if computes(device, torch.bfloat16) else torch.float16


def computes(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the device casts to `dtype` and multiplies matrices in it: tried, not looked up.

    Versions and chip names mislead: a card without bfloat16 fails at the cast, and only there.
    """
    try:
        ones = torch.ones(16, 16, device=device).to(dtype)
        return bool((ones @ ones).float().cpu().eq(16).all())
    except (RuntimeError, TypeError, NotImplementedError):
        return False


def slowdown(placement: Placement) -> float:
    """How many times longer a product takes here in the compute type than in float32, by the CPU's time.

    A CPU without instructions for a narrow type multiplies number by number: 38 times as long was seen.
    On cards a narrow type is what the units are made for: 1.
    """
    if placement.device.type != "cpu" or placement.dtype == placement.master:
        return 1.0
    return _product_seconds(placement.dtype) / _product_seconds(torch.float32)


def _product_seconds(dtype: torch.dtype) -> float:
    ones = torch.ones(256, 256, dtype=dtype)
    seconds = []
    for _ in range(3):
        start = time.process_time()
        torch.mm(ones, ones)
        seconds.append(time.process_time() - start)
    return min(seconds)


def peak_bytes(device: torch.device) -> int | None:
    """The most that the allocator of this process's card has given out; None on a CPU."""
    if device.type == "cpu":
        return None
    return int(getattr(torch, device.type).max_memory_allocated(device))


@contextmanager
def memory_faults(device: torch.device) -> Iterator[None]:
    """Turn the frameworks' out-of-memory errors inside the block into a Problem."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if isinstance(error, RuntimeError) and not any(sign in str(error).lower() for sign in _NO_MEMORY):
            raise
        raise Problem("device.out_of_memory", exit_code=FAILED_RUN, device=str(device)) from error
