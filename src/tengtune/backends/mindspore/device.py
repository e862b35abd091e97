"""The device MindSpore computes on, and compiled functions."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import mindspore
import numpy as np
from mindspore import Tensor, ops

from tengtune.backends.loading import Held, uninterrupted
from tengtune.cluster import place
from tengtune.recipe import Dtype
from tengtune.ui.problems import FAILED_RUN, Problem

DTYPES = {"float32": mindspore.float32, "float16": mindspore.float16}
"""What is computed in: frozen weights and activations. What is trained, and its optimizer, is float32."""
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


def choose_dtype(device: str, wanted: Dtype) -> str:
    """The compute type of a run file; `auto` is float32 on a CPU and float16 on a card."""
    if wanted != "auto":
        return wanted
    return "float32" if device == "cpu" else "float16"


def slowdown(device: str, dtype: str) -> float:
    """How many times longer a layer takes here in the compute type than in float32, by the CPU's time.

    Products alone take 1.1 to 2 times as long in float16 (2.10, x86), what is done to each number 14 times: a
    step of a model took 3 to 4 times. On cards a narrow type is what the units are made for: 1.
    """
    if device != "cpu" or dtype == "float32":
        return 1.0
    return _layer_seconds(dtype) / _layer_seconds("float32")


def _layer_seconds(dtype: str) -> float:
    """A layer in small, in a model's proportion of products to what is done to each number."""
    x, up, down = (Tensor(np.full(shape, 0.01, dtype)) for shape in ((256, 256), (256, 1024), (1024, 256)))
    seconds = []
    for _ in range(3):
        start = time.process_time()
        gate = ops.matmul(x, up)
        y = x + ops.matmul(gate * ops.sigmoid(gate), down)
        ops.softmax(ops.matmul(y, y.T), -1).asnumpy()  # waits for all of it
        seconds.append(time.process_time() - start)
    return min(seconds)


def peak_bytes(device: str) -> int | None:
    """The most that the allocator of this process's card has given out; None on a CPU."""
    return None if device == "cpu" else int(mindspore.runtime.max_memory_allocated())


_spent: set[str] = set()
"""The devices whose memory has run out in this process."""


@contextmanager
def memory_faults(device: str) -> Iterator[None]:
    """Turn MindSpore's out-of-memory errors inside the block into a Problem.

    After one MindSpore (2.10) fails with errors of its own or a segmentation fault, now and then: no more is
    computed in the process.
    """
    if device in _spent:
        raise Problem("device.spent", exit_code=FAILED_RUN, device=device)
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if isinstance(error, RuntimeError) and not any(sign in str(error).lower() for sign in _NO_MEMORY):
            raise
        _spent.add(device)
        raise Problem("device.out_of_memory", exit_code=FAILED_RUN, device=device) from error


_held: list[Held] = []
"""Of the blocks below that run: what tells whether a Ctrl-C came."""


@contextmanager
def interruptible() -> Iterator[None]:
    """A Ctrl-C inside the block is a KeyboardInterrupt as elsewhere, but between two graphs: MindSpore writes
    pages about one that comes while it compiles.
    """
    with uninterrupted() as held:
        _held.append(held)
        try:
            yield
        finally:
            _held.remove(held)


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` of Tensors as a graph, compiled once for each set of argument shapes.

    Weights must be given as Tensors: a Parameter as an argument is compiled anew for each Parameter.
    """
    graph: Callable[..., Any] = mindspore.jit(function, fullgraph=True)

    def call(*arguments: Any) -> Any:
        result = graph(*arguments)
        if _held and _held[-1].came:
            raise KeyboardInterrupt
        return result

    return call


def scalar(value: float) -> Tensor:
    """A float32 number as a Tensor, so that another value does not mean another graph."""
    return Tensor(np.float32(value))
