"""A file that holds one object: the records in it, where it is none itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tengtune.data.json_stream import INNER_LISTS

Records = list[Any]


def unfolded(value: Any, is_record: Callable[[Any], bool]) -> tuple[str, Records] | None:
    """How records lie in an object that is no record, and the records; None when none are found in it.

    pandas_columns  {column: {"0": value, "1": value, ...}}, pandas' default to_json
    columns         {column: [value, ...]}, as datasets' to_dict and pandas' orient="list" write it
    keyed_records   {name: record, ...}
    """
    if not isinstance(value, dict) or not value:
        return None
    parts = list(value.values())
    if all(isinstance(part, dict) and part for part in parts):
        first = next(iter(parts[0]))
        if all(isinstance(key, str) and key.isdecimal() for part in parts for key in part):
            records = [{name: part.get(key) for name, part in value.items()} for key in parts[0]]
            if is_record({name: part.get(first) for name, part in value.items()}):
                return "pandas_columns", records
        return ("keyed_records", parts) if all(map(is_record, parts)) else None
    if not all(isinstance(part, list) and len(part) == len(parts[0]) and part for part in parts):
        return None
    inner = [name for name in value if name in INNER_LISTS]
    if any(not isinstance(each, list) for name in inner for each in value[name]):
        return None
    rows = [dict(zip(value, row, strict=True)) for row in zip(*parts, strict=True)]
    return ("columns", rows) if is_record(rows[0]) else None
