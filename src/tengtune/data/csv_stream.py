"""Records out of tables: a header, then a record a row; commas, tabs, semicolons or bars between."""

from __future__ import annotations

import csv
from collections.abc import Iterator

from tengtune.data.detect import encoding_guess
from tengtune.data.fault import Fault
from tengtune.data.json_stream import IsRecord, Items
from tengtune.data.json_value import Record
from tengtune.data.window import BLANK, DAMAGED, LONGEST, Text
from tengtune.ui.problems import Problem

DELIMITERS = ",\t;|"


def table_delimiter(text: Text, is_record: IsRecord) -> str | None:
    """What parts the columns of a table whose header names a record; None when this is no such table."""
    for delimiter in DELIMITERS:
        names = _header(text.text[text.position :], delimiter)
        if len(names) > 1 and is_record(dict.fromkeys(names, "")):
            return delimiter
    return None


def column_names(text: Text) -> list[str]:
    """The cells of the first line, with the delimiter that parts it into most of them."""
    return max((_header(text.text[text.position :], each) for each in DELIMITERS), key=len)


def _header(head: str, delimiter: str) -> list[str]:
    lines = head.splitlines(keepends=True)[:1]
    try:
        return [name.strip(BLANK) for row in csv.reader(lines, delimiter=delimiter) for name in row]
    except csv.Error:
        return []


def read_table(text: Text, delimiter: str) -> Items:
    """The rows as records. A row that does not fit the header is a fault and costs that row only.

    Problem: two columns of one name, a quotation mark that is never closed.
    """
    text.by_lines(True)
    csv.field_size_limit(LONGEST)
    first_line = text.line_at(text.position)
    lines = (f"{line}\n" for line in text.lines())
    names = _header(next(lines, ""), delimiter)
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    twice = [name for name in names if name and names.count(name) > 1]
    if twice:
        raise Problem("data.column_twice", where=f"{text.path}:{first_line}", name=twice[0][:40])
    number = -1
    while True:
        line = first_line + 1 + reader.line_num
        try:
            row = next(reader, None)
        except csv.Error as error:
            if "unexpected end" in str(error):
                yield from _never_closed(text, line)
                return
            number += 1
            yield Fault(text.name, number, line, "bad_row", {"reason": str(error)})
            continue
        if row is None:
            return
        if row:
            number += 1
            yield _record(text, names, row, number, line)


def _record(text: Text, names: list[str], row: list[str], number: int, line: int) -> Record | Fault:
    if len(row) != len(names):
        values = {"fields": len(row), "columns": len(names)}
        return Fault(text.name, number, line, "row_length", values)
    if text.damaged:
        damage = next((cell[found.start() :] for cell in row if (found := DAMAGED.search(cell))), None)
        if damage is not None:
            guess = encoding_guess(damage.encode("utf-8", "surrogateescape"))
            return Fault(text.name, number, line, "line_encoding", {"column": 1, "guess": guess})
    return Record({name: cell for name, cell in zip(names, row, strict=True) if name}, number, line)


def _never_closed(text: Text, line: int) -> Iterator[Fault]:
    """The file from `line` on is one field."""
    if not text.lenient:
        raise Problem("data.open_quote", where=f"{text.path}:{line}", line=line)
    yield Fault(text.name, None, line, "open_quote_from", {"line": line})
