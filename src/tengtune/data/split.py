"""Which documents are trained on, which are held out, and how often each is seen."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tengtune.data.documents import Int64


def groups_of(hashes: Int64) -> Int64:
    """The group of each document, int64 [D]: documents of one hash are one group; groups are numbered in the
    order in which they first occur, so that nothing depends on the values of the hashes."""
    _, first, inverse = np.unique(hashes, return_index=True, return_inverse=True)
    number = np.empty(len(first), np.int64)
    number[np.argsort(first)] = np.arange(len(first))
    return number[inverse]


def heldout_split(groups: Int64, fraction: float, seed: int) -> tuple[Int64, Int64]:
    """Numbers of the documents to train on and of those held out, both ascending.

    `fraction` of them, rounded, but at least one of each; with a single group, or fraction 0, none is held
    out. A group stays together: what is held out was never trained on, not even as a copy. Groups larger
    than the whole part are not held out, unless there are no others.
    """
    sizes = np.bincount(groups)
    everything = np.arange(len(groups), dtype=np.int64)
    if not fraction or len(sizes) < 2:
        return everything, everything[:0]
    wanted = min(max(round(len(groups) * fraction), 1), len(groups) - 1)
    order = np.random.default_rng(seed).permutation(len(sizes))
    order = order[sizes[order] <= max(wanted, int(sizes.min()))]
    count = int(np.searchsorted(np.cumsum(sizes[order]), wanted)) + 1
    held = np.isin(groups, order[: min(count, len(sizes) - 1)])
    return everything[~held], everything[held]


def repeated(documents: Int64, files: Int64, weights: Sequence[float], seed: int) -> Int64:
    """The documents, each as often as the weight of its file says; of a fraction of a time, that share of the
    file's documents, drawn by `seed`. files: the file number of each; weights: by file number."""
    generator = np.random.default_rng(seed)
    parts = []
    for file, weight in enumerate(weights):
        own = documents[files == file]
        whole = int(weight)
        drawn = generator.permutation(own)[: round((weight - whole) * len(own))]
        parts += [*[own] * whole, drawn]
    return np.sort(np.concatenate(parts))
