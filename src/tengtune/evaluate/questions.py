"""The kinds of questions, and how each is put to a model and marked.

A question is asked as a chat turn: the models judged here are taught by chat. Few-shot examples are
earlier turns.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Literal

from tengtune.evaluate import match
from tengtune.evaluate.examiner import Examiner
from tengtune.evaluate.numbers import MARK, final_number
from tengtune.text.conversation import Message

LETTERS = "ABCDEFGH"
NUMBER_TOKENS = 512
"""Longest answer to a calculation: the way to the number is written out first."""

Missing = Literal["too_long", "no_loss"]
"""What was not measured: anything, without room for an answer; the loss, without room for the right one."""

By = Literal["letter", "text"]
"""How the choice of a model is told: the likeliest letter, or the likeliest text per UTF-8 byte."""

_CHOOSE = {
    "en": "Answer this multiple-choice question with the letter of the right option only.",
    "zh": "以下是一道单项选择题，请只回答正确选项的字母。",
}
_CALCULATE = {
    "en": f'Work step by step. End with a line "{MARK} " followed by the number.',
    "zh": f"请逐步计算，最后另起一行写“{MARK} ”和得数。",
}


@dataclass(frozen=True)
class Mark:
    """What came of a question. hits: measure -> whether it was met; answer: what the model said or chose;
    loss_sum over `labels` tokens: cross entropy of the right answer, where that is measured; missing: what
    the model's positions left no room for."""

    hits: dict[str, bool] = field(default_factory=dict)
    answer: str | None = None
    loss_sum: float = 0.0
    labels: int = 0
    missing: Missing | None = None

    @property
    def loss(self) -> float | None:
        """Mean cross entropy per token of the right answer; None where there is none, or no number."""
        return self.loss_sum / self.labels if self.labels and math.isfinite(self.loss_sum) else None

    def as_json(self, texts: bool) -> dict[str, Any]:
        """JSON values; without `texts` nothing the model said."""
        said = {"answer": self.answer} if texts else {}
        return {**self.hits, **said, "loss": self.loss}


class Question(ABC):
    """A question with a known answer; `source` is "file:record", the record counted from 0."""

    source: str

    @abstractmethod
    def asked(self) -> tuple[Message, ...]:
        """The turns the model answers to."""

    @abstractmethod
    def expected(self) -> str:
        """The right answer, as a few-shot example shows it."""

    @abstractmethod
    def mark(self, examiner: Examiner, shots: Sequence[Message]) -> Mark:
        """Put it to a model, after the examples in `shots`. Without hits: it could not be asked."""

    @property
    def answer_tokens(self) -> int:
        """How long an answer the model is asked to write; 0 where it only weighs given ones."""
        return 0

    @property
    def text(self) -> str:
        """What a person reads as the question."""
        return self.asked()[-1].content


@dataclass(frozen=True)
class Choice(Question):
    """A multiple-choice question. options: their texts; right: the number of the right one, from 0.

    whole: the question with its options as the file has it; None when the options stood by themselves.
    """

    source: str
    question: str
    options: tuple[str, ...]
    right: int
    whole: str | None = None
    by: By = "letter"

    def asked(self) -> tuple[Message, ...]:
        if self.by == "text":
            return (Message("user", self.question),)
        listed = (f"{letter}. {text}" for letter, text in zip(LETTERS, self.options, strict=False))
        body = self.whole or "\n".join([self.question, *listed])
        return (Message("user", f"{_CHOOSE[language_of(body)]}\n\n{body}"),)

    def expected(self) -> str:
        return LETTERS[self.right] if self.by == "letter" else self.options[self.right]

    def mark(self, examiner: Examiner, shots: Sequence[Message]) -> Mark:
        """The choice is the letter of the lowest loss, or the text of the lowest loss per UTF-8 byte (long
        options would lose by their length; bytes do not depend on the tokenizer). Of equals, the first."""
        texts = self.options if self.by == "text" else tuple(LETTERS[: len(self.options)])
        losses = examiner.choice_losses([*shots, *self.asked()], texts)
        if losses is None:
            return Mark(missing="too_long")
        if not all(map(math.isfinite, losses)):
            return Mark({"accuracy": False})
        if self.by == "text":
            losses = [loss / len(text.encode()) for loss, text in zip(losses, texts, strict=True)]
        chosen = losses.index(min(losses))
        return Mark({"accuracy": chosen == self.right}, LETTERS[chosen])


@dataclass(frozen=True)
class Calculation(Question):
    """A question whose answer is a number; `worked`: the right answer with the way to it."""

    source: str
    question: str
    worked: str
    number: Decimal

    def asked(self) -> tuple[Message, ...]:
        return (Message("user", f"{self.question}\n{_CALCULATE[language_of(self.question)]}"),)

    def expected(self) -> str:
        return self.worked

    @property
    def answer_tokens(self) -> int:
        return NUMBER_TOKENS

    def mark(self, examiner: Examiner, shots: Sequence[Message]) -> Mark:
        answer = examiner.answer([*shots, *self.asked()], self.answer_tokens)
        if answer is None:
            return Mark(missing="too_long")
        return Mark({"accuracy": final_number(answer) == self.number}, answer)


@dataclass(frozen=True)
class Free(Question):
    """A question answered in words: `turns` and the right answer.

    keywords: what an answer must hold, a phrase of each group; without any, the right answer itself.
    """

    source: str
    turns: tuple[Message, ...]
    right: str
    max_new_tokens: int
    keywords: tuple[tuple[str, ...], ...] = ()

    def asked(self) -> tuple[Message, ...]:
        return self.turns

    def expected(self) -> str:
        return self.right

    @property
    def answer_tokens(self) -> int:
        return self.max_new_tokens

    def mark(self, examiner: Examiner, shots: Sequence[Message]) -> Mark:
        """exact: equal to the right answer; contains: holds it, or all keywords; and its loss."""
        messages = [*shots, *self.turns]
        loss = examiner.answer_loss(messages, self.right)
        answer = examiner.answer(messages, self.max_new_tokens)
        if loss is None:
            hits = {} if answer is None else self._hits(answer)
            return Mark(hits, answer, missing="no_loss" if hits else "too_long")
        return Mark({} if answer is None else self._hits(answer), answer, *loss)

    def _hits(self, answer: str) -> dict[str, bool]:
        if not self.keywords:
            held = match.contains(answer, self.right)
            return {"contains": held, "exact": match.exact(answer, self.right)}
        return {"contains": all(any(match.contains(answer, word) for word in g) for g in self.keywords)}


def language_of(text: str) -> Literal["en", "zh"]:
    """zh for a text with a Chinese character in it."""
    return "zh" if re.search("[\u4e00-\u9fff]", text) else "en"
