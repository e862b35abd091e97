"""Batches written by hand: rows of documents with the positions whose token is a label."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tengtune.train.batch import NO_LABEL, Batch


@dataclass(frozen=True)
class Document:
    """Token ids, and for each whether it is a label; the first never is one."""

    ids: np.ndarray
    train: np.ndarray

    @property
    def labels(self) -> int:
        return int(self.train[1:].sum())


def random_documents(lengths: Sequence[int], vocab: int, seed: int = 0) -> list[Document]:
    """Random ids, about two thirds of them labels, at least the last."""
    random = np.random.default_rng(seed)
    documents = []
    for length in lengths:
        train = random.random(length) < 0.66
        train[0], train[-1] = False, length > 1
        documents.append(Document(random.integers(0, vocab, length), train))
    return documents


def make_batch(rows: Sequence[Sequence[Document]], seq_len: int, slots: int | None = None) -> Batch:
    """Rows of documents, padded to seq_len tokens and to `slots` label slots (default: what is needed)."""
    shape = (len(rows), seq_len)
    ids, positions, segment = (np.zeros(shape, np.int32) for _ in range(3))
    where: list[list[int]] = []
    for row, documents in enumerate(rows):
        at, places = 0, []
        for number, document in enumerate(documents, 1):
            end = at + document.ids.size
            ids[row, at:end] = document.ids
            positions[row, at:end] = np.arange(document.ids.size)
            segment[row, at:end] = number
            places += [at + int(p) - 1 for p in np.flatnonzero(document.train) if p > 0]
            at = end
        where.append(places)
    slots = slots or max(map(len, where))
    index = np.zeros((len(rows), slots), np.int32)
    label = np.full((len(rows), slots), NO_LABEL, np.int32)
    for row, places in enumerate(where):
        index[row, : len(places)] = places
        label[row, : len(places)] = ids[row, np.array(places, int) + 1]
    return Batch(ids, positions, segment, index, label)
