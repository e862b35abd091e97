"""What becomes of a conversation that is longer than a row: split at its turns, cut, or dropped.

Whatever is done, no sample is left without something to learn, and everything that was lost is told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from tengtune.recipe import TooLong
from tengtune.text.conversation import Conversation, Example, Message

Outcome = Literal["whole", "cut", "too_long", "no_room", "no_label"]
"""What became of an example in `fit`; the last three mean that it is not used."""

Render = Callable[[Sequence[Conversation]], list[Example]]


class Shortened(NamedTuple):
    """The samples a conversation became; `code` and `values` of the fault that says how, "" for none."""

    examples: list[Example]
    code: str
    values: dict[str, int]


def fit(example: Example, seq_len: int, too_long: TooLong) -> tuple[Example | None, Outcome]:
    """The example as it goes into a row, and what had to be done for that.

    The first token of a document is nobody's label. What comes after the last label teaches nothing
    (no later token is predicted from it) and is left out. If labels lie beyond seq_len the example is
    cut there or, with "drop", refused; an example without any label left is refused always.
    """
    train = example.train.copy()
    train[:1] = False
    labels = np.flatnonzero(train)
    if not len(labels):
        return None, "no_label"
    outcome: Outcome = "whole" if labels[-1] < seq_len else "cut"
    if outcome == "cut":
        if too_long == "drop":
            return None, "too_long"
        if labels[0] >= seq_len:
            return None, "no_room"
        labels = labels[labels < seq_len]
    end = int(labels[-1]) + 1
    return Example(example.ids[:end], train[:end], example.source), outcome


def last_labels(train: npt.NDArray[np.bool_], starts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The place of each document's last label in it, -1 where it has none; int64 [n].

    train bool [T]: the masks of n documents, the first token of each cleared; starts int64 [n+1].
    """
    labels = np.flatnonzero(train)
    after = np.searchsorted(labels, starts)
    has = after[1:] > after[:-1]
    last = np.full(len(starts) - 1, -1, np.int64)
    last[has] = labels[after[1:][has] - 1] - starts[:-1][has]
    return last


def shorten(
    talk: Conversation, example: Example, render: Render, seq_len: int, too_long: TooLong
) -> Shortened:
    """The samples of a conversation whose rendering, `example`, does not fit into a row as it is."""
    values = {"tokens": len(example.ids), "seq_len": seq_len}
    kept, outcome = fit(example, seq_len, too_long)
    if too_long == "split" and outcome in ("cut", "no_room"):
        parts = list(_parts(talk, render, seq_len))
        if len(parts) > 1:
            fitted = [fit(part, seq_len, "cut") for part in render(parts)]
            examples = [part for part, _ in fitted if part is not None]
            cut = sum(each == "cut" for _, each in fitted)
            lost = sum(each == "no_room" for _, each in fitted)
            code = "split" if not cut + lost else "split_with_loss" if examples else "no_room"
            return Shortened(examples, code, {**values, "parts": len(examples), "cut": cut, "lost": lost})
    return Shortened([] if kept is None else [kept], "" if outcome == "whole" else outcome, values)


def _parts(talk: Conversation, render: Render, seq_len: int) -> Iterator[Conversation]:
    """The conversation cut before questions: each part has the system turn and the tools, and as many
    exchanges as fit into a row."""
    head = talk.messages[: int(talk.messages[0].role == "system")]
    exchanges = list(_exchanges(talk.messages[len(head) :]))
    alone = [Conversation((*head, *each), talk.tools, talk.source) for each in ((), *exchanges)]
    base, *lengths = (len(example.ids) for example in render(alone))
    costs = [length - base for length in lengths]
    part: list[Message] = []
    room = seq_len - base
    for exchange, cost in zip(exchanges, costs, strict=True):
        if part and cost > room:
            yield Conversation((*head, *part), talk.tools, talk.source)
            part, room = [], seq_len - base
        part += exchange
        room -= cost
    yield Conversation((*head, *part), talk.tools, talk.source)


def _exchanges(messages: Sequence[Message]) -> Iterator[tuple[Message, ...]]:
    """The turns from each question to the next one: a question is a user's turn after an answer."""
    begin = 0
    for turn, message in enumerate(messages):
        if turn and message.role == "user" and messages[turn - 1].role != "user":
            yield tuple(messages[begin:turn])
            begin = turn
    yield tuple(messages[begin:])


def split_plain(example: Example, seq_len: int) -> list[Example]:
    """A plain text in pieces of seq_len tokens. Each begins with the last token of the one before, so that
    every token but the first is a label once."""
    places = [slice(start, start + seq_len) for start in range(0, max(len(example.ids) - 1, 1), seq_len - 1)]
    return [Example(example.ids[place], example.train[place], example.source) for place in places]
