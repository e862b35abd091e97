"""A plain text file to go on pre-training with: one long document, in pieces that end with a line."""

from __future__ import annotations

from tengtune.data.fault import Fault
from tengtune.data.json_stream import Items
from tengtune.data.json_value import Record
from tengtune.data.window import Text

PIECE = 1 << 16
"""Characters of a piece, at most; a longer line is parted."""


def read_plain(text: Text) -> Items:
    """The text as records {"text": piece}."""
    text.by_lines(True)
    text.position = text.text.rfind(text.newline, 0, text.position) + 1  # its indentation is part of a line
    number = 0
    line = first = text.line_at(text.position)
    parts: list[str] = []
    size = 0
    for content in text.lines():
        damage = text.damage(content)
        if damage is not None:
            yield Fault(text.name, None, line, "line_encoding", damage)
            content = ""
        for start in range(0, len(content) or 1, PIECE):
            part = content[start : start + PIECE]
            if size + len(part) > PIECE and size:
                yield Record({"text": "\n".join(parts)}, number, first)
                number, first, parts, size = number + 1, line, [], 0
            parts.append(part)
            size += len(part) + 1
        line += 1
    if any(map(str.strip, parts)):
        yield Record({"text": "\n".join(parts)}, number, first)
