"""Examiner: a model to which questions are put, as it was taught to be asked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from tengtune.backends.base import Asked, Backend
from tengtune.evaluate.likelihood import continuation, loss_sums
from tengtune.text import chatml
from tengtune.text.conversation import Example, Message
from tengtune.text.template import PLAIN, Template
from tengtune.text.tokenizer import Tokenizer

Request = tuple[tuple[int, ...], int]
"""Prompt, and how many tokens its answer may have."""


@dataclass
class Examiner:
    """`system`: system text of questions that bring none, "" for no system turn. A model whose template knows
    reasoning is asked to answer at once.
    """

    backend: Backend
    tokenizer: Tokenizer
    system: str
    template: Template = PLAIN
    _written: dict[Request, str] = field(default_factory=dict, init=False)

    def choice_losses(self, messages: Sequence[Message], texts: Iterable[str]) -> list[float] | None:
        """For each text, as the answer to `messages`, the sum of cross entropy over its tokens (without the
        end of turn). None when one does not fit into the model's positions."""
        prompt = self._prompt(messages)
        examples = [continuation(prompt, self.tokenizer.encode(text)) for text in texts]
        if not all(map(self._fits, examples)):
            return None
        return loss_sums(self.backend, examples)

    def answer_loss(self, messages: Sequence[Message], answer: str) -> tuple[float, int] | None:
        """Sum of cross entropy over `answer` and its end of turn after `messages`, and the number of labels:
        what training would take as the loss. None when it does not fit into the model's positions."""
        written = [*self.tokenizer.encode(answer), self.tokenizer.im_end]
        example = continuation(self._prompt(messages), written)
        if not self._fits(example):
            return None
        return loss_sums(self.backend, [example])[0], int(example.train.sum())

    def answer(self, messages: Sequence[Message], max_new_tokens: int) -> str | None:
        """The model's own greedy answer; None when there is no room for it."""
        request = self._request(messages, max_new_tokens)
        if request not in self._written:
            for _ in self.write([(messages, max_new_tokens)]):
                pass
        return self._written.get(request)

    def write(self, questions: Iterable[tuple[Sequence[Message], int]]) -> Iterator[None]:
        """Write the answers to (messages, max_new_tokens), several at a time, for `answer` to give; yields as
        each is done. Without room there is none."""
        requests = dict.fromkeys(self._request(*each) for each in questions)
        wanted = [each for each in requests if each[1] > 0 and each not in self._written]
        ids: list[list[int]] = [[] for _ in wanted]
        asked = [Asked(*each, partial(_taken, into)) for each, into in zip(wanted, ids, strict=True)]
        for number in self.backend.generate_many(asked, self.tokenizer.stop_ids):
            self._written[wanted[number]] = self.tokenizer.decode(ids[number]).strip()
            yield

    def _request(self, messages: Sequence[Message], max_new_tokens: int) -> Request:
        prompt = self._prompt(messages)
        return tuple(prompt), min(max_new_tokens, self.backend.spec.max_positions - len(prompt))

    def _prompt(self, messages: Sequence[Message]) -> list[int]:
        return chatml.prompt(messages, self.tokenizer, self.system, self.template, enable_thinking=False)

    def _fits(self, example: Example) -> bool:
        return len(example.ids) <= self.backend.spec.max_positions


def _taken(ids: list[int], number: int) -> bool:
    ids.append(number)
    return True
