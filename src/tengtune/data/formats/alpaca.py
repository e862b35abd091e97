"""Alpaca records: {instruction, input?, output, system?, history?: [[question, answer], ...]}."""

from __future__ import annotations

from typing import Any

from tengtune.data.fault import Notes, Unfit
from tengtune.data.formats.context import CONTEXT_KEYS, context
from tengtune.data.formats.values import optional_text, text
from tengtune.text.conversation import Message

KEYS = frozenset(("instruction", "input", "output")) | CONTEXT_KEYS


def read(record: dict[str, Any], notes: Notes) -> list[Message]:
    """The record's turns: system and history where there are any, then one question and answer."""
    return read_named(record, notes, "input", "output")


def read_named(record: dict[str, Any], notes: Notes, extra: str, answer: str) -> list[Message]:
    """The same with other names for `input` and `output`."""
    messages = context(record, notes) if "system" in record or "history" in record else []
    instruction = optional_text(record.get("instruction"), "instruction", notes) or ""
    given = optional_text(record.get(extra), extra, notes) or ""
    if not given and "instruction" not in record:
        raise Unfit("missing", at="instruction")
    messages.append(Message("user", question(instruction, given)))
    messages.append(Message("assistant", text(record.get(answer), answer, notes)))
    return messages


def question(instruction: str, extra: str) -> str:
    """The user's text, joined as mindformers' alpaca_converter joins it (research/qwen, r1.0 to r1.3).

    No prompt wording around it; with an input, one final "." of the instruction goes and ": " comes
    between. Where that script fails (no instruction but an input) the input alone is the question.
    """
    if not extra or not instruction:
        return instruction or extra
    return f"{instruction.removesuffix('.')}: {extra}"
