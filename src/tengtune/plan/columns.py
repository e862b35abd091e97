"""Tables of plain text whose columns stand below each other in Chinese, too."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

_FIGURE = re.compile(r"[-?]|[<=]*\d[\d.x !*]*")


def width(text: str) -> int:
    """Columns on a terminal: Chinese characters take two."""
    return sum(2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in text)


def padded(text: str, columns: int) -> str:
    """The text with blanks behind it."""
    return text + " " * (columns - width(text))


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table; columns of figures stand to the right."""
    columns = list(zip(heads, *rows, strict=True))
    widths = [max(map(width, column)) for column in columns]
    right = [all(map(_FIGURE.fullmatch, column[1:])) for column in columns]
    lines = []
    for row in (heads, *rows):
        cells = zip(row, widths, right, strict=True)
        line = (
            " " * (size - width(cell)) + cell if figures else padded(cell, size)
            for cell, size, figures in cells
        )
        lines.append("  ".join(line).rstrip())
    return lines
