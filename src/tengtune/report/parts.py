"""What the sections are built of: tables, numbers as a person reads them, texts cut to a length."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from tengtune.report.html import Content, Html, say, tag

LONGEST_TEXT = 2000


def facts(rows: Iterable[Sequence[Content]]) -> Html:
    """Names and figures."""
    return tag("div", table([], rows, numbers=(1,)), class_="facts")


def table(heads: Sequence[Content], rows: Iterable[Sequence[Content]], numbers: Iterable[int] = ()) -> Html:
    """A table; the columns in `numbers` are set to the right."""
    right = frozenset(numbers)

    def line(cells: Sequence[Content], name: str) -> Html:
        return tag(
            "tr", [tag(name, cell, class_="n" if i in right else None) for i, cell in enumerate(cells)]
        )

    head = tag("thead", line(heads, "th")) if heads else None
    body = tag("tbody", [line(row, "td") for row in rows])
    return tag("div", tag("table", head, body), class_="scroll")


def figure(value: float, signed: bool = False) -> str:
    """A number with at least four digits that count: 0.012, 3.541, 35.41, 354.1, 3,541."""
    if not math.isfinite(value):
        return str(value)
    decimals = 3 - min(max(math.floor(math.log10(abs(value))), 0), 3) if value else 3
    return f"{value:{'+' if signed else ''},.{decimals}f}"


def duration(seconds: float) -> str:
    """12.3 s, 4 min 05 s, 2 h 07 min."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes = int(seconds) // 60
    return (
        f"{minutes} min {int(seconds) % 60:02} s"
        if minutes < 60
        else f"{minutes // 60} h {minutes % 60:02} min"
    )


def clipped(text: object) -> str:
    """A text, cut where it grows longer than anybody reads."""
    whole = str(text)
    return whole if len(whole) <= LONGEST_TEXT else f"{whole[:LONGEST_TEXT]} …"


def more(count: int, file: str) -> Html | None:
    return tag("p", say("report.more", count=count, file=file), class_="small") if count > 0 else None


def section(name: str, *content: Content) -> Html:
    return tag("section", tag("h2", say(f"report.{name}")), *content, id=name)
