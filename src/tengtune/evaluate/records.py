"""Records of a question file: what the data step reads, and tables without a header, as MMLU's own are."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from tengtune.data import formats
from tengtune.data.fault import Fault, Unfit
from tengtune.data.records import read_records
from tengtune.ui.problems import Problem, os_errors

Entry = tuple[int, "dict[str, Any] | Unfit"]
"""A record's number, from 0, and its values by name in lower case; or why it could not be read."""

QUESTION, ANSWER, OPTIONS, KEYWORDS = "question", "answer", "options", "keywords"
_NAMES = {"问题": QUESTION, "题目": QUESTION, "答案": ANSWER, "answerkey": ANSWER} | {
    "选项": OPTIONS,
    "choices": OPTIONS,
}
"""Other names of the same columns."""


def read_entries(path: Path, name: str) -> Iterator[Entry]:
    """The records in order. Problem where the file as a whole cannot be read."""
    if path.suffix.lower() == ".csv" and (rows := _bare_rows(path)):
        yield from enumerate(rows)
        return
    for item in read_records(path, name, is_record=_is_question):
        if not isinstance(item, Fault):
            value = item.value
            found = _renamed(value) if isinstance(value, dict) else None
            yield item.number, found or Unfit("not_object", at="record", kind=type(value).__name__)
        elif item.record is not None:
            yield item.record, Unfit(item.code, **item.values)


def _is_question(value: Any) -> bool:
    return isinstance(value, dict) and (QUESTION in _renamed(value) or formats.choose(value) is not None)


def _renamed(record: dict[str, Any]) -> dict[str, Any]:
    names = ((str(key).strip().casefold(), value) for key, value in record.items())
    return {_NAMES.get(name, name): value for name, value in names}


def _bare_rows(path: Path) -> Iterator[dict[str, str]] | None:
    """The rows of a table whose first row is a question already: its last cell is the right letter."""
    with os_errors(path), open(path, encoding="utf-8-sig", errors="surrogateescape", newline="") as stream:
        rows = csv.reader(stream)
        first = next(rows, [])
        if len(first) < 4 or not re.fullmatch("[A-H]", first[-1].strip()):
            return None
    return _named_rows(path)


def _named_rows(path: Path) -> Iterator[dict[str, str]]:
    """Rows of question, options, right letter."""
    with os_errors(path), open(path, encoding="utf-8-sig", newline="") as stream:
        try:
            for row in csv.reader(stream):
                names = chain([QUESTION], "abcdefgh"[: max(len(row) - 2, 0)], [ANSWER])
                yield dict(zip(names, row, strict=False))
        except (csv.Error, UnicodeDecodeError) as error:
            raise Problem("evaluate.bad_table", where=path, reason=str(error)) from error
