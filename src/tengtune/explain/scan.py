"""What is in a log: the lines that tell of an error we know, and those that look like one.

A log may have gigabytes and lines without an end, so it goes by in blocks, and what is kept is bounded.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from tengtune.explain import stamps
from tengtune.explain.known import Error
from tengtune.explain.sieve import Sieve, lines_between
from tengtune.explain.suspicious import SUSPICIOUS

MOST = 256
"""Lines of a kind that are kept of one log, from its beginning on; more only near its end."""
TRIES = 4096
"""Places at which a merely suspicious text was not what it looked like, before it is given up."""
TAIL = 1 << 18
"""The end of a log, in bytes, in which everything is looked at, however often it came before."""
MARGIN = 4096
"""Bytes around a line that are there when it is judged."""
PENDING = 1 << 16
"""Bytes of a line that are waited for; what is longer is judged piece by piece."""
SEQUENCE = 256
"""Bytes a sequence of the terminal (a colour, a title) may have."""
LONGEST = 2048
"""Bytes before and after a place that count as its line."""
SHOWN = 400
"""Characters of a line that are shown."""
_COLOURS = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\))")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")

Content = Literal["empty", "binary", "text"]
"""What a log is: nothing but blanks, no text, or text (in some part)."""
_NO_TEXT = bytes({*range(32), 0x7F, 0xFF} - set(b"\t\n\b\f\r\x1b"))
"""Bytes that texts, of whatever coding, do not have."""
FEW = 0.05
"""Part of a block that may be such bytes: a crash leaves some between the lines."""


@dataclass(frozen=True)
class Hit:
    """A line of a log. `error` is None for one that only looks suspicious; `around` is the line with what
    follows it, for errors with a computation."""

    error: Error | None
    file: str
    line: int
    text: str
    when: datetime | None
    rank: int | None
    score: int = 0
    around: str = ""


@dataclass
class Reading:
    """What a log held."""

    hits: list[Hit] = field(default_factory=list)
    lines: int = 0
    bytes: int = 0
    content: Content = "empty"


Owner = str | bytes
"""An error's id, or a key of SUSPICIOUS."""


def scan(blocks: Iterable[bytes], errors: Mapping[str, Error], file: str) -> Reading:
    """Read a log to its end; `file` is what it is called in the answer."""
    scanner = _Scanner(errors, file)
    for block in blocks:
        scanner.feed(block)
    return scanner.end()


