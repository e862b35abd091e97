"""Mending the text of one broken record, where what was meant is beyond doubt; and finding where it ends."""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Iterator
from typing import Any

from tengtune.data.fault import Fault
from tengtune.data.json_value import LAX_DECODER, Record, check_depth
from tengtune.data.window import BLANK, Text
from tengtune.ui.problems import Problem

LONGEST_MENDED = 1 << 20
_STRING = r'"[^"\\]*(?:\\.[^"\\]*)*"'
_NOISE = re.compile(rf"(?s)({_STRING})|(?://|#)[^\n]*|,(?=\s*[\]}}])")
_ESCAPE = re.compile(r'\\(["\\/bfnrtu]|.)', re.S)
_FIRST_KEY = re.compile(r"""\{\s*["'“]?([\w $.-]{1,64})""")


def mended(text: str) -> Any:
    """The object or list that a text was meant to be; None when that is not plain.

    Mended are: raw tabs and line breaks in texts, comments, commas before a closing bracket or at the end,
    a backslash that begins no escape, typographic quotation marks for straight ones, Python literals.
    """
    text = text.strip(BLANK + ",")
    if len(text) > LONGEST_MENDED or not text.startswith(("{", "[")):
        return None
    clean = _NOISE.sub(lambda match: match[1] or "", text)
    for attempt in (text, clean, _ESCAPE.sub(_escape, clean), _straight(clean)):
        try:
            value = LAX_DECODER.decode(attempt)
            check_depth(value, attempt, 0, len(attempt))
        except (ValueError, RecursionError):
            continue
        return value
    return _literal(text)


def _escape(match: re.Match[str]) -> str:
    return match[0] if match[1] in '"\\/bfnrtu' else f"\\\\{match[1]}"


def _straight(text: str) -> str:
    """The text with straight quotation marks, if it has none yet."""
    return text if '"' in text else re.sub("[“”„]", '"', text)


def _literal(text: str) -> Any:
    """The value of a Python literal that JSON could hold; None when it is none."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about escapes in the literal
            value = json.loads(json.dumps(ast.literal_eval(text)))
            check_depth(value, text, 0, len(text))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None
    return value


def after_break(text: Text, problem: Problem) -> Iterator[Record | Fault]:
    """The broken record at the present position: mended, or as a fault with its text; `position` is moved to
    where the next one begins, told by the first key of this one."""
    line, column = (int(part) for part in str(problem.where).rsplit(":", 2)[1:])
    piece = _piece(text)
    values = {"column": column, "byte": problem.values["byte"], "reason": problem.values["reason"]}
    value = mended(piece)
    number = text.record
    if value is None:
        yield Fault(text.name, number, line, "broken", values, raw=piece)
    else:
        yield Record(value, number, line, (Fault(text.name, number, line, "broken", values),))


def _piece(text: Text) -> str:
    """The text from here to the next record, which is taken out of the window."""
    first = _FIRST_KEY.match(text.text, text.position)
    key = rf"""\{{\s*["'“]?{re.escape(first[1])}\b""" if first else r"\{"
    pattern = re.compile(key)
    begin = 1
    while True:
        found = pattern.search(text.text, text.position + begin)
        if found or len(text.text) - text.position > LONGEST_MENDED:
            break
        begin = max(len(text.text) - text.position - 100, 1)
        if not text.fill():
            break
    end = found.start() if found else len(text.text)
    piece = text.text[text.position : end]
    text.line_at(text.position)
    text.position = end
    return piece.rstrip(BLANK).removesuffix("]") if not found else piece
