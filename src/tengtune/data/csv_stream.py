"""Records out of tables: a header, then a record a row; commas, tabs, semicolons or bars between."""

from __future__ import annotations

import csv
import shlex
from collections import deque
from collections.abc import Iterator
from itertools import islice

from tengtune.data.fault import Fault
from tengtune.data.json_stream import IsRecord, Items
from tengtune.data.json_value import Record
from tengtune.data.window import BLANK, LONGEST, Text
from tengtune.ui.problems import Problem

DELIMITERS = ",\t;|"
SURE = 10
"""So many lines that fit the header, and none that does not, are rows."""
FAR = 50
"""Lines within which the end of a cell of several lines is looked for."""


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


class _Lines:
    """The lines of a table for csv.reader, which knows neither the text of a row nor a way back."""

    def __init__(self, lines: Iterator[str], line: int) -> None:
        self._lines, self._again = lines, deque[str]()
        self.line = line  # that of the row's beginning
        self.taken: list[str] = []  # the row's lines so far

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        line = self._again.popleft() if self._again else f"{next(self._lines)}\n"
        self.taken.append(line)
        return line

    def begin(self) -> None:
        """A row has been read, another begins."""
        self.line += len(self.taken)
        self.taken.clear()

    def give_back(self) -> None:
        """All but the first line of the row are to be read again."""
        self._again.extendleft(reversed(self.taken[1:]))
        del self.taken[1:]

    def ahead(self, count: int) -> list[str]:
        """The next lines, at most `count` of them, which stay to be read."""
        missing = max(count - len(self._again), 0)
        self._again.extend(f"{line}\n" for line in islice(self._lines, missing))
        return list(islice(self._again, count))

    def take(self, count: int) -> None:
        """The next lines belong to the row."""
        for _ in islice(self, count):
            pass

    @property
    def raw(self) -> str:
        """The text of the row."""
        return "".join(self.taken).removesuffix("\n").removesuffix("\r")


def read_table(text: Text, delimiter: str) -> Items:
    """The rows as records. A row that does not fit the header is a fault and costs that row only; the rows
    that a stray quotation mark joined to it are read as such where that is beyond doubt.

    Problem: two columns of one name, a quotation mark that is never closed.
    """
    text.by_lines(True)
    csv.field_size_limit(LONGEST)
    lines = _Lines(text.lines(), text.line_at(text.position))
    names = _header(next(lines, ""), delimiter)
    twice = [name for name in names if name and names.count(name) > 1]
    if twice:
        raise Problem("data.column_twice", where=f"{text.path}:{lines.line}", name=twice[0][:40])
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    number = -1
    while True:
        lines.begin()
        try:
            row = next(reader, None)
        except csv.Error as error:
            number += 1
            yield _unread(text, lines, (delimiter, len(names)), number, error)
            continue
        if row is None:
            return
        if row:
            number += 1
            yield _record(text, names, row, number, lines)


def _record(text: Text, names: list[str], row: list[str], number: int, lines: _Lines) -> Record | Fault:
    if len(row) != len(names):
        return _fault(text, lines, number, "row_length", fields=len(row), columns=len(names))
    damage = text.damage(lines.raw) if text.damaged else None
    if damage is not None:
        return _fault(text, lines, number, "line_encoding", **damage)
    return Record({name: cell for name, cell in zip(names, row, strict=True) if name}, number, lines.line)


def _unread(text: Text, lines: _Lines, table: tuple[str, int], number: int, error: csv.Error) -> Fault:
    """A row that is none: a quotation mark in it is never closed, or text follows it. `table`: what parts its
    columns, and how many there are."""
    never_closed = "unexpected end" in str(error)
    if never_closed and not text.lenient:
        where, file = f"{text.path}:{lines.line}", shlex.quote(str(text.path))
        raise Problem("data.open_quote", where=where, line=lines.line, file=file)
    if not never_closed:
        lines.give_back()
        lines.take(_rest_of_cell(lines, table[0]))
    elif _are_rows(lines.taken[1:], *table):
        lines.give_back()
    if never_closed:
        return _fault(text, lines, number, "open_quote_from", line=lines.line)
    return _fault(text, lines, number, "bad_row", reason=str(error))


def _rest_of_cell(lines: _Lines, delimiter: str) -> int:
    """How many lines after its first belong to a row that is none: those of a cell that is open at the end of
    that line, and whose closing quotation mark stands where none can open a cell. Else it has been forgotten,
    and the next line begins a row."""
    if lines.taken[0].count('"') % 2 == 0:
        return 0
    for count, line in enumerate(lines.ahead(FAR), 1):
        if line.count('"') % 2:
            before = line.partition('"')[0]
            return 0 if not before or before.endswith(delimiter) else count
    return 0


def _fault(text: Text, lines: _Lines, number: int, code: str, **values: object) -> Fault:
    """What is wrong with the row that is being read; with its text where all faults are wanted."""
    raw = lines.raw if text.lenient else None
    return Fault(text.name, number, lines.line, code, values, raw=raw)


def _are_rows(lines: list[str], delimiter: str, columns: int) -> bool:
    """Whether lines that stand behind an open quotation mark are rows of the table: every one of many fits,
    as no cell of several lines would by chance."""
    if len(lines) < SURE:
        return False
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    try:
        return all(len(row) == columns for row in reader if row)
    except csv.Error as error:  # the last of them may go on beyond what was read
        return "unexpected end" in str(error) and reader.line_num == len(lines)
