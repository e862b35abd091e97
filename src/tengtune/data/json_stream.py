"""Records out of a JSON file, one at a time, whatever its size: an array, JSON Lines, or objects in a row.

Memory is bounded by the longest record. Every record has its number and line, every syntax error its
byte, line, column and record.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NoReturn

from tengtune.data.detect import UTF16, Layout, encoding_guess, layout
from tengtune.data.fault import Fault
from tengtune.ui import language
from tengtune.ui.problems import Problem, os_errors

CHUNK = 1 << 20
LONGEST_INTEGER = 1000
_BOM = "\ufeff"
_BLANKS = re.compile(r"[ \t\n\r]*")
_NEAR_END = 16
"""An error this near the end of the buffer may only mean that the value goes on after it."""


class RepeatedKey(dict[str, Any]):
    """An object in which `key` stood twice; only the last of its values is left."""

    key = ""


@dataclass(frozen=True)
class Record:
    """A value of the file, its number from 0 and the line it begins in, from 1."""

    value: Any
    number: int
    line: int


def read_records(
    path: Path, name: str, advance: Callable[[int], None] = lambda count: None
) -> Iterator[Record | Fault]:
    """The records of a file in order; faults carry `name`. `advance` is told how many bytes were read.

    Raises Problem where nothing can be read from there on: not UTF-8, empty, no JSON, broken array.
    A broken line of JSON Lines is a Fault and costs that line only.
    """
    with os_errors(path), open(path, "rb") as stream:
        text = _Text(path, stream, advance)
        if text.skip_bom():
            yield Fault(name, None, None, "bom", dropped=False)
        if not text.peek():
            raise Problem("data.empty_file", where=path)
        kind = layout(text.text[text.position :])
        if kind is None:
            code = _syntax_code(text.text, text.position, "", ended=False)
            text.fail("data.json_start" if code == "data.json_syntax" else code)
        yield from _remarked(_VALUES[kind](text, name), kind, path, name)


def _remarked(
    records: Iterator[Record | Fault], kind: Layout, path: Path, name: str
) -> Iterator[Record | Fault]:
    """The records, and a remark where the file is not laid out as its name says."""
    count = 0
    for record in records:
        count += 1
        yield record
    if kind != "array" and path.suffix == ".json":
        code = "single_object" if count == 1 else "lines_in_json"
        yield Fault(name, None, None, code, dropped=False)


def _array(text: _Text, name: str) -> Iterator[Record]:
    """The elements of the one array."""
    text.position += 1
    if text.peek() == "]":
        text.position += 1
    else:
        while True:
            yield text.value()
            mark = text.peek()
            if mark not in (",", "]"):
                text.fail("data.json_truncated" if not mark else "data.json_comma_missing")
            text.position += 1
            if mark == "]":
                break
            if text.peek() == "]":
                text.fail("data.json_trailing_comma")
    if text.peek():
        text.fail("data.json_extra")


def _objects(text: _Text, name: str) -> Iterator[Record]:
    """Values that follow each other with nothing but blanks between."""
    while text.peek():
        yield text.value()


def _lines(text: _Text, name: str) -> Iterator[Record | Fault]:
    """A value in each line that is not blank."""
    number, line = -1, text.line_at(text.position) - 1
    for content in text.lines():
        line += 1
        if not content.strip(" \t\r\n"):
            continue
        number += 1
        try:
            yield Record(_DECODER.decode(content), number, line)
        except json.JSONDecodeError as error:
            reason = language.say(_syntax_code(content, error.pos, error.msg, ended=True))
            yield Fault(name, number, line, "bad_line", {"column": error.pos + 1, "reason": reason})
        except RecursionError:
            yield Fault(name, number, line, "too_deep")


_VALUES: dict[Layout, Callable[[_Text, str], Iterator[Record | Fault]]] = {
    "array": _array,
    "lines": _lines,
    "values": _objects,
}


class _Text:
    """A window over the file's text: `text[position:]` is still to be read."""

    def __init__(self, path: Path, stream: IO[bytes], advance: Callable[[int], None]) -> None:
        self.path, self.stream, self.advance = path, stream, advance
        self.text, self.position, self.ended = "", 0, False
        self.record = -1
        self._bytes = 0  # bytes, lines and columns before text[0]
        self._lines = 1
        self._column = 0
        self._rest = b""  # a character's bytes that the last chunk broke off
        self._seen = (0, 1)  # a position and its line, to count lines once only

    def fill(self) -> bool:
        """Drop what has been read and read on, at least doubling the window; False at the file's end."""
        if self.ended:
            return False
        self._drop()
        raw = self.stream.read(max(CHUNK, len(self.text)))
        self.ended = not raw
        if raw:
            self.advance(len(raw))
        self.text += self._decode(raw)
        return not self.ended

    def skip_bom(self) -> bool:
        """Read the first window; whether it began with a byte order mark, which is dropped."""
        self.fill()
        if not self.text.startswith(_BOM):
            return False
        self.text, self._bytes = self.text[1:], len(_BOM.encode("utf-8"))
        return True

    def _drop(self) -> None:
        gone = self.text[: self.position]
        self._seen = (0, self.line_at(self.position))
        self._lines = self._seen[1]
        last = gone.rfind("\n")
        self._column = len(gone) - last - 1 if last >= 0 else self._column + len(gone)
        self._bytes += len(gone.encode("utf-8"))
        self.text, self.position = self.text[self.position :], 0

    def _decode(self, raw: bytes) -> str:
        data = self._rest + raw
        try:
            text, self._rest = data.decode("utf-8"), b""
        except UnicodeDecodeError as error:
            if error.reason != "unexpected end of data" or self.ended:
                at = self._bytes + len(self.text.encode("utf-8")) + error.start
                line = self.line_at(len(self.text)) + data[: error.start].count(b"\n")
                start = data if data.startswith(UTF16) else data[error.start : error.start + CHUNK]
                guess = encoding_guess(start)
                where = f"{self.path}:{line}"
                raise Problem(
                    "data.not_utf8", where=where, byte=at, guess=guess, file=self.path.name
                ) from error
            text, self._rest = data[: error.start].decode("utf-8"), data[error.start :]
        return text

    def peek(self) -> str:
        """The next character that is no blank, "" at the end; `position` is moved to it."""
        while True:
            match = _BLANKS.match(self.text, self.position)
            self.position = match.end() if match else self.position
            if self.position < len(self.text):
                return self.text[self.position]
            if not self.fill():
                return ""

    def value(self) -> Record:
        """The JSON value that begins at the next character."""
        self.record += 1
        if not self.peek():
            self.fail("data.json_truncated")
        while True:
            start = self.position  # fill() moves the window, so that ends are kept relative to this
            try:
                value, end = _DECODER.raw_decode(self.text, start)
            except json.JSONDecodeError as error:
                unfinished = (
                    error.msg.startswith("Unterminated string") or error.pos > len(self.text) - _NEAR_END
                )
                if not (unfinished and self.fill()):
                    self._fail_at(error.pos - start + self.position, error.msg)
            except RecursionError:
                self.fail("data.json_deep")
            else:
                # A number near the end of the window may have more digits, or an exponent, after it.
                near = end > len(self.text) - _NEAR_END
                if near and isinstance(value, (int, float)) and self.fill():
                    continue
                record = Record(value, self.record, self.line_at(self.position))
                self.position += end - start
                return record

    def _fail_at(self, position: int, message: str) -> NoReturn:
        code = _syntax_code(self.text, position, message, self.ended)
        self.position = len(self.text) if code == "data.json_truncated" else position
        self.fail(code)

    def lines(self) -> Iterator[str]:
        """The lines from here on; only a line feed ends a line."""
        while True:
            end = self.text.find("\n", self.position)
            if end < 0 and self.fill():
                continue
            if end < 0:
                if self.text[self.position :]:
                    yield self.text[self.position :]
                return
            yield self.text[self.position : end]
            self.position = end + 1

    def line_at(self, position: int) -> int:
        """The line of a position at or after the last one asked for."""
        seen, line = self._seen
        if position > seen:
            self._seen = (position, line + self.text.count("\n", seen, position))
        return self._seen[1]

    def fail(self, code: str) -> NoReturn:
        """End with the Problem `code` at the present position."""
        before = self.text[: self.position]
        last = before.rfind("\n")
        column = len(before) - last if last >= 0 else self._column + len(before) + 1
        line = self._lines + before.count("\n")
        raise Problem(
            "data.bad_json",
            where=f"{self.path}:{line}:{column}",
            record=max(self.record, 0),
            byte=self._bytes + len(before.encode("utf-8")),
            reason=language.say(code),
        )


def _syntax_code(text: str, position: int, message: str, ended: bool) -> str:
    """The likeliest mistake behind the json module's `message` at `position`, as a text's code."""
    rest, before = text[position:].lstrip(), text[:position].rstrip()
    if rest.startswith(("//", "/*", "#")):
        return "data.json_comment"
    if rest.startswith("'"):
        return "data.json_python"
    if (rest.startswith(("]", "}")) and before.endswith(",")) or re.match(r",\s*[\]}]", rest):
        return "data.json_trailing_comma"
    unfinished = message.startswith("Unterminated") or not text[position + 1 :].rstrip().endswith(("]", "}"))
    if ended and unfinished:
        return "data.json_truncated"
    if re.match(r"(None|True|False)\b", rest):
        return "data.json_python"
    if message.startswith("Expecting ',' delimiter") and rest.startswith(('"', "{", "[")):
        return "data.json_comma_missing"
    return "data.json_syntax"


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
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


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_int=_integer)
