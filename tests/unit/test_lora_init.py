"""The adapter's start: PEFT's distribution, fixed by seed and name."""

import numpy as np
import pytest

from tengtune.train.lora_init import initial_a

NAME = "model.layers.0.self_attn.q_proj.lora_A.weight"


def test_uniform_within_kaiming_bound() -> None:
    array = initial_a(42, NAME, 64, 1024)
    bound = 1024**-0.5
    assert array.shape == (64, 1024)
    assert array.dtype == np.float32
    assert np.abs(array).max() <= bound
    # 65,536 uniform draws: mean 0, variance bound^2 / 3, both within five standard errors.
    assert abs(array.mean()) < 5 * bound / np.sqrt(3 * array.size)
    assert array.var() == pytest.approx(bound**2 / 3, rel=0.02)
    assert np.histogram(array, bins=8, range=(-bound, bound))[0] == pytest.approx(8192, rel=0.06)


def test_same_seed_and_name_same_numbers() -> None:
    first = initial_a(7, NAME, 4, 16)
    initial_a(7, "another", 4, 16)
    assert np.array_equal(first, initial_a(7, NAME, 4, 16))


@pytest.mark.parametrize(("seed", "name"), [(8, NAME), (7, NAME.replace("q_proj", "k_proj"))])
def test_other_seed_or_name_other_numbers(seed: int, name: str) -> None:
    assert not np.isclose(initial_a(7, NAME, 4, 16), initial_a(seed, name, 4, 16)).any()
