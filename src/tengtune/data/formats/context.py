"""What may stand before a question, whatever the format: a system text and earlier turns."""

from __future__ import annotations

from typing import Any

from tengtune.data.fault import Notes, Unfit
from tengtune.data.formats.values import as_list, is_blank, optional_text, text
from tengtune.text.conversation import Message

CONTEXT_KEYS = frozenset(("system", "history"))


def context(record: dict[str, Any], notes: Notes) -> list[Message]:
    """The system turn, if the record has a system text, and the turns of its history, a list of pairs."""
    messages: list[Message] = []
    system = optional_text(record.get("system"), "system", notes)
    if system:
        messages.append(Message("system", system))
    history = record.get("history")
    if is_blank(history):
        return messages
    for i, pair in enumerate(as_list(history, "history", notes)):
        turns = as_list(pair, f"history[{i}]", notes)
        if len(turns) != 2:
            raise Unfit("not_pair", at=f"history[{i}]", count=len(turns))
        messages.append(Message("user", text(turns[0], f"history[{i}][0]", notes)))
        messages.append(Message("assistant", text(turns[1], f"history[{i}][1]", notes)))
    return messages