class _Scanner:
    def __init__(self, errors: Mapping[str, Error], file: str) -> None:
        self._errors, self._file = errors, file
        self._texts: list[tuple[bytes, Owner]] = [
            *((text, error.id) for error in errors.values() for text in error.find),
            *((text, text) for text in SUSPICIOUS),
        ]
        self._sieve: Sieve[Owner] = _sieve(tuple(self._texts))
        self._counts: Counter[Owner] = Counter()
        self._vain: Counter[Owner] = Counter()
        self._full: set[Owner] = set()
        self._last: dict[Owner, int] = {}  # owner -> the last line it was found in
        self._held, self._data, self._done, self._line = b"", b"", 0, 1
        self._tail, self._rank = b"", stamps.rank_of_name(file)
        self._reading = Reading()

    def feed(self, block: bytes) -> None:
        self._reading.bytes += len(block)
        if self._reading.content != "text" and block.strip():
            self._reading.content = _content(block)
        block = self._held + block
        if b"\x1b" in block:  # a sequence may end in the next block
            cut = block.rfind(b"\x1b", max(len(block) - SEQUENCE, 0))
            block, self._held = (block[:cut], block[cut:]) if cut >= 0 else (block, b"")
            block = _COLOURS.sub(b"", block)
        else:
            self._held = b""
        self._take(block)

    def _take(self, block: bytes) -> None:
        keep = max(self._done - MARGIN, 0) & ~1  # the sieve looks at even places
        self._data, self._done = self._data[keep:] + block, self._done - keep
        limit = len(self._data) - MARGIN
        stop = self._data.rfind(b"\n", self._done, max(limit, 0)) + 1
        if not stop and limit - self._done > PENDING:
            stop = limit
        if stop > self._done:
            self._look(stop)

    def end(self) -> Reading:
        self._take(_COLOURS.sub(b"", self._held))
        self._look(len(self._data))
        self._reading.lines = self._line - (self._data[-1:] in (b"\n", b""))
        self._look_back()
        return self._reading

    def _look(self, stop: int) -> None:
        """Judge what is there up to `stop`."""
        start, line = self._done, self._line
        for place, low, high, owner in self._found(self._data, start, stop):
            line += lines_between(self._data, start, place)
            start = max(start, place)
            if self._last.get(owner, 0) != line and self._counts[owner] < MOST:
                self._note(self._data, low, high, line, owner)
        self._line = line + lines_between(self._data, start, stop)
        self._tail = (self._tail + self._data[max(self._done, stop - TAIL) : stop])[-TAIL:]
        self._done = stop
        self._leave_out()

    def _leave_out(self) -> None:
        """Look no more for what came often enough."""
        full = {owner for owner, count in self._counts.items() if count >= MOST}
        full |= {owner for owner, count in self._vain.items() if count >= TRIES}
        if full > self._full:
            self._full = full
            self._sieve = _sieve(tuple(each for each in self._texts if each[1] not in full))

    def _look_back(self) -> None:
        """Judge the log's end for what came so often that it was not looked for any more."""
        self._sieve = _sieve(tuple(each for each in self._texts if each[1] in self._full))
        start, line = 0, self._line - self._tail.count(b"\n")
        for place, low, high, owner in self._found(self._tail, 0, len(self._tail)):
            line += self._tail.count(b"\n", start, place)
            start = max(start, place)
            if self._last.get(owner, 0) < line:
                self._note(self._tail, low, high, line, owner)

    def _found(self, data: bytes, start: int, stop: int) -> Iterator[tuple[int, int, int, Owner]]:
        """(place, the line's begin and end, what it tells of), in order of places."""
        low = high = -1
        line, judged, told = b"", set[tuple[bytes, Owner]](), set[Owner]()
        for place, maybe in self._sieve.places(data, start, stop):
            if place >= high:
                low, high = _line_around(data, place)
                line, judged, told = data[low:high], set(), set()
            for each in maybe:
                text, owner = each
                if each in judged or owner in told:
                    continue
                judged.add(each)
                if text in line and self._matches(owner, line):
                    told.add(owner)
                    yield place, low, high, owner
                elif isinstance(owner, bytes):
                    self._vain[owner] += 1

    def _matches(self, owner: Owner, line: bytes) -> bool:
        regex = SUSPICIOUS[owner][1] if isinstance(owner, bytes) else self._errors[owner].regex
        return regex is None or regex.search(line) is not None

    def _note(self, data: bytes, low: int, high: int, line: int, owner: Owner) -> None:
        """Keep a line."""
        error = None if isinstance(owner, bytes) else self._errors[owner]
        ranks = (stamps.rank_of(data[low:high]), self._rank, stamps.rank_below(data, high))
        self._reading.hits.append(
            Hit(
                error,
                self._file,
                line,
                readable(data[low:high])[:SHOWN],
                stamps.near(data, low, high),
                next((rank for rank in ranks if rank is not None), None),
                SUSPICIOUS[owner][0] if isinstance(owner, bytes) else 0,
                readable(data[low : high + LONGEST], lines=True) if error and error.detail else "",
            )
        )
        self._counts[owner] += 1
        self._last[owner] = line


@functools.lru_cache(maxsize=4)
def _sieve(texts: tuple[tuple[bytes, Owner], ...]) -> Sieve[Owner]:
    return Sieve(texts)


def _content(block: bytes) -> Content:
    """Of a block that is not blank. Holes do not count: logs that were cut while written to have them."""
    block = block.strip(b"\0") or block
    strange = len(block) - len(block.translate(None, _NO_TEXT))
    return "binary" if strange > FEW * len(block) else "text"


def _line_around(data: bytes, place: int) -> tuple[int, int]:
    """Begin and end of the line; of a very long one what is near. A progress bar's "\\r" ends it."""
    first, last = max(place - LONGEST, 0), min(place + LONGEST, len(data))
    low = data.rfind(b"\n", first, place) + 1 or first
    high = data.find(b"\n", place, last)
    high = last if high < 0 else high
    low = data.rfind(b"\r", low, place) + 1 or low
    end = data.find(b"\r", place, high)
    return low, high if end < 0 else end


def readable(line: bytes, lines: bool = False) -> str:
    """A line as text, with nothing that moves a cursor; UTF-8, else GB 18030, else bytes as such."""
    text = ""
    for encoding, errors in (("utf-8", "strict"), ("gb18030", "strict"), ("utf-8", "backslashreplace")):
        try:
            text = line.decode(encoding, errors)
            break
        except UnicodeDecodeError:
            continue
    if lines:
        return "\n".join(_CONTROLS.sub(" ", part) for part in text.splitlines())
    return _CONTROLS.sub(" ", text).strip()
