"""Records that hold a question and an answer under two keys: query/response, prompt/completion,
question/answer; with system and history where there are any.

The two may also be lists of turns (TRL's conversational prompt and completion)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tengtune.data.fault import Notes
from tengtune.data.formats import turns
from tengtune.data.formats.context import context
from tengtune.data.formats.values import text
from tengtune.text.conversation import Message


def reader(question: str, *answers: str) -> Callable[[dict[str, Any], Notes], list[Message]]:
    """The `read` function of the format with these keys; of `answers` the first that a record has counts."""

    def read(record: dict[str, Any], notes: Notes) -> list[Message]:
        messages = context(record, notes)
        answer = next(key for key in answers if key in record)
        if isinstance(record[question], list) and isinstance(record[answer], list):
            for key in (question, answer):
                messages += turns.messages_of(record[key], key, notes)
            return messages
        messages.append(Message("user", text(record[question], question, notes)))
        messages.append(Message("assistant", text(record[answer], answer, notes)))
        return messages

    return read
