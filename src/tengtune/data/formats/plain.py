"""Plain text to go on pre-training with: {text}. There are no turns in it; all of it is trained."""

from __future__ import annotations

from typing import Any

from tengtune.data.fault import Notes
from tengtune.data.formats.values import text
from tengtune.text.conversation import Message

KEYS = frozenset(("text",))
PLAIN = "text"
"""The "role" of a conversation's only message where it is no conversation but a plain text."""


def read(record: dict[str, Any], notes: Notes) -> list[Message]:
    """The text, as one message of the role PLAIN."""
    return [Message(PLAIN, text(record["text"], "text", notes))]
