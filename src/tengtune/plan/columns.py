"""Tables of plain text whose columns stand below each other in Chinese, too, and the sizes in them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tengtune.ui.layout import columns as width

_FIGURE = re.compile(r"[-?]|[<=]*\d[\d.x !*^~?]*")


def padded(text: str, columns: int) -> str:
    """The text with blanks behind it."""
    return text + " " * (columns - width(text))


def gb(size_bytes: float) -> str:
    """A size in GB, 1e9 bytes: to a tenth below 100."""
    return f"{size_bytes / 1e9:.1f}" if size_bytes < 99.95e9 else f"{size_bytes / 1e9:.0f}"


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
