"""When a line was written, and by which rank, as far as it says so."""

from __future__ import annotations

import re
from datetime import datetime

_TIME = re.compile(
    rb"(\d{4})([-/])(\d\d)\2(\d\d)[-T ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,3})(?:\.?(\d{1,3}))?)?"
    rb"|[A-Z][a-z]{2} ([A-Z][a-z]{2}) +(\d{1,2}) (\d\d):(\d\d):(\d\d) (\d{4})"
)
"""plog and MindSpore (2025-10-23-17:30:40.098.984), torch_npu, Python's logging, ISO 8601; and ctime."""
_MONTHS = (b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec")
_RANK = re.compile(
    rb"\[(?:rank|default)[ _]?(\d{1,6})\]|RankID:(\d{1,6})\b|\brankI[dD]\[(\d{1,6})\]"
    rb"|^\s*[Rr]ank[ _]?(\d{1,6})\b"
)
_STAMP = re.compile(rb"\r?\n[^\r\n]{0,200}\bRankID:(\d{1,6})\b")
_RANK_NAME = re.compile(
    r"(?:rank|worker|device)[-_. ]?(\d{1,6})(?!\d)|attempt_\d+/(\d{1,6})/std(?:err|out)", re.IGNORECASE
)
NEAR = 4096
"""Bytes around a line without a time in which another line's counts for it."""


def time_of(text: bytes) -> datetime | None:
    """The first time in a text; zones are not looked at."""
    for match in _TIME.finditer(text):
        if when := _time(match):
            return when
    return None


def near(data: bytes, start: int, stop: int) -> datetime | None:
    """The time of the line data[start:stop], or of the nearest line with one, rather before than after."""
    if own := time_of(data[start:stop]):
        return own
    earlier = reversed(list(_TIME.finditer(data, max(start - NEAR, 0), start)))
    before = next((match for match in earlier if _time(match)), None)
    after = next((match for match in _TIME.finditer(data, stop, stop + NEAR) if _time(match)), None)
    if not before:
        return _time(after) if after else None
    gaps = (
        data.count(b"\n", before.end(), start),
        data.count(b"\n", stop, after.start()) if after else NEAR,
    )
    return _time(after if after and gaps[1] < gaps[0] else before)


def rank_of(line: bytes) -> int | None:
    """The rank that a line names as its own: `[rank3]:`, `RankID:3`, `rankId[3]`, `[default3]:`."""
    match = _RANK.search(line)
    return int(next(filter(None, match.groups()))) if match else None


def rank_below(data: bytes, stop: int) -> int | None:
    """The rank in torch_npu's stamp right below a line that ends at `stop`; it follows a process's end."""
    match = _STAMP.match(data, stop)
    return int(match[1]) if match else None


def rank_of_name(path: str) -> int | None:
    """The rank a log is of, by its path: rank_3.log, worker_3.log, device-3/..., torchrun's attempt_0/3/."""
    found = _RANK_NAME.findall(path)
    return int("".join(found[-1])) if found else None


def _time(match: re.Match[bytes]) -> datetime | None:
    """None where the digits are no time."""
    year, _, month, day, hour, minute, second, milli, micro, name, d, h, m, s, y = match.groups()
    try:
        if name:
            return datetime(int(y), _MONTHS.index(name) + 1, int(d), int(h), int(m), int(s))
        fraction = int((milli or b"").ljust(3, b"0")) * 1000 + int((micro or b"").ljust(3, b"0"))
        return datetime(int(year), int(month), int(day), int(hour), int(minute), int(second), fraction)
    except ValueError:
        return None
