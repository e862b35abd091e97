"""The names a user's file has for what we call otherwise: data.map of the run file, {ours: theirs}."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from tengtune.data.formats import NAMES, turns
from tengtune.data.json_stream import INNER_LISTS
from tengtune.data.json_value import RepeatedKey
from tengtune.ui import language
from tengtune.ui.problems import Problem

Names = dict[str, str]
"""{theirs: ours}"""


def inverted(mapping: Mapping[str, str], where: object) -> Names:
    """The mapping the other way round. Problem: a name of ours that does not exist, one of theirs twice."""
    names: Names = {}
    for ours, theirs in mapping.items():
        if ours not in NAMES:
            raise Problem("data.map_unknown", where=where, name=ours, nearest=_nearest(ours, theirs))
        if theirs in names:
            raise Problem("data.map_twice", where=where, name=theirs, first=names[theirs], second=ours)
        names[theirs] = ours
    return names


def _nearest(ours: str, theirs: str) -> str:
    """What was probably meant, as a sentence; "" where nothing looks like it."""
    for name, code in ((ours, "data.map_nearest"), (theirs, "data.map_turned")):
        near = difflib.get_close_matches(name, NAMES, n=1)
        if near:
            return language.say(code, near=near[0], name=ours)
    return ""


def renamed(record: Any, names: Names) -> Any:
    """The record with our names for its keys, the keys of its turns and their roles. A key that had the name
    of ours before is set aside, so that it is seen among the unused."""
    if isinstance(record, list):
        return _turns(record, names)
    if not isinstance(record, dict) or isinstance(record, RepeatedKey):
        return record
    result = _keys(record, names)
    for key in INNER_LISTS & result.keys():
        if isinstance(result[key], list):
            result[key] = _turns(result[key], names)
    return result


def _keys(value: dict[str, Any], names: Names) -> dict[str, Any]:
    taken = {names[key] for key in value if key in names}
    return {
        names.get(key, f"{key} (2)" if key in taken else key): inner  # in the record's own order
        for key, inner in value.items()
    }


def _turns(listed: list[Any], names: Names) -> list[Any]:
    turned = [_keys(turn, names) if type(turn) is dict else turn for turn in listed]
    for turn in turned:
        for key in ("role", "from"):
            if isinstance(turn, dict) and isinstance(turn.get(key), str):
                role = names.get(turn[key])
                turn[key] = role if role in turns.ROLES else turn[key]
    return turned
