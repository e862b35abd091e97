"""Which documents are held out: copies never stand on both sides; weights repeat what is trained."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tengtune.data.split import groups_of, heldout_split, repeated


def alone(count: int) -> np.ndarray:
    """Groups of which each has one document."""
    return np.arange(count, dtype=np.int64)


@pytest.mark.parametrize(
    ("count", "fraction", "held"),
    [(1, 0.5, 0), (2, 0.05, 1), (2, 0.9, 1), (10, 0.05, 1), (100, 0.05, 5), (10, 0.0, 0), (3, 0.99, 2)],
)
def test_a_share_is_held_out(count: int, fraction: float, held: int) -> None:
    train, heldout = heldout_split(alone(count), fraction, 7)
    assert len(heldout) == held
    assert sorted([*train.tolist(), *heldout.tolist()]) == list(range(count))
    assert train.tolist() == sorted(train.tolist())
    again = heldout_split(alone(count), fraction, 7)
    assert heldout.tolist() == again[1].tolist()


def test_the_split_follows_the_seed() -> None:
    splits = {tuple(heldout_split(alone(1000), 0.05, seed)[1].tolist()) for seed in range(5)}
    assert len(splits) == 5


@given(
    hashes=st.lists(st.integers(-3, 12), min_size=1, max_size=60),
    fraction=st.sampled_from([0.05, 0.2, 0.5, 0.9]),
    seed=st.integers(0, 3),
)
@settings(max_examples=300, deadline=None)
def test_copies_stay_on_one_side(hashes: list[int], fraction: float, seed: int) -> None:
    train, held = heldout_split(groups_of(np.array(hashes, np.int64)), fraction, seed)
    assert sorted([*train.tolist(), *held.tolist()]) == list(range(len(hashes)))
    assert not {hashes[i] for i in train} & {hashes[i] for i in held}
    assert len(train)
    assert bool(len(held)) == (len(set(hashes)) > 1)


def test_a_text_that_fills_the_file_is_not_what_is_held_out() -> None:
    groups = groups_of(np.array([5] * 90 + list(range(100, 110)), np.int64))
    for seed in range(20):
        train, held = heldout_split(groups, 0.05, seed)
        assert len(held) == 5
        assert set(range(90)) <= set(train.tolist())


def test_groups_are_numbered_as_they_come_whatever_their_hashes() -> None:
    assert groups_of(np.array([7, -2, 7, 9, -2], np.int64)).tolist() == [0, 1, 0, 2, 1]
    assert groups_of(np.array([-8, 100, -8, 3, 100], np.int64)).tolist() == [0, 1, 0, 2, 1]


@pytest.mark.parametrize(("weight", "times"), [(1.0, 1.0), (3.0, 3.0), (0.5, 0.5), (2.25, 2.25)])
def test_a_files_weight_is_how_often_its_documents_are_seen(weight: float, times: float) -> None:
    documents = np.arange(10, 210, dtype=np.int64)
    files = np.repeat([0, 1], 100)
    seen = repeated(documents, files, [1.0, weight], seed=3)
    assert seen.tolist() == sorted(seen.tolist())
    first, second = seen[seen < 110], seen[seen >= 110]
    assert first.tolist() == list(range(10, 110))
    assert len(second) == 100 * times
    counts = np.bincount(second - 110, minlength=100)
    assert set(counts.tolist()) <= {int(times), int(times) + 1}
