"""How likely a model finds given texts: rows of few shapes, labels only where a text is judged."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tengtune.backends.base import Backend
from tengtune.text.conversation import Example
from tengtune.train.batch import NO_LABEL, Batch

SHORTEST_ROW, FEWEST_LABELS = 64, 8
"""Shapes are powers of two from here on, so that a graph compiler sees few of them."""


def loss_sums(backend: Backend, examples: Sequence[Example]) -> list[float]:
    """For each example the sum of cross entropy (natural logarithm) over its trained tokens.

    All are handed over before the first is read, so that a device does not wait for the host.
    """
    handles = [backend.eval_step(one_row(example)) for example in examples]
    return [float(handle) for handle in handles]


def continuation(prompt: Sequence[int], answer: Sequence[int]) -> Example:
    """The answer's tokens as what is judged, after the prompt's."""
    ids = np.array([*prompt, *answer], np.int32)
    return Example(ids, np.arange(len(ids)) >= len(prompt))


def one_row(example: Example) -> Batch:
    """The example as a batch [1,S] with label slots [1,K]; S and K are powers of two.

    Its first token is nobody's label.
    """
    count = len(example.ids)
    labelled = np.flatnonzero(example.train)
    labelled = labelled[labelled > 0]
    row, slots = _power(count, SHORTEST_ROW), _power(len(labelled), FEWEST_LABELS)
    ids, positions, segment = (np.zeros((1, row), np.int32) for _ in range(3))
    label_index, label = np.zeros((1, slots), np.int32), np.full((1, slots), NO_LABEL, np.int32)
    ids[0, :count], positions[0, :count], segment[0, :count] = example.ids, np.arange(count), 1
    label_index[0, : len(labelled)] = labelled - 1
    label[0, : len(labelled)] = example.ids[labelled]
    return Batch(ids, positions, segment, label_index, label)


def _power(count: int, least: int) -> int:
    """The smallest power of two that is below neither `count` nor `least`, itself one."""
    return max(least, 1 << (count - 1).bit_length())
