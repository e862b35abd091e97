"""What stands between records and is none: comments, brackets too many, stray words. It costs itself only."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tengtune.data.fault import Fault
from tengtune.data.json_value import syntax_code
from tengtune.data.window import Text
from tengtune.ui.problems import Problem

AHEAD = 1 << 12
"""Characters that are looked at, at least; a comment in a line, or a stray word, is no longer."""
_COMMENT = rf"(?://|\#)(?:[^\n]{{0,{AHEAD}}}(?=\n)|[^\n{{]*)|/\*.*?(?:\*/|\Z)"
_WORD = rf"""[^\s"{{}}\[\],:;/\#-][^"{{}}\[\],:\n]{{0,{AHEAD}}}(?=\s*[,{{\[\]\n]|\s*\Z)"""
_VALUE = r"(?:null|true|false|NaN|Infinity|\d[\d.eE+-]*)\s*(?:[,\]\n]|\Z)"
_NOISE = {
    marks: re.compile(
        rf"(?s)(?P<noise>(?:{_COMMENT}|[{re.escape(marks)}]|\s+)+)|(?!{_VALUE})(?P<word>{_WORD})"
    )
    for marks in (";}", ";},", ";},]")
}

BEHIND_RECORD, BEFORE_RECORD, BETWEEN_VALUES = _NOISE
"""The marks that nothing can begin with: behind a record of a list, before one, outside of lists."""


def strays(text: Text, marks: str) -> Iterator[Fault]:
    """Pass over what is no value at the present position, in a text that is read leniently: a fault of the
    file for each piece, with the piece as `raw` where it is more than comments and marks."""
    while text.lenient and text.peek():
        if len(text.text) - text.position < AHEAD:
            text.fill()
        found = _NOISE[marks].match(text.text, text.position)
        while found and found.end() == len(text.text) and text.fill():
            found = _NOISE[marks].match(text.text, text.position)
        if not found:
            return
        yield _fault(text, found)
        text.position = found.end()


def _fault(text: Text, found: re.Match[str]) -> Fault:
    rest = found[0].lstrip(",") or found[0]
    code = syntax_code(rest, 0, "", ended=False)
    if code == "data.json_syntax" and rest.startswith(("}", "]")):
        code = "data.json_bracket"
    try:
        text.fail(code)
    except Problem as problem:
        line, column, byte = text.place(text.position)
        values = {name: problem.values[name] for name in ("reason", "syntax")}
        values |= {"column": column, "byte": byte}
    raw = found[0].strip() if found["word"] or "{" in found[0] else None
    return Fault(text.name, None, line, "broken", values, raw=raw)
