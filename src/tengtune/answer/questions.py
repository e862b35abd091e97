"""A file of questions, JSON Lines: which conversation each record asks to be answered."""

from __future__ import annotations

import codecs
import json
import math
from typing import Any

from tengtune.data.encodings import encoding_guess
from tengtune.data.formats.alpaca import question
from tengtune.data.json_value import syntax_code
from tengtune.text.conversation import Message
from tengtune.ui import language

ROLES = ("system", "user", "assistant")


class NoQuestion(ValueError):
    """A record that cannot be asked; the text says why."""


def text_of(line: bytes) -> str:
    """A line's text; NoQuestion where it is not UTF-8."""
    line = line.removeprefix(codecs.BOM_UTF8)
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        column = len(line[: error.start].decode("utf-8")) + 1
        values = {"encoding": "UTF-8", "column": column, "guess": encoding_guess(line)}
        raise NoQuestion(language.say("data.line_encoding", **values)) from error


def parse(line: str) -> dict[str, Any]:
    """The record in a line; NoQuestion when it is no JSON object, or holds a number that JSON has none for
    and the answers could not hold: NaN, or one beyond a float."""
    try:
        value = json.loads(line, parse_constant=_no_number, parse_float=_finite)
    except json.JSONDecodeError as error:
        code = syntax_code(line, error.pos, error.msg, ended=True) if error.pos else "data.json_syntax"
        reason = language.say(code)
        raise NoQuestion(language.say("predict.not_json", column=error.colno, reason=reason)) from error
    except NoQuestion:
        raise
    except (ValueError, RecursionError) as error:  # a number of thousands of digits; lists in lists in lists
        raise NoQuestion(language.say("predict.not_readable")) from error
    if not isinstance(value, dict):
        raise NoQuestion(language.say("predict.not_object"))
    return value


def _no_number(name: str) -> float:
    raise NoQuestion(language.say("predict.no_number", number=name))


def _finite(digits: str) -> float:
    number = float(digits)
    return number if math.isfinite(number) else _no_number(digits[:40])


def conversation(record: dict[str, Any]) -> list[Message]:
    """What is asked: `messages` (an answer at its end is left out), `prompt`, or `instruction` with `input`;
    `system` before it. NoQuestion otherwise, and for half a character, which no model can be asked."""
    messages = _asked(record)
    if not all(is_text(message.content) for message in messages):
        raise NoQuestion(language.say("predict.half_character"))
    return messages


def is_text(text: str) -> bool:
    """Whether UTF-8 can hold it: no half characters, as JSON escapes or bytes on a command line can be."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _asked(record: dict[str, Any]) -> list[Message]:
    if record.get("messages") is not None:
        return _turns(record["messages"])
    system = _text(record, "system")
    if "prompt" in record:
        text = _text(record, "prompt")
    else:
        text = question(_text(record, "instruction"), _text(record, "input"))
    if not text.strip():
        raise NoQuestion(language.say("predict.no_question"))
    return [*([Message("system", system)] if system else []), Message("user", text)]


def _turns(value: Any) -> list[Message]:
    turns = value if isinstance(value, list) else []
    messages = [
        Message(turn["role"], turn["content"])
        for turn in turns
        if isinstance(turn, dict) and turn.get("role") in ROLES and isinstance(turn.get("content"), str)
    ]
    if messages and messages[-1].role == "assistant":
        messages.pop()
        turns = turns[:-1]
    if len(messages) != len(turns) or not messages or messages[-1].role != "user":
        raise NoQuestion(language.say("predict.bad_messages"))
    return messages


def _text(record: dict[str, Any], key: str) -> str:
    value = record.get(key)
    if value is not None and not isinstance(value, str):
        raise NoQuestion(language.say("predict.not_text", key=key))
    return value or ""
