"""Batch: what a back end is given, of fixed shapes.

Legend: B rows, S tokens per row, K label slots per row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

NO_LABEL = -100
"""Fills unused label slots; such a slot has label_index 0 and counts nowhere."""

Int32 = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Batch:
    """Rows of tokens with their documents and labels.

    ids [B,S]         token ids; padding is any valid id
    positions [B,S]   position inside the document, restarting at 0 in each; 0 on padding
    segment [B,S]     document number inside the row, from 1; 0 on padding. A document is contiguous,
                      and a token attends to earlier tokens of its own document only
    label_index [B,K] position p in the row whose hidden state predicts the label; ascending, then 0
    label [B,K]       the id to predict, ids[p+1]; NO_LABEL where the slot is unused
    """

    ids: Int32
    positions: Int32
    segment: Int32
    label_index: Int32
    label: Int32

    @property
    def trained_tokens(self) -> int:
        """Number of labels in the batch."""
        return int((self.label != NO_LABEL).sum())


def fill_rows(batch: Batch, rows: int) -> Batch:
    """The batch with rows of padding up to `rows`, so that a short last batch keeps the shape."""
    missing = rows - batch.ids.shape[0]
    if missing == 0:
        return batch

    def filled(array: Int32, value: int) -> Int32:
        return np.concatenate([array, np.full((missing, array.shape[1]), value, np.int32)])

    return Batch(
        ids=filled(batch.ids, 0),
        positions=filled(batch.positions, 0),
        segment=filled(batch.segment, 0),
        label_index=filled(batch.label_index, 0),
        label=filled(batch.label, NO_LABEL),
    )
