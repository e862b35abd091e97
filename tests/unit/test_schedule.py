"""Rows of each step, learning rate, loss scale."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tengtune.recipe import Recipe
from tengtune.train import schedule
from tengtune.train.loss_scale import LossScale


def recipe(**train: object) -> Recipe:
    return Recipe(name="t", model="m", data="d", train=train, file=Path("/t.yaml"))  # type: ignore[arg-type]


@given(rows=st.integers(1, 200), batch=st.integers(1, 40), seed=st.integers(0, 5))
def test_every_epoch_sees_every_row_once(rows: int, batch: int, seed: int) -> None:
    plan = schedule.Schedule(rows, batch, 10, seed, 1e-3, "cosine", 0.1, 0)
    for epoch in range(2):
        seen = [plan.step_rows(epoch * plan.steps_per_epoch + i) for i in range(plan.steps_per_epoch)]
        assert all(1 <= len(s) <= batch for s in seen)
        assert sorted(np.concatenate(seen).tolist()) == list(range(rows))


def test_epochs_differ_and_seeds_repeat() -> None:
    plan = schedule.plan(recipe(epochs=2, global_batch=4), rows=32)
    first, second = plan.step_rows(0).tolist(), plan.step_rows(plan.steps_per_epoch).tolist()
    assert first != second
    assert first == schedule.plan(recipe(epochs=2, global_batch=4), rows=32).step_rows(0).tolist()


@pytest.mark.parametrize(
    ("train", "rows", "steps"),
    [
        ({"epochs": 3, "global_batch": 8}, 20, 9),
        ({"epochs": 0.5, "global_batch": 2}, 8, 2),
        ({"epochs": 0.01, "global_batch": 8}, 20, 1),
        ({"epochs": 3, "max_steps": 5}, 20, 5),
        ({"epochs": 1.1, "global_batch": 1}, 10, 11),
    ],
)
def test_number_of_steps(train: dict[str, object], rows: int, steps: int) -> None:
    assert schedule.plan(recipe(**train), rows).steps == steps


def test_cosine_by_hand() -> None:
    """Ten steps, two of warm-up, lr 1, floor 0.1: values by the written-out formula."""
    plan = schedule.Schedule(80, 8, 10, 0, 1.0, "cosine", 0.1, 2)
    rates = [plan.learning_rate(i) for i in range(10)]
    assert rates[:3] == [0.5, 1.0, 1.0]
    assert rates[9] == pytest.approx(0.1)
    assert rates[5] == pytest.approx(0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * 3 / 7)))
    assert all(a >= b for a, b in itertools.pairwise(rates[1:]))


def test_linear_and_constant() -> None:
    linear = schedule.Schedule(80, 8, 5, 0, 1.0, "linear", 0.0, 0)
    assert [linear.learning_rate(i) for i in range(5)] == pytest.approx([1, 0.75, 0.5, 0.25, 0])
    constant = schedule.Schedule(80, 8, 5, 0, 2.0, "constant", 0.0, 0)
    assert {constant.learning_rate(i) for i in range(5)} == {2.0}


def test_loss_scale_halves_doubles_and_has_a_floor() -> None:
    scale = LossScale(enabled=True, value=4.0, window=3)
    scale.update(False)
    assert scale.value == 2.0
    for finite in (True, True, False, True, True, True):
        scale.update(finite)
    assert scale.value == 2.0  # halved once, then doubled after three good steps
    for _ in range(5):
        scale.update(False)
    assert scale.value == 1.0


def test_without_float16_the_scale_is_one() -> None:
    scale = LossScale(enabled=False)
    scale.update(True)
    scale.update(False)
    assert scale.value == 1.0
