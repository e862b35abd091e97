"""1/N of all state per rank: weights, gradients and optimizer states, each gathered when it is needed.

This is what mindformers' enable_parallel_optimizer keeps with N data-parallel ranks. Axis 0 of a vector is
cut into N equal parts, the last filled up with zeros; they stay zeros, for their gradients are.
"""

from __future__ import annotations

import atexit
import math
import os
import subprocess
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import mindspore
import numpy as np
from mindspore import Tensor, communication, ops

from tengtune.backends.base import Array
from tengtune.backends.mindspore.model import Floats, Layout
from tengtune.cluster import place
from tengtune.cluster.place import Place
from tengtune.ui.problems import FAILED_RUN, Problem

JOIN_S = 7200
"""How long ranks wait for each other at the start, as on PyTorch."""


class Group:
    """Fulfils train.ranks.Ranks, and shares vectors out over the ranks. Every rank must call every method in
    the same order."""

    def __init__(self, mine: Place) -> None:
        self.rank, self.world = mine.rank, mine.world

    def total(self, values: Sequence[float]) -> list[float]:
        """See Ranks."""
        everywhere = self._everywhere(np.array(values, np.float64))
        return [float(value) for value in everywhere.reshape(self.world, -1).sum(0)]

    def most(self, value: int) -> int:
        """See Ranks."""
        return int(self._everywhere(np.array([value], np.int64)).max())

    def gather(self, value: str) -> list[str]:
        """See Ranks."""
        mine = np.frombuffer(value.encode(), np.uint8)
        sizes = self._everywhere(np.array([mine.size], np.int64))
        filled = np.zeros(int(sizes.max()), np.int32)
        filled[: mine.size] = mine
        rows = self._everywhere(filled).reshape(self.world, -1).astype(np.uint8)
        return [row[:size].tobytes().decode() for row, size in zip(rows, sizes, strict=True)]

    def _everywhere(self, array: Array) -> Array:
        """Every rank's array, one behind the other. int64, int32 and floats travel on a CPU, bytes do not."""
        if self.world == 1 or not array.size:
            return np.tile(array, self.world)
        place.beat()
        with _lost_peers():
            gathered: Array = ops.AllGather()(Tensor(array)).asnumpy()
        return gathered

    def part(self, vector: Array) -> Array:
        """This rank's part of a vector [n, ...]: [ceil(n / world), ...]; a copy unless it is all."""
        if self.world == 1:
            return vector
        size = -(-len(vector) // self.world)
        part: Array = np.zeros((size, *vector.shape[1:]), vector.dtype)
        mine = vector[self.rank * size :][:size]
        part[: len(mine)] = mine
        return part

    def whole(self, part: Tensor, length: int) -> Tensor:
        """The vector [length, ...] of all ranks' parts."""
        if self.world == 1:
            return part
        place.beat()
        with _lost_peers():
            vector = ops.AllGather()(part)
        return vector if vector.shape[0] == length else vector[:length]

    def share(self, vector: Tensor) -> Tensor:
        """This rank's part of the sum of all ranks' vectors."""
        size = -(-vector.shape[0] // self.world)
        missing = size * self.world - vector.shape[0]
        if missing:
            vector = ops.cat((vector, ops.zeros((missing, *vector.shape[1:]), vector.dtype)))
        place.beat()
        with _lost_peers():
            if device_target() == "Ascend":
                return ops.ReduceScatter()(vector)
            # A CPU has no ReduceScatter.
            return ops.AllReduce()(vector)[self.rank * size : (self.rank + 1) * size]

    def sum_(self, value: Tensor) -> Tensor:
        """The sum of all ranks' values."""
        if self.world == 1:
            return value
        place.beat()
        with _lost_peers():
            return ops.AllReduce()(value)

    def ranges(self, layout: Layout, part: Floats) -> Iterator[tuple[str, Floats, int]]:
        """The tensors of a vector of which `part` holds some: name, the values (as a tensor if it is whole,
        else in a row), and the number of the first in its tensor."""
        first = self.rank * part.size
        flat, start = part.reshape(-1), 0
        for name, shape in layout.shapes.items():
            stop = start + math.prod(shape)
            low, high = max(start, first), min(stop, first + part.size)
            if low < high:
                values = flat[low - first : high - first]
                yield name, values.reshape(shape) if (low, high) == (start, stop) else values, low - start
            start = stop


class Gradients:
    """A step's gradients by group of weights, summed over micro batches: vectors of `layouts`, of which each
    rank keeps its part. Those of `late` groups stay whole on each rank and are shared out by `finish`."""

    def __init__(self, group: Group, layouts: Mapping[str, Layout], late: Collection[str]) -> None:
        self._group, self._layouts = group, layouts
        alone = group.world == 1
        self._late = set(layouts) if alone else set(late) & set(layouts)
        parted = {layout for name, layout in layouts.items() if name not in self._late}
        self._blank = {layout: zeros(layout.shape) for layout in parted}
        start = {layout: zeros(part_shape(layout, group.world)) for layout in parted}
        whole = {layouts[name]: zeros(layouts[name].shape) for name in self._late}
        self._sums = {
            name: whole[layout] if name in self._late else start[layout] for name, layout in layouts.items()
        }

    def __contains__(self, name: str) -> bool:
        return name in self._sums

    def begin(self, name: str) -> Tensor:
        """The vector to which a backward adds its gradient."""
        return self._sums[name] if name in self._late else self._blank[self._layouts[name]]

    def end(self, name: str, vector: Tensor) -> None:
        """Take the vector back, with this micro batch's gradient in it."""
        late = name in self._late
        self._sums[name] = vector if late else self._sums[name] + self._group.share(vector)

    def finish(self) -> None:
        """All micro batches are through: from here on each sum is this rank's part."""
        if self._group.world > 1:
            for name in [name for name in self._sums if name in self._late]:
                self._sums[name] = self._group.share(self._sums.pop(name))

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self._sums.values())

    def take(self, name: str) -> Tensor:
        """This rank's part of a sum, which is kept no longer."""
        return self._sums.pop(name)


def part_shape(layout: Layout, world: int) -> tuple[int, ...]:
    """The shape of a rank's part of a vector."""
    return (-(-layout.shape[0] // world), *layout.shape[1:])


def zeros(shape: Iterable[int]) -> Tensor:
    """A float32 Tensor of zeros."""
    return mindspore.from_numpy(np.zeros(tuple(shape), np.float32))


def device_target() -> str:
    """CPU or Ascend."""
    return str(mindspore.get_context("device_target"))


_joined = False


def join(limit_minutes: float | None) -> Group:
    """Meet the other ranks, if a launcher started several: MindSpore's dynamic cluster, whose scheduler is
    started by rank 0, or by msrun. limit_minutes: how long one may wait for the others, None: a day."""
    global _joined
    mine = place.here()
    group = Group(mine)
    if mine.world == 1 or _joined:
        return group
    if os.environ.get("MS_ROLE") == "MS_SCHED":  # msrun has its scheduler run the ranks' own command
        communication.init()
        sys.exit()
    if not place.under_msrun():
        _meet(mine, str(round(60 * (limit_minutes or 24 * 60))))
    place.beat()
    with _lost_peers():
        communication.init()
        if communication.get_rank() != mine.rank:
            raise RuntimeError(f"rank {mine.rank} is numbered {communication.get_rank()}")
    atexit.register(_hush)
    group.most(0)
    _joined = True
    return group


def _meet(mine: place.Place, seconds: str) -> None:
    """Set up a dynamic cluster: its variables, and on rank 0 its scheduler. See
    https://www.mindspore.cn/tutorials/en/stable/parallel/dynamic_cluster.html"""
    os.environ |= {
        "MS_SCHED_HOST": os.environ["MASTER_ADDR"],
        "MS_SCHED_PORT": os.environ["MASTER_PORT"],
        "MS_WORKER_NUM": str(mine.world),
        "MS_NODE_ID": str(mine.rank),
        "MS_TOPO_TIMEOUT": str(JOIN_S),
        "MS_RECEIVE_MSG_TIMEOUT": seconds,
    }
    if mine.rank == 0:
        command = [sys.executable, "-m", "tengtune.backends.mindspore.scheduler", str(os.getpid())]
        # Nobody is helped by what it says when a rank is gone: the launcher tells which, and why.
        subprocess.Popen(
            command,
            env={**os.environ, "MS_ROLE": "MS_SCHED"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    os.environ["MS_ROLE"] = "MS_WORKER"


def _hush() -> None:
    """Whatever its log level, MindSpore tells at the very end that its connections' threads have stopped."""
    sys.stderr.flush()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


@contextmanager
def _lost_peers() -> Iterator[None]:
    """Turn what MindSpore raises when another rank is gone, or does not come, into a Problem."""
    try:
        yield
    except (RuntimeError, ValueError, TypeError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:300]
        address = f"{os.environ.get('MS_SCHED_HOST')}:{os.environ.get('MS_SCHED_PORT')}"
        raise Problem("cluster.peer_lost", where=address, exit_code=FAILED_RUN, reason=reason) from error
