"""One JSON value out of a window, with the likeliest mistake named where it is none."""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

from tengtune.data.fault import Fault
from tengtune.data.window import Text

LONGEST_INTEGER = 1000
DEEPEST = 100
"""Lists and objects in each other, at most: what is read must be written again, and stacks are short."""
NEAR_END = 16
"""An error this near the end of the buffer may only mean that the value goes on after it."""

NEARBY = 1 << 10
"""Characters before and after an error that are looked at to name it."""


class RepeatedKey(dict[str, Any]):
    """An object in which `key` stood twice; only the last of its values is left."""

    key = ""


class Record(NamedTuple):
    """A value of the file, its number from 0 and the line it begins in, from 1 (None: no lines in this file).
    `mended`: what was wrong with its text, which was read all the same."""

    value: Any
    number: int
    line: int | None
    mended: tuple[Fault, ...] = ()


def as_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object; one with a key twice is marked, since JSON readers keep the last value in silence."""
    value = dict(pairs)
    if len(value) != len(pairs):
        marked, seen = RepeatedKey(value), set()
        for key, _ in pairs:
            if key in seen:
                marked.key = key
            seen.add(key)
        return marked
    return value


def _integer(text: str) -> int | float:
    """An integer; Python refuses very long ones, and no text of ours is a number."""
    return int(text) if len(text) < LONGEST_INTEGER else float("inf")


DECODER = json.JSONDecoder(object_pairs_hook=as_object, parse_int=_integer)
LAX_DECODER = json.JSONDecoder(object_pairs_hook=as_object, parse_int=_integer, strict=False)
"""As DECODER, but raw tabs and line breaks may stand in texts."""


def written(value: Any, *, indent: int | None = None, ascii_only: bool = False) -> str:
    """The value as JSON text that can be stored as UTF-8: a lone surrogate, which that cannot hold, goes out
    as the escape it came in as. What JSON has no form for (a date of a parquet file) becomes its text."""
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only, default=str)
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def check_depth(value: Any, text: str, start: int, end: int) -> None:
    """RecursionError if a value, read from a place of a text, is nested deeper than DEEPEST."""
    if text.count("[", start, end) + text.count("{", start, end) <= DEEPEST:
        return
    level = [value]
    for _ in range(DEEPEST):
        level = [
            inner
            for each in level
            if isinstance(each, (dict, list))
            for inner in (each.values() if isinstance(each, dict) else each)
        ]
    if any(isinstance(each, (dict, list)) for each in level):
        raise RecursionError


def record(text: Text) -> Record:
    """The next value as the next record. Problem when it is none; `text.position` stays before it then."""
    text.record += 1
    value = scan(text)
    return Record(value, text.record, text.line_of_last)


def scan(text: Text) -> Any:
    """The JSON value that begins at the next character that is no blank."""
    if not text.peek():
        text.fail("data.json_truncated")
    while True:
        start = text.position  # fill() moves the window, so that ends are kept relative to this
        try:
            value, end = DECODER.raw_decode(text.text, start)
            check_depth(value, text.text, start, end)
        except json.JSONDecodeError as error:
            unfinished = error.msg.startswith("Unterminated string") or error.pos > len(text.text) - NEAR_END
            if not (unfinished and text.fill()):
                at = error.pos - start + text.position
                code = syntax_code(text.text, at, error.msg, text.ended)
                text.fail(code, len(text.text) if code == "data.json_truncated" else at)
        except RecursionError:
            text.fail("data.json_deep")
        else:
            # A number near the end of the window may have more digits, or an exponent, after it.
            near = end > len(text.text) - NEAR_END
            if near and isinstance(value, (int, float)) and text.fill():
                continue
            text.line_of_last = text.line_at(text.position)
            text.position += end - start
            return value


def syntax_code(text: str, position: int, message: str, ended: bool) -> str:
    """The likeliest mistake behind the json module's `message` at `position`, as a text's code."""
    rest = text[position : position + NEARBY].lstrip()
    before = text[max(position - NEARBY, 0) : position].rstrip()
    if rest.startswith(("//", "/*", "#")):
        return "data.json_comment"
    if rest.startswith("'"):
        return "data.json_python"
    if rest.startswith(("“", "”", "‘", "’", "„")):
        return "data.json_typographic"
    if (rest.startswith(("]", "}")) and before.endswith(",")) or re.match(r",\s*[\]}]", rest):
        return "data.json_trailing_comma"
    if message.startswith("Invalid control character"):
        return "data.json_control"
    if message.startswith("Invalid \\") and not (ended and text.find('"', position) < 0):
        return "data.json_escape"
    if message.startswith("Expecting property name") and re.match(r"[\w$]", rest):
        return "data.json_unquoted_key"  # a cut does not take the mark before a key away
    end = text[max(position + 1, len(text) - NEARBY) :].rstrip()
    unfinished = message.startswith("Unterminated") or not end.endswith(("]", "}"))
    if rest.startswith(("]", "}")) and before.endswith(("]", "}")):
        return "data.json_bracket"
    if ended and unfinished:
        return "data.json_truncated"
    if re.match(r"(None|True|False|nan|inf|undefined|NULL|Null)\b", rest):
        return "data.json_python"
    if message.startswith("Expecting ',' delimiter"):
        return "data.json_comma_missing" if rest.startswith(('"', "{", "[")) else _after_value(before)
    return "data.json_syntax"


def _after_value(before: str) -> str:
    """What went wrong where neither a comma nor an end follows a value: after a text, it probably ended at a
    quotation mark that was meant to belong to it."""
    return "data.json_quote" if before.endswith('"') else "data.json_syntax"
