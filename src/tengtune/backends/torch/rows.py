"""A batch as the model takes it: rows laid end to end, on the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tengtune.backends.torch.attention import document_lengths
from tengtune.backends.torch.device import Placement
from tengtune.train.batch import NO_LABEL, Batch

Integers = npt.NDArray[np.signedinteger[Any]]

TOKENS_STEP, LABELS_STEP = 128, 64
"""Narrow types on a CPU: counts are rounded up to multiples of these."""


@dataclass(frozen=True)
class Rows:
    """ids, positions [T] and, for the K label slots, label_index and labels [K] (NO_LABEL: unused), as
    int64 tensors; lengths of the documents on the host, so that no step waits to learn them."""

    ids: Tensor
    positions: Tensor
    lengths: list[int]
    label_index: Tensor
    labels: Tensor


def lay_out(batch: Batch, placement: Placement) -> Rows:
    """The batch on the device.

    A card gets every row and slot as they are: its queues and compilers want the same shapes each time,
    and padding is a document by itself. A CPU is spared them, but for narrow types rounds the counts up,
    because there every new shape costs a compiled kernel.
    """
    count, length = batch.ids.shape
    ids, positions = batch.ids.reshape(-1), batch.positions.reshape(-1)
    index = (batch.label_index + np.arange(count)[:, None] * length).reshape(-1)
    labels = batch.label.reshape(-1)
    lengths = document_lengths(batch.segment)
    if placement.device.type == "cpu":
        real, used = batch.segment.reshape(-1) > 0, labels != NO_LABEL
        kept = real[np.cumsum([0, *lengths[:-1]])]
        lengths = [size for size, keep in zip(lengths, kept, strict=True) if keep]
        index, labels = (real.cumsum() - 1)[index[used]], labels[used]
        ids, positions = ids[real], positions[real]
        if placement.master != placement.dtype:
            missing = -ids.size % TOKENS_STEP
            lengths += [missing] if missing else []
            ids, positions = _extended(ids, TOKENS_STEP, 0), _extended(positions, TOKENS_STEP, 0)
            index, labels = _extended(index, LABELS_STEP, 0), _extended(labels, LABELS_STEP, NO_LABEL)

    def put(array: Integers) -> Tensor:
        return torch.from_numpy(array.astype(np.int64)).to(placement.device, non_blocking=True)

    return Rows(put(ids), put(positions), lengths, put(index), put(labels))


def _extended(array: Integers, step: int, value: int) -> Integers:
    """The array filled up to a multiple of `step`."""
    return np.pad(array, (0, -array.size % step), constant_values=value)
