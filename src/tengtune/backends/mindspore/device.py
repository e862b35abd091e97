"""The device MindSpore computes on, and compiled functions."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import mindspore
import numpy as np
from mindspore import Tensor

from tengtune.cluster import place
from tengtune.ui.problems import FAILED_RUN, Problem

DTYPE = "float32"
"""Compute type, the only one so far."""
_NO_MEMORY = ("memory not enough", "memory isn't enough", "memory failed", "bad_alloc", "out of memory")


@functools.cache
def prepare() -> str:
    """Choose the device, of a machine's ranks each its own, and return its name. Once: when the ranks have
    met it can't be chosen again."""
    if not mindspore.device_context.ascend.is_available():
        mindspore.set_device("CPU")
        return "cpu"
    number = place.here().local_rank
    mindspore.set_device("Ascend", number)
    return f"Ascend:{number}"


@contextmanager
def memory_faults(device: str) -> Iterator[None]:
    """Turn MindSpore's out-of-memory errors inside the block into a Problem."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if isinstance(error, RuntimeError) and not any(sign in str(error).lower() for sign in _NO_MEMORY):
            raise
        raise Problem("device.out_of_memory", exit_code=FAILED_RUN, device=device) from error


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` of Tensors as a graph, compiled once for each set of argument shapes.

    Weights must be given as Tensors: a Parameter as an argument is compiled anew for each Parameter.
    """
    graph: Callable[..., Any] = mindspore.jit(function, fullgraph=True)
    return graph


def scalar(value: float) -> Tensor:
    """A float32 number as a Tensor, so that another value does not mean another graph."""
    return Tensor(np.float32(value))
