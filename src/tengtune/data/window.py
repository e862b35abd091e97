"""A data file as text, through a window: unpacked, decoded, and with the place of everything in it.

Memory is bounded by the window: a chunk, or the longest record.
"""

from __future__ import annotations

import codecs
import re
import shlex
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from lzma import LZMAError
from pathlib import Path
from typing import IO, Any, NoReturn

from tengtune.data.detect import PACKED, foreign, marked_encoding, unmarked_utf16
from tengtune.data.encodings import DAMAGED, MARK_UNITS, LineDecoder, census, encoding_guess
from tengtune.data.fault import Fault
from tengtune.ui import language
from tengtune.ui.problems import Problem

CHUNK = 1 << 20
LONGEST = 1 << 26
"""Characters a single record may have; more is a quotation mark or a bracket that is never closed."""
HEAD = 4096
BOM = "\ufeff"
BLANK = " \t\r\n" + BOM
BLANKS = re.compile(f"[{BLANK}]*")


class RawFile:
    """The bytes of a file, unpacked if it is compressed. `advance` is told how many bytes of the file itself
    were read. head: the first bytes, as `read` will give them. damage: why a compressed file could not be
    unpacked any further, once `read` has given all before that; "" otherwise."""

    def __init__(self, path: Path, stream: IO[bytes], advance: Callable[[int], None]) -> None:
        self.path, self._file, self._advance = path, stream, advance
        self._told = 0
        self._ahead = b""
        first = stream.read(8)
        stream.seek(0)
        opener = next((opener for magic, opener in PACKED.items() if first.startswith(magic)), None)
        self.packed = opener is not None
        self._stream: Any = opener(stream) if opener else stream
        self.damage = ""
        self.head = self._ahead = self._read(HEAD)

    def read(self, count: int) -> bytes:
        """The next bytes, at most `count` of them; none at the end."""
        data, self._ahead = self._ahead[:count], self._ahead[count:]
        return data or self._read(count)

    def _read(self, count: int) -> bytes:
        data: bytes = self._unpacked(count) if self.packed else self._stream.read(count)
        place = self._file.tell()
        if place > self._told:
            self._advance(place - self._told)
            self._told = place
        return data

    def _unpacked(self, count: int) -> bytes:
        parts: list[bytes] = []
        try:
            while count and not self.damage and (part := self._stream.read1(count)):
                parts.append(part)
                count -= len(part)
        except (EOFError, zlib.error, LZMAError) as error:
            self.damage = str(error)
        except OSError as error:
            if error.errno is not None:
                raise
            self.damage = str(error)
        return b"".join(parts)


def open_text(raw: RawFile, name: str, lenient: bool) -> Text:
    """The file as text, its first window read. Problem: empty, or no text at all."""
    found = foreign(raw.head)
    if found:
        kind, what = found
        raise Problem(f"data.{kind}", where=raw.path, kind=what, file=raw.path.name)
    text = Text(raw, name, lenient)
    text.fill()
    if not text.peek():
        raise Problem("data.empty_file", where=raw.path)
    return text


