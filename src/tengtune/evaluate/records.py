"""Records of a question file: csv with or without a header, JSON, JSON Lines, or an object around a list."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tengtune.data.detect import encoding_guess
from tengtune.data.fault import Fault, Unfit
from tengtune.data.json_stream import read_records
from tengtune.ui.problems import Problem, os_errors

Entry = tuple[int, "dict[str, Any] | Unfit"]
"""A record's number, from 0, and its values by name in lower case; or why it could not be read."""

SEPARATORS = {".csv": ",", ".tsv": "\t"}
QUESTION, ANSWER, OPTIONS = "question", "answer", "options"
_NAMES = {
    "问题": QUESTION,
    "题目": QUESTION,
    "答案": ANSWER,
    "answerkey": ANSWER,
    "选项": OPTIONS,
    "choices": OPTIONS,
}
"""Other names of the same columns."""


def read_entries(path: Path, name: str) -> Iterator[Entry]:
    """The records in order. Problem where the file as a whole cannot be read."""
    separator = SEPARATORS.get(path.suffix.lower())
    if separator is not None:
        yield from _table(path, separator)
        return
    for item in read_records(path, name):
        if isinstance(item, Fault):
            if item.record is not None:
                yield item.record, Unfit(item.code, **item.values)
        elif not isinstance(item.value, dict):
            yield item.number, Unfit("not_object", at="record", kind=type(item.value).__name__)
        else:
            inner = _inner(item.value)
            if inner is None:
                yield item.number, _renamed(item.value)
            else:
                yield from ((number, _renamed(each)) for number, each in enumerate(inner))


def _inner(record: dict[str, Any]) -> list[dict[str, Any]] | None:
    """The list of objects of an object that is no question itself: GAOKAO-Bench has {keywords, example}."""
    if QUESTION in _renamed(record):
        return None
    lists = [v for v in record.values() if isinstance(v, list) and v and all(isinstance(e, dict) for e in v)]
    tables = [each for each in lists if all(QUESTION in _renamed(e) for e in each)]
    return tables[0] if len(tables) == 1 else None


def _renamed(record: dict[str, Any]) -> dict[str, Any]:
    names = ((str(key).strip().casefold(), value) for key, value in record.items())
    return {_NAMES.get(name, name): value for name, value in names}


def _table(path: Path, separator: str) -> Iterator[Entry]:
    with os_errors(path):
        raw = path.read_bytes()
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        where, guess = f"{path}:{raw[: error.start].count(10) + 1}", encoding_guess(raw[error.start :])
        raise Problem("data.not_utf8", where=where, byte=error.start, guess=guess, file=path.name) from error
    try:
        rows = [row for row in csv.reader(io.StringIO(text, newline=""), delimiter=separator) if any(row)]
    except csv.Error as error:
        raise Problem("evaluate.bad_table", where=path, reason=str(error)) from error
    if not rows:
        raise Problem("data.empty_file", where=path)
    names = _header(rows[0])
    for number, row in enumerate(rows if names is None else rows[1:]):
        columns = _unnamed(row) if names is None else names
        if len(row) != len(columns):
            yield number, Unfit("columns", found=len(row), wanted=len(columns))
        else:
            yield number, dict(zip(columns, row, strict=True))


def _header(row: Sequence[str]) -> list[str] | None:
    """The columns' names; None where the first row is a question already, its last cell the right letter."""
    if len(row) > 3 and re.fullmatch("[A-H]", row[-1].strip()):
        return None
    return list(_renamed(dict.fromkeys(row)))


def _unnamed(row: Sequence[str]) -> list[str]:
    """Names of the columns as MMLU's own files have them: question, options, the right letter."""
    return [QUESTION, *"abcdefgh"[: max(len(row) - 2, 0)], ANSWER]
