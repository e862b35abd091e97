"""Long lists in short messages, and sizes a person can read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tengtune.ui import language

SHOWN = 5


_COMMA = {"en": ", ", "zh": "、"}
_SEMICOLON = {"en": "; ", "zh": "；"}


def joined(items: Iterable[object]) -> str:
    """Names in a sentence, with the comma of lists in the language in force."""
    return _COMMA[language.current()].join(map(str, items))


def clauses(items: Iterable[str]) -> str:
    """Clauses in a sentence, with the semicolon of the language in force."""
    return _SEMICOLON[language.current()].join(items)


def listed(items: Sequence[object]) -> str:
    """The first five names, in a sentence, and how many more there are."""
    return first_few(items, _COMMA[language.current()])


def first_few(items: Sequence[object], separator: str = "\n") -> str:
    """The first five items, and how many more there are."""
    shown = [str(item)[:200] for item in items[:SHOWN]]
    if len(items) > SHOWN:
        shown.append(language.say("ui.and_more", count=len(items) - SHOWN))
    return separator.join(shown)


def size(count: int) -> str:
    """Bytes in decimal units, as disks are sold: "1.53 GB", "4.0 MB", "812 B"."""
    if count >= 10**9:
        return f"{count / 1e9:.2f} GB"
    if count >= 10**6:
        return f"{count / 1e6:.1f} MB"
    return f"{count:,} B"
