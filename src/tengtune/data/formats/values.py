"""Reading single values of a record with reasons instead of exceptions."""

from __future__ import annotations

import json
from typing import Any

from tengtune.data.fault import Note, Unfit
from tengtune.data.json_value import DECODER, RepeatedKey, check_depth
from tengtune.ui import language

_KINDS = {
    "dict": "object",
    "RepeatedKey": "object",
    "list": "list",
    "str": "text",
    "int": "number",
    "float": "number",
    "bool": "bool",
    "NoneType": "null",
}


def kind(value: Any) -> str:
    """What kind of JSON value this is, in the current language."""
    name = type(value).__name__
    return language.say(f"data.kind_{_KINDS[name]}") if name in _KINDS else name


def as_object(value: Any, at: str) -> dict[str, Any]:
    """The value as an object in which no key stands twice; Unfit otherwise. `at` says where it is."""
    if isinstance(value, RepeatedKey):
        raise Unfit("key_twice", at=at, key=value.key[:40])
    if not isinstance(value, dict):
        raise Unfit("not_object", at=at, kind=kind(value))
    return value


def as_list(value: Any, at: str, note: Note) -> list[Any]:
    """The value as a list; a JSON text of one (a table's cell) is taken and noted. Unfit otherwise."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        value = parsed(value, at)
        note("json_text", at=at)
    if not isinstance(value, list):
        raise Unfit("not_list", at=at, kind=kind(value))
    return value


def parsed(value: str, at: str) -> Any:
    """The value of a JSON text; Unfit when it is none."""
    try:
        found = DECODER.decode(value)
        check_depth(found, value, 0, len(value))
    except json.JSONDecodeError as error:
        raise Unfit("not_json", at=at, column=error.pos + 1) from error
    except RecursionError as error:
        raise Unfit("too_deep") from error
    return found


def optional_text(value: Any, at: str, note: Note) -> str | None:
    """The value as a text; None for null, and for NaN (pandas' missing value), which is noted."""
    if isinstance(value, str):
        return value
    if value is None:
        return None
    if isinstance(value, float) and value != value:
        note("nan", at=at)
        return None
    raise Unfit("not_text", at=at, kind=kind(value))


def text(value: Any, at: str, note: Note) -> str:
    """The value as a text; Unfit when it is missing or something else."""
    found = optional_text(value, at, note)
    if found is None:
        raise Unfit("missing", at=at)
    return found


def is_blank(value: Any) -> bool:
    """Whether an optional value is as good as absent: null, NaN, "", blanks, an empty list or object."""
    return not value or value != value or (isinstance(value, str) and not value.strip())
