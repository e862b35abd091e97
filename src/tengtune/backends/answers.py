"""Answering as both back ends do it: an answer's ids one by one, and several answers at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tengtune.backends.base import Asked, Sampling
from tengtune.backends.sampling import Sampler


class Texts(Protocol):
    """Texts on a device that go on token by token, each in one of `rows` rows."""

    rows: int

    def begin(self, row: int, length: int) -> None:
        """A new text in a row, of at most `length` tokens in the end; what was there is forgotten."""
        ...

    def take(self, ids: Mapping[int, Sequence[int]]) -> npt.NDArray[np.float32]:
        """Logits [B,V] after the next ids of B rows: a prompt for one row, or one id each for several."""
        ...


def generate(
    texts: Texts, prompt: Sequence[int], max_new_tokens: int, stop_ids: Iterable[int], sampling: Sampling
) -> Iterator[int]:
    """New ids one by one until a stop id, which is not given, or max_new_tokens."""
    stops, sampler, ids = frozenset(stop_ids), Sampler(sampling, prompt), prompt
    if max_new_tokens > 0:
        texts.begin(0, len(prompt) + max_new_tokens)
    for _ in range(max_new_tokens):
        chosen = sampler.choose(texts.take({0: ids})[0])
        if chosen in stops:
            return
        yield chosen
        ids = [chosen]


@dataclass(eq=False)
class _Answer:
    """An answer under way: the number of its prompt, and its last id, which its text has not taken yet."""

    number: int
    asked: Asked
    sampler: Sampler
    last: int = 0
    count: int = 0

    def goes_on(self, logits: npt.NDArray[np.float32], stops: frozenset[int]) -> bool:
        """Choose the next id out of logits [V]; False where the answer ends with it or before it."""
        self.last = self.sampler.choose(logits)
        if self.last in stops:
            return False
        self.count += 1
        return self.asked.take(self.last) and self.count < self.asked.max_new_tokens


def generate_many(texts: Texts, asked: Iterable[Asked], stop_ids: Iterable[int]) -> Iterator[int]:
    """Answer as many prompts at a time as there are rows; gives the number of each as its answer ends.

    A prompt is taken by a pass of its own as soon as a row is free; then the rows go on together.
    """
    stops, waiting, answers = frozenset(stop_ids), enumerate(asked), dict[int, _Answer]()
    while True:
        for row in range(texts.rows):
            while row not in answers and (following := next(waiting, None)) is not None:
                number, each = following
                answer = _Answer(number, each, Sampler(each.sampling, each.prompt))
                if each.max_new_tokens > 0 and answer.goes_on(_first(texts, row, each), stops):
                    answers[row] = answer
                else:
                    yield number
        if not answers:
            return
        logits = texts.take({row: [answer.last] for row, answer in answers.items()})
        pairs = zip(list(answers), logits, strict=True)
        ended = [row for row, each in pairs if not answers[row].goes_on(each, stops)]
        yield from [answers.pop(row).number for row in ended]


def _first(texts: Texts, row: int, asked: Asked) -> npt.NDArray[np.float32]:
    """Logits [V] after the prompt, which begins a text in the row."""
    texts.begin(row, len(asked.prompt) + asked.max_new_tokens)
    logits: npt.NDArray[np.float32] = texts.take({row: asked.prompt})[0]
    return logits
