"""Alpaca records: {instruction, input?, output, system?, history?: [[question, answer], ...]}."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tengtune.data.fault import Note, Unfit
from tengtune.data.formats.values import as_list, optional_text, text
from tengtune.text.conversation import Message

KEYS = frozenset(("instruction", "input", "output", "system", "history"))


def read(record: dict[str, Any], note: Note) -> tuple[Message, ...]:
    """The record's turns: system and history where there are any, then one question and answer."""
    messages: list[Message] = []
    system = optional_text(record.get("system"), "system", note)
    if system:
        messages.append(Message("system", system))
    for i, pair in enumerate(as_list(record.get("history") or [], "history")):
        turns = as_list(pair, f"history[{i}]")
        if len(turns) != 2:
            raise Unfit("not_pair", at=f"history[{i}]", count=len(turns))
        messages.append(Message("user", text(turns[0], f"history[{i}][0]", note)))
        messages.append(Message("assistant", text(turns[1], f"history[{i}][1]", note)))
    instruction = optional_text(record.get("instruction"), "instruction", note)
    extra = optional_text(record.get("input"), "input", note)
    messages.append(Message("user", question(instruction or "", extra or "")))
    messages.append(Message("assistant", text(record.get("output"), "output", note)))
    return tuple(messages)


def unused(record: dict[str, Any]) -> Iterator[str]:
    """Keys of the record that are not read."""
    return (key for key in record if key not in KEYS)


def question(instruction: str, extra: str) -> str:
    """The user's text, joined as mindformers' alpaca_converter joins it (research/qwen, r1.0 to r1.3).

    No prompt wording around it; with an input, one final "." of the instruction goes and ": " comes
    between. Where that script fails (no instruction but an input) the input alone is the question.
    """
    if not extra or not instruction:
        return instruction or extra
    return f"{instruction.removesuffix('.')}: {extra}"
