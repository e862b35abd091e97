"""Rows end to end: what is kept, where labels point, and how many shapes come of it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.batches import make_batch, random_documents

from tengtune.backends.torch.attention import attention
from tengtune.backends.torch.device import Placement
from tengtune.backends.torch.rows import lay_out
from tengtune.train.batch import NO_LABEL

CPU = torch.device("cpu")
DOCUMENTS = random_documents([40, 25, 1, 60], 100, seed=5)
BATCH = make_batch([DOCUMENTS[:2], DOCUMENTS[2:]], 80, slots=64)


def expected_labels() -> list[list[int]]:
    """(id before the label, its position, label) of every label."""
    return [
        [int(d.ids[p - 1]), int(p - 1), int(d.ids[p])]
        for d in DOCUMENTS
        for p in np.flatnonzero(d.train)
        if p > 0
    ]


@pytest.mark.parametrize("place", [(CPU, torch.float32), (CPU, torch.bfloat16)], ids=str)
def test_labels_stand_behind_their_tokens(place: tuple[torch.device, torch.dtype]) -> None:
    rows = lay_out(BATCH, Placement(*place))
    used = rows.labels != NO_LABEL
    before = rows.label_index[used]
    found = torch.stack((rows.ids[before], rows.positions[before], rows.labels[used]), 1)
    assert found.tolist() == expected_labels()
    starts = np.cumsum([0, *rows.lengths[:-1]])
    assert all(rows.positions[start] == 0 for start in starts)
    assert sum(rows.lengths) == rows.ids.numel()


def test_a_cpu_is_spared_padding() -> None:
    rows = lay_out(BATCH, Placement(CPU, torch.float32))
    assert rows.lengths == [40, 25, 1, 60]
    assert rows.ids.tolist() == np.concatenate([d.ids for d in DOCUMENTS]).tolist()
    assert rows.labels.numel() == BATCH.trained_tokens


def test_a_card_gets_the_same_shapes_every_time() -> None:
    """`meta` stands for the card."""
    rows = lay_out(BATCH, Placement(torch.device("meta"), torch.bfloat16))
    assert rows.ids.shape == rows.positions.shape == (160,)
    assert rows.label_index.shape == rows.labels.shape == (128,)
    assert rows.lengths == [40, 25, 15, 1, 60, 19]


def test_narrow_types_come_in_few_shapes_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new shape costs half a millisecond and most of a megabyte there: rows of up to 1024 tokens, cut
    into documents in any way, make few."""
    random = np.random.default_rng(0)
    products: set[tuple[torch.Size, torch.Size]] = set()
    tokens, slots, plain = set(), set(), torch.bmm

    def recorded(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        products.add((one.shape, other.shape))
        return plain(one, other)

    monkeypatch.setattr(torch, "bmm", recorded)
    for trial in range(30):
        lengths = np.diff(np.unique([0, *random.integers(1, 1024, random.integers(1, 9))]))
        rows = lay_out(
            make_batch([random_documents(lengths.tolist(), 50, trial)], 1024), Placement(CPU, torch.bfloat16)
        )
        tokens.add(rows.ids.numel())
        slots.add(rows.labels.numel())
        x = torch.zeros(rows.ids.numel(), 2, 8, dtype=torch.bfloat16)
        attention(x, x, x, rows.lengths)
    assert tokens <= set(range(128, 1025, 128))
    assert slots <= set(range(64, 1025, 64))
    assert len(products) <= 2 * 12  # scores and mixtures, for 64, 128, ... 512, 640, ... 1024 keys
