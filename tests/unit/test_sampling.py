"""The choice of the next token."""

import numpy as np
import pytest
import torch
from transformers import RepetitionPenaltyLogitsProcessor

from tengtune.backends.base import Sampling
from tengtune.backends.sampling import Sampler

PROBABILITIES = np.array([0.1, 0.4, 0.05, 0.3, 0.15])
LOGITS = np.log(PROBABILITIES).astype(np.float32) + 3


def shares(sampling: Sampling, draws: int = 20_000) -> np.ndarray:
    sampler = Sampler(sampling)
    counts = np.bincount([sampler.choose(LOGITS) for _ in range(draws)], minlength=5)
    return counts / draws


def test_greedy_is_the_largest_and_of_equals_the_first() -> None:
    assert Sampler(Sampling()).choose(LOGITS) == 1
    assert Sampler(Sampling()).choose(np.array([0, 2, 2, 1], np.float32)) == 1


def test_temperature_one_draws_the_model_distribution() -> None:
    assert shares(Sampling(temperature=1.0)) == pytest.approx(PROBABILITIES, abs=0.015)


def test_temperature_sharpens() -> None:
    sharp = PROBABILITIES**2 / (PROBABILITIES**2).sum()
    assert shares(Sampling(temperature=0.5)) == pytest.approx(sharp, abs=0.015)


@pytest.mark.parametrize(
    ("sampling", "kept"),
    [
        (Sampling(temperature=1.0, top_k=2), [1, 3]),
        (Sampling(temperature=1.0, top_k=1), [1]),
        (Sampling(temperature=1.0, top_k=50), [0, 1, 2, 3, 4]),
        (Sampling(temperature=1.0, top_p=0.75), [1, 3, 4]),  # 0.4 + 0.3 < 0.75 <= 0.4 + 0.3 + 0.15
        (Sampling(temperature=1.0, top_p=0.0), [1]),
        # top_k first: of 0.4, 0.3, 0.15 (renormalized 0.47, 0.35, 0.18) the first two reach 0.8.
        (Sampling(temperature=1.0, top_k=3, top_p=0.8), [1, 3]),
    ],
)
def test_cuts_keep_and_renormalize(sampling: Sampling, kept: list[int]) -> None:
    expected = np.zeros(5)
    expected[kept] = PROBABILITIES[kept] / PROBABILITIES[kept].sum()
    assert shares(sampling) == pytest.approx(expected, abs=0.015)


def test_seed_decides() -> None:
    def draw(seed: int) -> list[int]:
        sampler = Sampler(Sampling(temperature=1.0, seed=seed))
        return [sampler.choose(LOGITS) for _ in range(50)]

    assert draw(3) == draw(3)
    assert draw(3) != draw(4)


def test_extreme_logits_stay_finite() -> None:
    logits = np.array([-3e38, 3e38, 0.0], np.float32)
    assert Sampler(Sampling(temperature=1e-3, top_p=0.9)).choose(logits) == 1


@pytest.mark.parametrize("penalty", [0.8, 1.0, 1.1, 1.7])
def test_the_repetition_penalty_is_transformers(penalty: float) -> None:
    """Greedy over changing logits, prompt and answer both counted."""
    random = np.random.default_rng(3)
    sampler, ids = Sampler(Sampling(repetition_penalty=penalty), [4, 9, 4]), [4, 9, 4]
    theirs = RepetitionPenaltyLogitsProcessor(penalty)
    for _ in range(30):
        logits = random.normal(0, 1, 12).astype(np.float32)
        kept = logits.copy()
        expected = int(theirs(torch.tensor([ids]), torch.from_numpy(logits.copy())[None]).argmax())
        ids.append(sampler.choose(logits))
        assert ids[-1] == expected
        assert (logits == kept).all()
