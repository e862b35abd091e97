"""Choosing the next token from logits: NumPy, so that both back ends choose alike."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from tengtune.backends.base import Sampling


class Sampler:
    """Greedy at temperature 0, else a seeded draw after temperature, top_k and top_p, in this order. The
    repetition penalty comes first; it counts the ids of `prompt` and those chosen."""

    def __init__(self, sampling: Sampling, prompt: Iterable[int] = ()) -> None:
        self._sampling = sampling
        self._seen = set(prompt)
        self._random = np.random.Generator(np.random.PCG64(sampling.seed))

    def choose(self, logits: npt.NDArray[np.float32]) -> int:
        """The next id for logits [vocab]; of equal logits the lowest id is the greedy choice."""
        if self._sampling.repetition_penalty != 1:
            logits = self._penalized(logits)
        chosen = int(logits.argmax()) if self._sampling.temperature == 0 else self._draw(logits)
        self._seen.add(chosen)
        return chosen

    def _penalized(self, logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        seen, penalty = np.fromiter(self._seen, np.intp), np.float32(self._sampling.repetition_penalty)
        scores, changed = logits[seen], logits.copy()
        changed[seen] = np.where(scores < 0, scores * penalty, scores / penalty)
        return changed

    def _draw(self, logits: npt.NDArray[np.float32]) -> int:
        ids, weights = _nucleus(*_top_k(logits, self._sampling), self._sampling.top_p)
        running = weights.cumsum()
        place = running.searchsorted(self._random.random() * running[-1], side="right")
        return int(ids[min(int(place), ids.size - 1)])


def _top_k(
    logits: npt.NDArray[np.float32], sampling: Sampling
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.float64]]:
    """Ids in ascending order and their probabilities, of all logits or of the top_k largest."""
    ids = np.arange(logits.size)
    if 0 < sampling.top_k < logits.size:
        ids = np.sort(np.argpartition(logits, -sampling.top_k)[-sampling.top_k :])
    scores = logits[ids].astype(np.float64) / sampling.temperature
    weights = np.exp(scores - scores.max())
    return ids, weights / weights.sum()


def _nucleus(
    ids: npt.NDArray[np.intp], weights: npt.NDArray[np.float64], top_p: float
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.float64]]:
    """The most probable ids whose probabilities first reach top_p together."""
    if top_p >= 1:
        return ids, weights
    # All ids below this bound weigh less than 1 - top_p together, so none is needed: few are left to sort.
    near = np.flatnonzero(weights >= (1 - top_p) / weights.size)
    order = near[np.argsort(-weights[near], kind="stable")]
    count = int(weights[order].cumsum().searchsorted(top_p)) + 1
    return ids[order[:count]], weights[order[:count]]
