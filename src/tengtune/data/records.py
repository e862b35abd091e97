"""Records out of a file, whatever it is: told by its content, and by its name where that says nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

from tengtune.data.csv_stream import column_names, read_table, table_delimiter
from tengtune.data.detect import PACKED_SUFFIXES, PARQUET, layout
from tengtune.data.fault import Fault
from tengtune.data.json_stream import IsRecord, Items, read_json, tried
from tengtune.data.json_value import Record, syntax_code
from tengtune.data.parquet_stream import read_parquet
from tengtune.data.plain_stream import read_plain
from tengtune.data.unfold import unfolded
from tengtune.data.window import RawFile, Text, open_text
from tengtune.ui.lists import joined
from tengtune.ui.problems import Problem, os_errors

KIND_OF = {
    ".json": "array",
    ".jsonl": "lines",
    ".ndjson": "lines",
    ".csv": "table",
    ".tsv": "table",
    ".txt": "plain",
    ".parquet": "parquet",
}
"""What a name promises."""


def read_records(
    path: Path,
    name: str,
    advance: Callable[[int], None] = lambda count: None,
    is_record: IsRecord = lambda value: False,
    lenient: bool = False,
) -> Iterator[Record | Fault]:
    """The records of a file in order; faults carry `name`. `advance` is told how many bytes were read.

    `is_record` says whether a value looks like a record, where a file's layout leaves that open. `lenient`:
    what is broken is a Fault, and the reading goes on at the next record that can be made out.
    Raises Problem where nothing can be read from there on: no data file, not UTF-8, empty, broken.
    """
    with os_errors(path), open(path, "rb") as stream:
        raw = RawFile(path, stream, advance)
        promised = KIND_OF.get(_suffix(path))
        if raw.head.startswith(PARQUET):
            if promised != "parquet":
                yield Fault(name, None, None, "other_kind", {"kind": "parquet"}, dropped=False)
            yield from read_parquet(path, advance)
            return
        text = open_text(raw, name, lenient)
        kind, items = _items(text, promised, is_record)
        count = 0
        for item in _unfolded(items, text, is_record):
            count += item.__class__ is Record
            yield item
        _compare(text, kind, promised, count)
        yield from text.said()


def _suffix(path: Path) -> str:
    """The file's suffix in lower case, without that of a compression."""
    suffix = path.suffix.lower()
    return Path(path.stem).suffix.lower() if suffix in PACKED_SUFFIXES else suffix


def _items(text: Text, promised: str | None, is_record: IsRecord) -> tuple[str, Items]:
    """What the text is, and its records."""
    kind = layout(text.text[text.position :])
    if (
        kind is None and promised not in ("table", "plain") and text.fill()
    ):  # its first line may be long, and the next tell what it is
        kind = layout(text.text[text.position :])
    if kind is not None and not (promised in ("table", "plain") and not _begins_with_json(text)):
        return kind, read_json(text, kind, is_record)
    delimiter = table_delimiter(text, is_record)
    if delimiter:
        return "table", read_table(text, delimiter)
    if promised == "table":
        names = column_names(text)
        shown = joined(name[:40] for name in names[:12])
        raise Problem("data.no_columns", where=text.path, columns=shown, count=len(names))
    if promised != "plain":
        _fail(text)
    return "plain", read_plain(text)


def _fail(text: Text) -> NoReturn:
    """The file is neither JSON nor a table."""
    code = syntax_code(text.text, text.position, "", ended=False)
    text.fail("data.json_start" if code == "data.json_syntax" else code)


def _begins_with_json(text: Text) -> bool:
    """Whether a text that is named as something else begins with an object, or a list of such."""
    start = re.compile(r"\[?\s*").match(text.text, text.position)
    value = tried(text, start.end() - text.position if start else 0)
    return isinstance(value, dict)


def _unfolded(items: Items, text: Text, is_record: IsRecord) -> Items:
    """The records; where the file is a single object that is none, the records in it."""
    first, second = next(items, None), next(items, None)
    if isinstance(first, Record) and second is None and not is_record(first.value):
        found = unfolded(first.value, is_record)
        if found:
            code, values = found
            text.remark(code, count=len(values))
            yield from (Record(value, number, first.line) for number, value in enumerate(values))
            return
    yield from (item for item in (first, second) if item is not None)
    yield from items


def _compare(text: Text, kind: str, promised: str | None, count: int) -> None:
    """Remark where the file is not laid out as its name says."""
    noted = {fault.code for fault in text.said()}
    if promised == "array" and kind in ("lines", "values"):
        if not noted & {"wrapped", "pandas_columns", "columns", "keyed_records", "values_joined"}:
            text.remark("single_object" if count == 1 else "lines_in_json")
    elif promised in ("table", "plain") and kind not in (promised, "table"):
        text.remark("other_kind", kind="JSON")
    elif promised and kind != promised and kind in ("array", "table"):
        text.remark("other_kind", kind="JSON" if kind == "array" else "CSV")
