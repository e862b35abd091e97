"""Layouts: what each rank holds, against cutting with NumPy; what cannot be is refused."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.shards_lab import expected_part, grids, layouts

from tengtune.weights.layout import Layout, LayoutFault, optimizer_sharded, repeated


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_parts_are_those_numpy_cuts(data: st.DataObject) -> None:
    axes = data.draw(st.integers(1, 3))
    layout = data.draw(layouts(data.draw(grids(data.draw(st.integers(1, 12)))), axes))
    local = tuple(data.draw(st.integers(1, 3)) for _ in range(axes))
    shape = layout.whole_shape(local)
    assert layout.local_shape(shape) == local
    whole = np.arange(prod(shape)).reshape(shape)
    times = np.zeros(shape, int)
    for rank in range(layout.devices):
        part = layout.part(shape, rank)
        assert part is not None
        assert np.array_equal(whole[part], expected_part(whole, layout, rank))
        times[part] += 1
    assert len(np.unique(times)) == 1  # every element as often as any other
    assert times.flat[0] == layout.devices // prod(layout.counts)


def test_the_examples_of_the_format() -> None:
    # A column-parallel weight of 4-way tensor parallelism in 2 groups, each half kept by one group.
    layout = Layout((2, 4), ((0,), ()), opt_step=4, opt_size=2)
    assert layout.counts == (8, 1)
    assert [layout.place(rank)[0] for rank in range(8)] == [0, 2, 4, 6, 1, 3, 5, 7]
    # A parameter sharded by the optimizer over all ranks.
    layout = Layout((2, 4), ((), ()), opt_step=1, opt_size=8)
    assert [layout.place(rank) for rank in range(8)] == [(rank, 0) for rank in range(8)]
    # Pieces over a group with a gap: ranks 0, 1, 4, 5.
    layout = Layout((2, 2, 2), ((1,),), opt_step=1, opt_size=-1)
    assert [layout.place(rank)[0] for rank in (0, 1, 4, 5)] == [0, 1, 2, 3]


FAULTS: list[tuple[str, dict[str, Any]]] = [
    ("devices", {"dev_matrix": ()}),
    ("devices", {"dev_matrix": (2, 0)}),
    ("devices", {"dev_matrix": (2, -4)}),
    ("devices", {"dev_matrix": (2**20,)}),
    ("map", {"tensor_map": ((2,), ())}),
    ("map", {"tensor_map": ((-2,), ())}),
    ("map", {"tensor_map": ((0,), (0,))}),
    ("map", {"tensor_map": ((1, 1), ())}),
    ("size", {"opt_size": 3, "opt_step": 4}),
    ("size", {"opt_size": -2, "opt_step": 4}),
    ("size", {"opt_size": 4, "opt_step": 4}),
    ("size", {"opt_size": 2**40, "opt_step": 4}),
    ("size", {"tensor_map": (), "opt_size": 2, "opt_step": 4}),
    ("step", {"opt_size": 2, "opt_step": 1}),
    ("step", {"opt_size": 2, "opt_step": 0}),
    ("step", {"opt_size": -1, "opt_step": -4}),
]


@pytest.mark.parametrize(("reason", "changes"), FAULTS)
def test_what_cannot_be_is_refused(reason: str, changes: dict[str, Any]) -> None:
    good: dict[str, Any] = {"dev_matrix": (2, 4), "tensor_map": ((0,), ())}
    Layout(**good)
    with pytest.raises(LayoutFault) as caught:
        Layout(**good | changes)
    assert caught.value.reason == reason


def test_a_shape_that_does_not_divide_has_no_parts() -> None:
    layout = Layout((2, 4), ((0,), ()))
    assert layout.part((6, 3), 0) is None
    assert layout.part((8,), 0) is None
    assert layout.part((8, 3), 5) == (slice(2, 4), slice(0, 3))


def test_layouts_for_a_number_of_ranks() -> None:
    assert optimizer_sharded((12, 5), 4).local_shape((12, 5)) == (3, 5)
    assert optimizer_sharded((6, 5), 4) == repeated(2, 4)
    assert repeated(0, 4).place(3) == ()
