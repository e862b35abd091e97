"""Mending the text of one broken record, where what was meant is beyond doubt; and finding where it ends."""

from __future__ import annotations

import ast
import io
import json
import re
import tokenize
import warnings
from collections.abc import Iterator, Set
from typing import Any

from tengtune.data.fault import Fault
from tengtune.data.json_value import LAX_DECODER, Record, check_depth
from tengtune.data.window import BLANK, Text
from tengtune.ui.problems import Problem

LONGEST_MENDED = 1 << 20
_STRING = (
    r'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\Z)'  # an unended one is matched, too: else each quote is tried in vain
)
# Behind a text's quotation mark, or with one that is never closed, it is rather a part of the text.
_COMMENT = r"""(?<![^\s,\[\]{}])(?://|#)[^\n"]*(?:"[^\n"]*"[^\n"]*)*(?=\n|\Z)"""
_NOISE = re.compile(rf"(?s)({_STRING})|{_COMMENT}|,(?=\s*[\]}}])")
_ESCAPE = re.compile(r'\\(["\\/bfnrtu]|.)', re.S)
FAR = 1 << 17
"""Characters within which the next record is sought by its first key; else any object is taken for it."""
_LINE_STRING = r'"[^"\\\n]*(?:\\.[^"\\\n]*)*'
_TOKEN = re.compile(
    rf'{_LINE_STRING}"(?=\s*(?:[:,\]}}"{{\[]|\Z))|(?P<cut>{_LINE_STRING}\\?\Z)|,\s*\{{|[{{}}\[\]"]'
)
"""A text followed by what can follow one, the beginning of a text, or what tells brackets and records."""
_NEXT = re.compile(r"""\s*(?:\]|,?\s*[{\[]\s*["'“\w{}\[\]])""")
_USUAL = ("instruction", "messages", "conversations")
"""First keys of records which the objects in a record do not have."""
_ANY = re.compile(r"""(?<=[,\n])[ \t]*(?=\{\s*["'“])""")
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
    attempts = [text, clean, _straight(clean)]
    if not any(map(_is_doubtful, re.findall(_STRING, clean, re.S))):
        attempts.append(_ESCAPE.sub(_escape, clean))
    for attempt in attempts:
        try:
            value = LAX_DECODER.decode(attempt)
            check_depth(value, attempt, 0, len(attempt))
        except (ValueError, RecursionError):
            continue
        return value
    return _literal(text)


def _is_doubtful(string: str) -> bool:
    """Whether a string has a backslash that begins no escape beside one that seems to: where the one stands
    for itself, in a path or a formula, the other most likely does, too."""
    letters = re.findall(r"\\(.)", string, re.S)
    return any(c not in '"\\/bfnrtu' for c in letters) and any(c in "bfnrtu" for c in letters)


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
            if not _is_plain(text):
                return None
            value = json.loads(json.dumps(ast.literal_eval(text)))
            check_depth(value, text, 0, len(text))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError, tokenize.TokenError):
        return None
    return value


def _is_plain(text: str) -> bool:
    """Whether a Python literal is one as Python prints them: no escapes but repr's, no texts side by side,
    which Python would join, no key twice, of which it would keep one."""
    if any(c not in "\\'\"nrtxuU" for c in re.findall(r"\\(.)", text, re.S)):
        return False
    tree = ast.parse(text, mode="eval")
    texts = sum(isinstance(node, ast.Constant) and isinstance(node.value, str) for node in ast.walk(tree))
    kinds = [token.type for token in tokenize.generate_tokens(io.StringIO(text).readline)]
    if tokenize.COMMENT in kinds:  # rather the rest of a text with a quotation mark in it
        return False
    for node in ast.walk(tree):
        keys = [ast.dump(key) for key in node.keys if key] if isinstance(node, ast.Dict) else []
        if len(set(keys)) < len(keys):
            return False
    return kinds.count(tokenize.STRING) == texts


