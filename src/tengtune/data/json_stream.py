"""Records out of JSON text, one at a time: lists, JSON Lines, objects in a row, an object around a list.

Every record has its number and line, every syntax error its byte, line, column and record. A broken line
of JSON Lines costs that line only; elsewhere what is broken ends the file with a Problem, unless the text
is read leniently: then it is a Fault, and the reading goes on at the next record.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Set
from typing import Any

from tengtune.data import json_mend
from tengtune.data.detect import Layout
from tengtune.data.fault import Fault
from tengtune.data.json_stray import BEFORE_RECORD, BEHIND_RECORD, BETWEEN_VALUES, strays
from tengtune.data.json_value import DECODER, NEAR_END, Record, check_depth, record, scan, syntax_code
from tengtune.data.window import BLANK, BLANKS, BOM, Text
from tengtune.ui import language
from tengtune.ui.problems import Problem

WRAPPERS = frozenset(
    (
        *("data", "records", "rows", "items", "examples", "example", "samples", "dataset", "list"),
        *("result", "results", "train", "training", "test", "valid", "validation", "dev", "eval"),
    )
)
"""Keys, in lower case, under which a file's records stand, whatever they look like."""

INNER_LISTS = frozenset(("messages", "conversations", "conversation", "instances", "history", "tools"))
"""Keys of lists that belong to a record."""

_WRAPPED = re.compile(
    r"""\{\s*(?:"[^"\\]*"\s*:\s*(?:"[^"\\]*(?:\\.[^"\\]*)*"|[-+.\w]+|\{[^{}]*\}|\[[^\[\]{}]*\])\s*,\s*)*"""
    r""""(?P<key>[^"\\]*)"\s*:\s*(?P<list>\[)\s*[\[{]"""
)
"""The beginning of an object up to the first list of objects in it."""

_TURN = re.compile(r'\[\s*\{\s*"(?:role|from)"\s*:')

AHEAD = 1 << 12
"""Characters that tell what a value is."""
LONGEST_TRIED = 1 << 22
"""A record whose first list might be a list of records is looked at up to this length, in characters."""

_HOLDS_RECORDS = re.compile(r"\[\s*[\[{]")

IsRecord = Callable[[Any], bool]
Items = Iterator[Record | Fault]


def read_json(text: Text, kind: Layout, is_record: IsRecord) -> Items:
    """The records of a text laid out as `kind`. `is_record` tells a list of records from a list in one."""
    by_lines = kind == "lines" and _wrapped_list(text, is_record) is None
    text.by_lines(by_lines)
    if by_lines:
        yield from _lines(text)
    else:
        yield from _values(text, is_record)


def _values(text: Text, is_record: IsRecord) -> Items:
    """Lists and objects that follow each other."""
    count = 0
    while True:
        yield from strays(text, BETWEEN_VALUES)
        mark = text.peek()
        if not mark:
            return
        if len(text.text) - text.position < AHEAD:
            text.fill()  # what a value begins with must not be cut by the window's end
        count += 1
        if count > 1:
            text.remark("values_joined")
        if mark == "[":
            yield from _turns(text) if _TURN.match(text.text, text.position) else _list(text)
        elif mark == "{":
            yield from _object(text, is_record)
        elif text.lenient:
            yield from _element(text)
        else:
            yield from _broken(text, "data.json_extra")
            return
        if text.peek() == ",":
            text.remark("comma_lines")
            text.position += 1


def _turns(text: Text) -> Items:
    """A list that is the turns of one conversation: a record itself. Otherwise a list of records."""
    whole = tried(text)
    turns = whole if isinstance(whole, list) else [None]
    one = all(isinstance(turn, dict) and turn.keys() & {"role", "from"} for turn in turns)
    yield from _element(text) if one else _list(text)


def _broken(text: Text, code: str) -> Items:
    """What cannot be read at the present position: the end of the file, or a fault."""
    try:
        text.fail(code)
    except Problem as problem:
        if not text.lenient:
            raise
        line, column, byte = text.place(text.position)
        values = {name: problem.values[name] for name in ("reason", "syntax")}
        yield Fault(text.name, None, line, "broken", {"column": column, "byte": byte, **values})


def _element(text: Text, known: Set[str] = frozenset()) -> Items:
    """The next value as a record. `known`: first keys of records before it."""
    try:
        found = record(text)
        yield _undecoded(text, found) or found if text.damaged else found
    except Problem as problem:
        if not text.lenient:
            raise
        yield from json_mend.after_break(text, problem, known)


def _undecoded(text: Text, found: Record) -> Fault | None:
    """The fault of a record with bytes that are not of the file's encoding."""
    content = json.dumps(found.value, ensure_ascii=False)
    damage = text.damage(content)
    if damage is None:
        return None
    return Fault(text.name, found.number, found.line, "line_encoding", damage, raw=content)


