"""`train.optimizer: mindformers` against mindspore.nn.AdamWeightDecay itself, of which the reference's
FP32StateAdamWeightDecay is made."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from tests.mindspore_lab import build as build  # sets the log level before MindSpore is loaded
from tests.torch_lab import make_recipe

from tengtune.backends.mindspore.optimizer import adamw
from tengtune.backends.torch.optimizer import AdamW

import mindspore  # isort: skip
from mindspore import nn  # isort: skip

SHAPES, STEPS = ((4, 6), (6,)), 10
RATES = [0.05 / (step + 1) for step in range(STEPS)]
TRAIN = make_recipe(
    optimizer="mindformers", weight_decay=0.2, beta1=0.9, beta2=0.95, eps=1e-3, clip_norm=0.0
).train
Values = list[np.ndarray]


def beginning() -> Values:
    return [np.random.default_rng(1).standard_normal(shape).astype(np.float32) for shape in SHAPES]


def gradients(step: int) -> Values:
    """Of sizes at which eps is felt."""
    random = np.random.default_rng(100 + step)
    return [(random.standard_normal(shape) * 10.0 ** (step % 3 - 3)).astype(np.float32) for shape in SHAPES]


@pytest.fixture(scope="module")
def expected() -> Values:
    """The matrix is decayed, the vector is not."""
    matrix, vector = (
        mindspore.Parameter(mindspore.Tensor(values), name=name)
        for name, values in zip(("matrix", "vector"), beginning(), strict=True)
    )
    groups = [{"params": [matrix], "weight_decay": 0.2}, {"params": [vector], "weight_decay": 0.0}]
    optimizer = nn.AdamWeightDecay(groups, learning_rate=RATES, beta1=0.9, beta2=0.95, eps=1e-3)
    for step in range(STEPS):
        optimizer(tuple(map(mindspore.Tensor, gradients(step))))
    return [matrix.asnumpy(), vector.asnumpy()]


@pytest.mark.parametrize("update", ["fused", "plain"])
def test_on_torch(update: str, expected: Values) -> None:
    ours = AdamW([torch.nn.Parameter(torch.from_numpy(values)) for values in beginning()], TRAIN)
    ours._update = getattr(ours, f"_{update}")
    for step in range(STEPS):
        for parameter, gradient in zip(ours.parameters, gradients(step), strict=True):
            parameter.grad = torch.from_numpy(gradient)
        ours.step(RATES[step], 1.0)
    check([parameter.detach().numpy() for parameter in ours.parameters], expected)
    assert ours.applied.item() == STEPS


def test_on_mindspore(expected: Values) -> None:
    check(on_mindspore("mindformers"), expected)


def test_adamw_is_another(expected: Values) -> None:
    with pytest.raises(AssertionError):
        check(on_mindspore("adamw"), expected)


def on_mindspore(optimizer: str) -> Values:
    """The weights after all steps, as the back end's functions move them."""
    functions = adamw(TRAIN.model_copy(update={"optimizer": optimizer}))
    add_square, plan, update = functions
    tensor: Callable[[object], mindspore.Tensor] = lambda v: mindspore.Tensor(v, mindspore.float32)  # noqa: E731
    states = [(tensor(v), tensor(np.zeros_like(v)), tensor(np.zeros_like(v))) for v in beginning()]
    applied = tensor(0.0)
    for step in range(STEPS):
        totals, square = [tensor(g) for g in gradients(step)], tensor(0.0)
        for total in totals:
            square = add_square(square, total)
        _, finite, applied, *numbers = plan(square, applied, tensor(RATES[step]), tensor(1.0))
        states = [
            update(*state, total, tensor(np.full(total.shape, total.ndim > 1)), finite, *numbers)
            for state, total in zip(states, totals, strict=True)
        ]
    return [state[0].asnumpy() for state in states]


def check(found: Values, expected: Values) -> None:
    for one, other, start in zip(found, expected, beginning(), strict=True):
        np.testing.assert_allclose(one - start, other - start, rtol=2e-5, atol=1e-7)
