"""Text in columns of a terminal, on which a Chinese character takes two."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

_WIDE = "\u2e80-\ua4cf\uac00-\ud7af\uf900-\ufaff\ufe30-\ufe4f\uff00-\uff60"
_PIECES = re.compile(rf"\s+|[（“]*(?:[{_WIDE}]|[^\s{_WIDE}]+)[，。：；、）！？”]*")
"""What stays on one line: a word, or one Chinese character, each with the marks that belong to it."""


def columns(text: str) -> int:
    """How many columns a text takes."""
    return sum(2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in text)


def wrapped(text: str, width: int) -> Iterator[str]:
    """The text in lines of at most `width` columns; a longer word has a line for itself."""
    line = ""
    for piece in _PIECES.findall(text):
        if line and columns(line + piece.rstrip()) > width:
            yield line.rstrip()
            line = ""
        line = (line + piece) if line else piece.lstrip()
    if line:
        yield line.rstrip()
