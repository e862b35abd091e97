"""A batch as the model takes it: rows laid end to end, on the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tengtune.backends.torch.attention import document_lengths
from tengtune.train.batch import NO_LABEL, Batch


@dataclass(frozen=True)
class Rows:
    """ids, positions [T] and, for the K label slots, label_index and labels [K] (NO_LABEL: unused), as
    int64 tensors; lengths of the documents on the host, so that no step waits to learn them."""

    ids: Tensor
    positions: Tensor
    lengths: list[int]
    label_index: Tensor
    labels: Tensor


def lay_out(batch: Batch, device: torch.device) -> Rows:
    """The batch on the device. A CPU is spared padding and unused label slots; a card keeps both, for
    its queues and compilers want the same shapes every time, and there padding is a document by itself."""
    flat_index = (
        batch.label_index + np.arange(batch.ids.shape[0], dtype=np.int32)[:, None] * batch.ids.shape[1]
    )
    ids, positions = batch.ids.reshape(-1), batch.positions.reshape(-1)
    index, labels = flat_index.reshape(-1), batch.label.reshape(-1)
    lengths = document_lengths(batch.segment)
    if device.type == "cpu":
        real = batch.segment.reshape(-1) > 0
        starts = np.cumsum([0, *lengths[:-1]])
        lengths = [length for length, start in zip(lengths, starts, strict=True) if real[start]]
        used = labels != NO_LABEL
        index, labels = (real.cumsum() - 1)[index[used]], labels[used]
        ids, positions = ids[real], positions[real]

    def put(array: npt.NDArray[np.signedinteger[Any]]) -> Tensor:
        return torch.from_numpy(array.astype(np.int64)).to(device, non_blocking=True)

    return Rows(put(ids), put(positions), lengths, put(index), put(labels))