class Text:
    """A window over the file's text: `text[position:]` is still to be read. `record`: the number of the
    record that is being read. `remarks`: faults of the file as a whole, to be fetched with `said`."""

    def __init__(self, raw: RawFile, name: str, lenient: bool) -> None:
        self.raw, self.path, self.name, self.lenient = raw, raw.path, name, lenient
        self.text, self.position, self.ended = "", 0, False
        self.record = -1
        self.newline = "\n"
        self._remarks: list[Fault] = []
        marked, unmarked = marked_encoding(raw.head), unmarked_utf16(raw.head)
        self.encoding, mark = marked or (unmarked or "UTF-8", b"")
        if marked:
            code = "bom" if self.encoding == "UTF-8" else "other_encoding"
            self.remark(code, encoding=self.encoding, file=self.path.name)
        elif unmarked:
            self._wrong_encoding(0, 1, unmarked)
        self._decoder: Any = codecs.getincrementaldecoder(self.encoding)()
        if self.encoding in ("UTF-8", "GB18030"):  # the other decoders eat their mark themselves
            self._read = len(raw.read(len(mark)))
        self._read = 0  # bytes read
        self._lines = 1  # lines and columns before text[0]
        self._column = 0
        self._mark: tuple[int, int, int] | None = None  # a position with its line and byte
        self._seen = (0, 1)  # a position and its line, to count lines once only
        self.line_of_last = 1  # where the value that was read last begins
        self.damaged = False  # bytes that cannot be decoded are in the text, as lone surrogates
        self._first_damage = (0, 1, "?")
        self._by_lines: bool | None = None
        self._sound = self._odd = 0  # texts beyond ASCII that were UTF-8 so far, and such that were not

    def remark(self, code: str, dropped: bool = False, **values: object) -> None:
        """Note a fault of the file as a whole, once."""
        fault = Fault(self.name, None, None, code, values, dropped)
        if fault not in self._remarks:
            self._remarks.append(fault)

    def said(self) -> list[Fault]:
        """The file's faults so far."""
        if not (isinstance(self._decoder, LineDecoder) and self._decoder.mixed):
            return self._remarks
        changed = {"wrong_encoding": "two_encodings"}  # to convert the whole would spoil the lines of UTF-8
        return [replace(fault, code=changed.get(fault.code, fault.code)) for fault in self._remarks]

    def by_lines(self, allowed: bool) -> None:
        """Say whether single lines may be of another encoding than the rest: whoever reads them looks for
        `damage` in each. Otherwise such a line is the end of the file."""
        self._by_lines = allowed
        if self.damaged and not allowed:
            self._wrong_encoding(*self._first_damage)

    def fill(self) -> bool:
        """Drop what has been read and read on, at least doubling the window; False at the file's end."""
        if self.ended:
            return False
        self._drop()
        if len(self.text) > LONGEST:
            self.fail("data.json_endless")
        data = self.raw.read(max(CHUNK, len(self.text)))
        self.ended = not data
        if self.ended and self.raw.damage:
            self._damaged_archive(self.raw.damage)
        more = self._decoded(data)
        self.text += more
        if self._lines == 1:  # a carriage return ends a line where no line feed ever does
            self.newline = "\r" if "\r" in self.text[:-1] and "\n" not in self.text else "\n"
        return bool(more) or not self.ended

    def _damaged_archive(self, reason: str) -> None:
        if not (self.lenient and self._read):
            raise Problem("data.damaged_archive", where=self.path, reason=reason)
        self.remark("archive_cut", dropped=True, reason=reason)

    def forget(self) -> None:
        """Drop what was read where that is much: the json module counts its lines at each error."""
        if self.position > HEAD * 8:
            self._drop()

    def _drop(self) -> None:
        self._mark = None
        gone = self.text[: self.position]
        self._seen = (0, self.line_at(self.position))
        self._lines = self._seen[1]
        last = gone.rfind(self.newline)
        self._column = len(gone) - last - 1 if last >= 0 else self._column + len(gone)
        self.text, self.position = self.text[self.position :], 0

    def _size(self, text: str) -> int:
        """The bytes of a text in the file; about so many where some of them were replaced."""
        if text.isascii() and self.encoding in ("UTF-8", "GB18030"):
            return len(text)
        codec = {"UTF-16": "utf-16-le", "UTF-32": "utf-32-le"}.get(self.encoding, self.encoding)
        return len(text.encode(codec, "replace"))

    def _byte_at(self, position: int) -> int:
        """The byte at which a position of the window stands in the file."""
        pending = len(self._decoder.getstate()[0])
        return self._read - pending - self._size(self.text[position:])

    def _decoded(self, data: bytes) -> str:
        try:
            text: str = self._decoder.decode(data, not data)
            self._sound += 0 if text.isascii() else text.count(self.newline) + 1  # at most
        except UnicodeDecodeError as error:
            text = self._undecodable(error, self._byte_at(len(self.text)))
        self._read += len(data)
        return text

    def _undecodable(self, error: UnicodeDecodeError, begin: int) -> str:
        """Bytes that are not of the file's encoding: the end, or, where single lines are of another encoding
        than the rest, surrogates that mark them (see `by_lines`). `begin`: their first byte's place.

        What is not UTF-8 is of another encoding as a whole, or in lines, by what there is more of so far.
        """
        data: bytes = error.object
        self.damaged = True
        line = self.line_at(len(self.text)) + data[: error.start].count(self.newline.encode())
        self._first_damage = (begin + error.start, line, "?")
        if self.encoding != "UTF-8":
            self._wrong_encoding(*self._first_damage)
            return self._marked(data)
        seen = census(data)
        self._sound, self._odd = self._sound + seen.sound, self._odd + seen.odd
        other = seen.guess != "?" and self._odd > self._sound and not (seen.single and self._odd == seen.odd)
        if not other or marked_encoding(data[error.start :]):
            if self._by_lines is False or not (self._sound or seen.single):
                self._wrong_encoding(*self._first_damage)
            return self._marked(data)
        mixed = self._sound and not self.lenient  # to convert it as a whole would spoil the rest
        self._first_damage = (begin + error.start, line, "?" if mixed else seen.guess)
        self._wrong_encoding(*self._first_damage)
        self.encoding, self._decoder = seen.guess, LineDecoder(seen.guess)
        text: str = self._decoder.decode(data, self.ended)
        return text

    def _marked(self, data: bytes) -> str:
        """Text of the file's encoding, with marks for what is not; the next bytes are looked at anew."""
        if self.encoding == "GB18030":
            self._decoder = LineDecoder(self.encoding)
        else:
            strict, errors = self._decoder, "surrogateescape" if self.encoding == "UTF-8" else MARK_UNITS
            self._decoder = codecs.getincrementaldecoder(self.encoding)(errors)
            self._decoder.setstate((b"", strict.getstate()[1]))
        text: str = self._decoder.decode(data, self.ended)
        if self.encoding == "UTF-8":
            strict.setstate(self._decoder.getstate())
            self._decoder = strict
        return text

    def damage(self, content: str) -> dict[str, object] | None:
        """The first place in a text of the file that is not of the file's encoding, as a line_encoding fault
        tells it; None when there is none."""
        found = DAMAGED.search(content) if self.damaged else None
        if not found:
            return None
        try:
            guess = encoding_guess(content[found.start() :].encode(self.encoding, "surrogateescape"))
        except UnicodeEncodeError:  # units of UTF-16, or lines that are UTF-8 behind it
            guess = "?"
        return {"column": found.start() + 1, "encoding": self.encoding, "guess": guess}

    def _wrong_encoding(self, byte: int, line: int, guess: str) -> None:
        """The file is not of the encoding it should be: the end, unless all faults are wanted."""
        where, file = f"{self.path}:{line}", self.path.name
        if guess == "?":
            if not self.lenient:
                raise Problem(
                    "data.encoding_unclear",
                    where=where,
                    byte=byte,
                    encoding=self.encoding,
                    file=shlex.quote(str(self.path)),
                )
            fault = Fault(
                self.name, None, line, "unclear_encoding", {"byte": byte, "encoding": self.encoding}
            )
        else:
            if not self.lenient:
                raise Problem("data.not_utf8", where=where, byte=byte, guess=guess, file=file)
            values = {"byte": byte, "guess": guess, "file": file}
            fault = Fault(self.name, None, line, "wrong_encoding", values)
        if fault not in self._remarks:
            self._remarks.append(fault)

    def peek(self) -> str:
        """The next character that is no blank, "" at the end; `position` is moved to it."""
        while True:
            match = BLANKS.match(self.text, self.position)
            self.position = match.end() if match else self.position
            if self.position < len(self.text):
                return self.text[self.position]
            if not self.fill():
                return ""

    def lines(self) -> Iterator[str]:
        """The lines from here on."""
        while True:
            end = self.text.rfind(self.newline, self.position)
            if end >= 0:
                chunk = self.text[self.position : end]
                self.position = end + 1
                yield from chunk.split(self.newline)
            if not self.fill():
                break
        if self.text[self.position :]:
            rest, self.position = self.text[self.position :], len(self.text)
            yield rest

    def line_at(self, position: int) -> int:
        """The line of a position at or after the last one asked for."""
        seen, line = self._seen
        if position > seen:
            self._seen = (position, line + self.text.count(self.newline, seen, position))
        return self._seen[1]

    def place(self, at: int) -> tuple[int, int, int]:
        """Line, column (both from 1) and byte (from 0) of a position in the window. What is near the place
        asked for before costs little: a file may have a fault in every line."""
        if self._mark is None:
            self._mark = (at, self._lines + self.text.count(self.newline, 0, at), self._byte_at(at))
        seen, line, byte = self._mark
        start, end, sign = (seen, at, 1) if seen <= at else (at, seen, -1)
        line += sign * self.text.count(self.newline, start, end)
        byte += sign * self._size(self.text[start:end])
        self._mark = (at, line, byte)
        last = self.text.rfind(self.newline, 0, at)
        return line, at - last if last >= 0 else self._column + at + 1, byte

    def fail(self, code: str, at: int | None = None) -> NoReturn:
        """End with a Problem at the present position, or at another of the window; `code` is the reason."""
        line, column, byte = self.place(self.position if at is None else at)
        where = f"{self.path}:{line}:{column}"
        reason = language.say(code, longest=LONGEST)
        problem = "data.bad_json_for_good" if self.lenient else "data.bad_json"
        values: dict[str, Any] = {"record": max(self.record, 0), "byte": byte}
        values |= {"reason": reason, "syntax": code}
        raise Problem(problem, where=where, file=shlex.quote(str(self.path)), **values)
