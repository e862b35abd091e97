"""Tables for the terminal."""

from __future__ import annotations

import shutil
from typing import Any, TextIO


def print_table(out: TextIO, columns: list[str], rows: list[list[Any]], title: str | None = None) -> None:
    """Print rows under columns to `out`; long cells wrap, wide characters keep the columns straight."""
    from rich.console import Console as RichConsole
    from rich.table import Table
    from rich.text import Text

    width = shutil.get_terminal_size((110, 24)).columns if out.isatty() else 110
    table = Table(title=title, title_justify="left", show_lines=any("\n" in str(c) for r in rows for c in r))
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        # Text, not markup: a model's answer may hold square brackets.
        table.add_row(*(Text(str(cell)) for cell in row))
    RichConsole(file=out, width=max(width, 40)).print(table)