def after_break(text: Text, problem: Problem, known: Set[str]) -> Iterator[Record | Fault]:
    """The broken record at the present position: mended, or as a fault with its text; `position` is moved to
    where the next one begins, told by the brackets of this one, by a line that begins like its line, or by
    its first key or one of `known`, those of records before it."""
    line, column = (int(part) for part in str(problem.where).rsplit(":", 2)[1:])
    piece = _piece(text, known)
    text.forget()
    values = {"column": column, **{name: problem.values[name] for name in ("byte", "reason", "syntax")}}
    value = mended(piece)
    number = text.record
    if value is None:
        yield Fault(text.name, number, line, "broken", values, raw=piece)
    else:
        yield Record(value, number, line, (Fault(text.name, number, line, "broken", values),))


def _piece(text: Text, known: Set[str]) -> str:
    """The text from here to the next record, which is taken out of the window."""
    size = _closed(text)
    if size >= 0:
        piece = text.text[text.position : text.position + size]
        text.line_at(text.position)
        text.position += size
        return piece
    column = text.place(text.position)[1]
    before = text.text[max(text.position - column + 1, 0) : text.position]
    found = -1
    if before.strip(" \t") in ("", "["):  # behind the bracket of the list, its column is not that of others
        least = 0 if before.strip() else column - 1
        found = _search(text, re.compile(rf"(?<=\n)[ \t]{{{least},{column - 1}}}(?=\{{)"))
    if found < 0:
        found = _search(text, _beginning(text, known), FAR)
    if found < 0:
        found = _search(text, _ANY)
    piece = text.text[text.position : found if found >= 0 else len(text.text)].rstrip(BLANK)
    body = piece.removesuffix("," if found >= 0 else "]")
    text.line_at(text.position)
    text.position += len(body) if found >= 0 else len(text.text) - text.position  # a comma is read as one
    return body


def _beginning(text: Text, known: Set[str]) -> re.Pattern[str]:
    """What a record begins with that has one of these first keys, or that of the broken one."""
    first = _FIRST_KEY.match(text.text, text.position)
    keys = {*known, *_USUAL, *((first[1],) if first else ())} - {""}
    return re.compile(rf"""\{{\s*["'“]?(?:{"|".join(sorted(map(re.escape, keys)))})["'”]?\s*:""")


def _closed(text: Text) -> int:
    """The length of the broken record at the present position where its brackets tell it; -1 otherwise."""
    while True:
        size = _closing(text.text, text.position)
        if size is None and len(text.text) - text.position <= LONGEST_MENDED and text.fill():
            continue
        return -1 if size is None else size


def _closing(text: str, begin: int) -> int | None:
    """The length of what begins at a place up to where its brackets are closed and a next record or the end
    of the list follows, or up to an object without a key. -1: it cannot be told, since quotation marks or
    brackets do not match; None: not in this text."""
    open_brackets: list[str] = []
    for token in _TOKEN.finditer(text, begin):
        if token["cut"]:
            return None
        if token[0] == '"':  # a text that does not end in its line, or not where one can end
            return -1
        mark = token[0][-1]
        if mark == '"':
            continue
        if token[0].startswith(",") and open_brackets[-1:] == ["{"]:
            return token.start() - begin if len(open_brackets) == 1 else -1
        if mark in "{[":
            open_brackets.append(mark)
            continue
        if not open_brackets or open_brackets.pop() + mark not in ("{}", "[]"):
            return -1
        if not open_brackets:
            if not text[token.end() : token.end() + 100].strip(BLANK):
                return None
            return token.end() - begin if _NEXT.match(text, token.end()) else -1
    return None


def _search(text: Text, pattern: re.Pattern[str], most: int = LONGEST_MENDED) -> int:
    """Where the pattern is found next, behind the present position; -1 when not within `most` characters."""
    begin = 1
    while True:
        found = pattern.search(text.text, text.position + begin, text.position + most)
        if found:
            return found.start()
        if len(text.text) - text.position > most:
            return -1
        begin = max(len(text.text) - text.position - 100, 1)
        if not text.fill():
            return -1
