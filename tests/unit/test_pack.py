"""Packing: nothing is lost, rows are full and never overflow."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tengtune.data.pack import one_per_row, pack

LENGTHS = st.integers(1, 64).flatmap(
    lambda size: st.tuples(st.just(size), st.lists(st.integers(1, size), max_size=120))
)


def naive_best_fit_decreasing(lengths: list[int], seq_len: int) -> int:
    """The number of rows of the textbook algorithm."""
    free: list[int] = []
    for length in sorted(lengths, reverse=True):
        fitting = [space for space in free if space >= length]
        if fitting:
            free[free.index(min(fitting))] -= length
        else:
            free.append(seq_len - length)
    return len(free)


@given(case=LENGTHS, seed=st.integers(0, 3))
@settings(max_examples=300, deadline=None)
def test_each_document_stands_in_one_row_that_holds_it(case: tuple[int, list[int]], seed: int) -> None:
    seq_len, sizes = case
    lengths = np.array(sizes, np.int64)
    plan = pack(lengths, seq_len, seed)
    assert sorted(plan.documents.tolist()) == list(range(len(sizes)))
    assert plan.starts[0] == 0
    assert plan.starts[-1] == len(sizes)
    rows = [plan.documents[a:b] for a, b in zip(plan.starts[:-1], plan.starts[1:], strict=True)]
    assert all(len(row) and lengths[row].sum() <= seq_len for row in rows)
    assert plan.rows == naive_best_fit_decreasing(sizes, seq_len)


def test_the_seed_decides_and_nothing_else() -> None:
    lengths = np.random.default_rng(0).integers(1, 100, 500)
    first, again, other = (pack(lengths, 128, seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.documents, again.documents)
    np.testing.assert_array_equal(first.starts, again.starts)
    assert first.documents.tolist() != other.documents.tolist()


def test_rows_are_nearly_full_on_ordinary_lengths() -> None:
    generator = np.random.default_rng(1)
    lengths = np.clip(np.exp(generator.normal(4.7, 0.8, 5000)), 1, 1024).astype(np.int64)
    plan = pack(lengths, 1024, 0)
    assert lengths.sum() / (plan.rows * 1024) > 0.98


def test_work_does_not_grow_with_the_square(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups placed, counted, on 10 and 100 times as many documents of as many different lengths."""
    from tengtune.data import pack as module

    calls = 0
    original = module._Rows._put

    def counted(self: module._Rows, space: int, rows: module.Int64) -> None:
        nonlocal calls
        calls += 1
        original(self, space, rows)

    monkeypatch.setattr(module._Rows, "_put", counted)
    counts = []
    for documents in (1_000, 10_000, 100_000):
        calls = 0
        pack(np.random.default_rng(2).integers(1, 513, documents), 512, 0)
        counts.append(calls)
    assert counts[2] < 3 * counts[1] < 9 * counts[0]


def test_one_per_row_keeps_the_order() -> None:
    plan = one_per_row(3)
    assert plan.documents.tolist() == [0, 1, 2]
    assert plan.starts.tolist() == [0, 1, 2, 3]
    assert plan.rows == 3