def _list(text: Text) -> Items:
    """The elements of a list."""
    text.position += 1
    known: set[str] = set()
    before = "["  # what stands before the present position: the list's bracket, a comma, or "" for an element
    while True:
        yield from strays(text, BEFORE_RECORD if before else BEHIND_RECORD)
        mark = text.peek()
        if mark == "]":
            if before == ",":
                yield from _broken(text, "data.json_trailing_comma")
            text.position += 1
            return
        if not before and mark == ",":
            text.position += 1
            before = ","
            continue
        if not before:
            yield from _broken(text, "data.json_comma_missing" if mark else "data.json_truncated")
            if not mark:
                return
        for item in _element(text, known):
            if isinstance(item, Record) and item.value and isinstance(item.value, dict) and len(known) < 16:
                known.add(next(iter(item.value)))
            yield item
        before = ""


def _object(text: Text, is_record: IsRecord) -> Items:
    """An object: a record, or the records of the lists in it where it is no record itself."""
    begin = _wrapped_list(text, is_record)
    if begin is None:
        yield from _element(text)
        return
    key, text.position = begin
    while True:
        text.remark("wrapped", key=key)
        yield from _list(text)
        key = ""
        while text.peek() == "," and not key:
            text.position += 1
            key = _other_member(text)
        if not key:
            break
    if text.peek() == "}":
        text.position += 1
    else:
        yield from _broken(text, "data.json_syntax" if text.peek() else "data.json_truncated")


def _wrapped_list(text: Text, is_record: IsRecord) -> tuple[str, int] | None:
    """The key and the place of the list of records in an object that is no record; None where it is one."""
    found = _WRAPPED.match(text.text, text.position)
    if not found or found["key"] in INNER_LISTS:
        return None
    begin, first_element = found.start("list") - text.position, found.end() - 1 - text.position
    whole, first = tried(text), tried(text, first_element)
    inner = first[:1] if isinstance(first, list) else [first]
    likely = found["key"].lower() in WRAPPERS and all(isinstance(each, dict) for each in inner)
    if is_record(whole) or not ((likely and inner) or is_record(first)):
        return None
    return found["key"], text.position + begin


def tried(text: Text, ahead: int = 0) -> Any:
    """The JSON value so many characters from here, for which the window is filled up to LONGEST_TRIED; None
    when it is longer, or none at all."""
    while True:
        place = text.position + ahead
        try:
            return DECODER.raw_decode(text.text, place)[0]
        except json.JSONDecodeError as error:
            cut = error.msg.startswith("Unterminated string") or error.pos > len(text.text) - NEAR_END
            if not cut or len(text.text) - place > LONGEST_TRIED or not text.fill():
                return None
        except RecursionError:
            return None


def _other_member(text: Text) -> str:
    """Read a further member of an object around records: its key when it is a list of records too."""
    key = scan(text)
    if not isinstance(key, str) or text.peek() != ":":
        text.fail("data.json_syntax")
    text.position += 1
    if text.peek() == "[" and key not in INNER_LISTS and _HOLDS_RECORDS.match(text.text, text.position):
        return key
    scan(text)
    return ""


def _lines(text: Text) -> Items:
    """A value in each line that is not blank."""
    scan_once: Callable[[str, int], tuple[Any, int]] = DECODER.scan_once  # type: ignore[attr-defined]
    number, line = -1, text.line_at(text.position) - 1
    for content in text.lines():
        line += 1
        try:
            value, end = scan_once(content, 0)
            check_depth(value, content, 0, end)
            plain = end == len(content) and not text.damaged
        except (StopIteration, json.JSONDecodeError, RecursionError):
            plain = False
        if plain:
            number += 1
            yield Record(value, number, line)
            continue
        for item in _odd_line(text, content, number + 1, line):
            number += 1
            yield item


def _odd_line(text: Text, content: str, number: int, line: int) -> Items:
    """The records of a line that is not one JSON value from its first character to its last."""
    stripped = content.strip(BLANK)
    if not stripped:
        return
    if content.lstrip(BLANK[:-1]).startswith(BOM):
        text.remark("bom_inside")
    raw = content if text.lenient else None
    damage = text.damage(content)
    if damage is not None:
        yield Fault(text.name, number, line, "line_encoding", damage, raw=raw)
        return
    try:
        found = _values_of(text, stripped)
    except json.JSONDecodeError as error:
        column = error.pos + 1 + len(content) - len(content.lstrip(BLANK))
        syntax = syntax_code(stripped, error.pos, error.msg, ended=True)
        values = {"column": column, "reason": language.say(syntax), "syntax": syntax}
        fault = Fault(text.name, number, line, "bad_line", values, raw=raw)
    except RecursionError:
        fault = Fault(text.name, number, line, "too_deep", raw=raw)
    else:
        yield from (Record(value, number + i, line) for i, value in enumerate(found))
        return
    value = json_mend.mended(stripped) if text.lenient else None
    yield fault if value is None else Record(value, number, line, (fault,))


def _values_of(text: Text, line: str) -> list[Any]:
    """The values of a line: one, but for a comma after it or further ones behind it."""
    values: list[Any] = []
    position = 0
    while position < len(line):
        value, end = DECODER.raw_decode(line, position)
        check_depth(value, line, position, end)
        values.append(value)
        position = _after_blanks(line, end)
        if line.startswith(",", position):
            text.remark("comma_lines")
            position = _after_blanks(line, position + 1)
    if len(values) > 1:
        text.remark("values_joined")
    return values


def _after_blanks(line: str, position: int) -> int:
    """The place of the next character that is no blank."""
    found = BLANKS.match(line, position)
    return found.end() if found else position
