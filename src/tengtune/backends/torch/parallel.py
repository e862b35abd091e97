"""Data parallelism: every rank holds the whole model and works on its share of a step's rows.

Gradients are summed over the ranks once a step, after the last micro batch, in flat buckets.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from tengtune.cluster import place
from tengtune.ui.problems import FAILED_RUN, UNFIT_MACHINE, Problem

BUCKET_BYTES = 64 * 2**20
"""Gradients are sent so much at a time: enough for the links' full speed, little beside a model."""
BACKENDS = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl", "npu": "cpu:gloo,npu:hccl"}
"""What carries tensors, by device; figures on the host always go by gloo."""
JOIN_MINUTES = 120.0
"""How long ranks wait for each other at the start: those of the other machines may be there while rank 0's
machine still prepares the data."""


class Group:
    """Fulfils train.ranks.Ranks."""

    def __init__(self, device: torch.device, limit_minutes: float | None) -> None:
        """Meet the other ranks, if a launcher started several. limit_minutes: how long one may wait for the
        others in the midst of training, None: a day."""
        mine = place.here()
        self.rank, self.world = mine.rank, mine.world
        if self.world > 1 and not dist.is_initialized():
            place.beat()
            with _lost_peers():
                join = timedelta(minutes=JOIN_MINUTES)
                dist.init_process_group(BACKENDS[device.type], timeout=join)
                atexit.register(_leave)
                self.most(0)
                limit = timedelta(minutes=limit_minutes or 24 * 60)
                dist.distributed_c10d._set_pg_timeout(limit, None)

    def total(self, values: Sequence[float]) -> list[float]:
        """See Ranks."""
        if self.world == 1:
            return list(values)
        place.beat()
        figures = torch.tensor(values, dtype=torch.float64)
        with _lost_peers():
            dist.all_reduce(figures)
        return [float(value) for value in figures]

    def most(self, value: int) -> int:
        """See Ranks."""
        if self.world == 1:
            return value
        place.beat()
        figure = torch.tensor(value)
        with _lost_peers():
            dist.all_reduce(figure, dist.ReduceOp.MAX)
        return int(figure)

    def gather(self, value: str) -> list[str]:
        """See Ranks."""
        if self.world == 1:
            return [value]
        values = [""] * self.world
        with _lost_peers():
            dist.all_gather_object(values, value)
        return values

    def sum_(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over the ranks; all have one device."""
        if self.world == 1:
            return
        place.beat()
        with _lost_peers():
            for bucket in _buckets(tensors):
                if len(bucket) == 1 and bucket[0].is_contiguous():  # the largest ones need no copy
                    dist.all_reduce(bucket[0])
                    continue
                flat = torch.cat([tensor.reshape(-1) for tensor in bucket])
                dist.all_reduce(flat)
                parts = torch.split(flat, [tensor.numel() for tensor in bucket])
                for tensor, part in zip(bucket, parts, strict=True):
                    tensor.copy_(part.view_as(tensor))


def _leave() -> None:
    """End the group's threads before the interpreter goes: one that still runs then aborts the process."""
    if dist.is_initialized():
        dist.destroy_process_group()


def _buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """The tensors in their order, of one type and about BUCKET_BYTES at a time."""
    bucket: list[Tensor] = []
    for tensor in tensors:
        full = sum(each.nbytes for each in bucket) + tensor.nbytes > BUCKET_BYTES
        if bucket and (full or bucket[0].dtype != tensor.dtype):
            yield bucket
            bucket = []
        bucket.append(tensor)
    if bucket:
        yield bucket


@contextmanager
def _lost_peers() -> Iterator[None]:
    """Turn what the libraries raise when another rank is gone, or does not come, into a Problem."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:300]
        address = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
        if "EADDRINUSE" in str(error) or "already in use" in str(error):
            raise Problem(
                "cluster.port_taken", exit_code=UNFIT_MACHINE, master=address, reason=reason
            ) from error
        raise Problem("cluster.peer_lost", where=address, exit_code=FAILED_RUN, reason=reason) from error
