"""Dolly records: {instruction, context?, response, category?}; Alpaca's with other names."""

from __future__ import annotations

from typing import Any

from tengtune.data.fault import Notes
from tengtune.data.formats import alpaca
from tengtune.data.formats.context import CONTEXT_KEYS
from tengtune.text.conversation import Message

KEYS = frozenset(("instruction", "context", "response")) | CONTEXT_KEYS


def read(record: dict[str, Any], notes: Notes) -> list[Message]:
    """The record's turns."""
    return alpaca.read_named(record, notes, "context", "response")
