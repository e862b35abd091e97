"""Tables for the terminal."""

from __future__ import annotations

import io
import shutil
from typing import Any, TextIO


def table_text(out: TextIO, columns: list[str], rows: list[list[Any]], title: str | None = None) -> str:
    """Rows under columns as a text for `out`; long cells wrap, wide characters keep the columns straight."""
    from rich import box
    from rich.console import Console as RichConsole
    from rich.table import Table
    from rich.text import Text

    width = shutil.get_terminal_size((110, 24)).columns if out.isatty() else 110
    lines = any("\n" in str(cell) for row in rows for cell in row)
    wide = (getattr(out, "encoding", None) or "utf-8").lower().startswith(("utf", "gb"))
    table = Table(
        title=title, title_justify="left", show_lines=lines, box=box.HEAVY_HEAD if wide else box.ASCII
    )
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        # Text, not markup: a model's answer may hold square brackets.
        table.add_row(*(Text(str(cell)) for cell in row))
    console = RichConsole(file=io.StringIO(), width=max(width, 40), force_terminal=out.isatty())
    with console.capture() as captured:
        console.print(table)
    return captured.get().rstrip("\n")
