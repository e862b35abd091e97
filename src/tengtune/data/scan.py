"""Characters that should not be in a text, found in many texts at once: nearly always there are none."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable

CODES = ("surrogate", "damaged_text", "mojibake", "control_character", "control_text")
"""What can be found; the codes of its faults."""

_SURROGATE = re.compile("[\ud800-\udfff]")
_DAMAGED = "\ufffd"
_DELETED = bytes([*range(9), 11, 12, *range(14, 32), 127])
_CONTROL_CHARACTER = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\u202d\u202e]")
_OVERRIDES = ("\u202d".encode(), "\u202e".encode())
_HIGH = "\u0080-\u00bf" + bytes(set(range(0x80, 0xA0)) - set(b"\x81\x8d\x8f\x90\x9d")).decode("cp1252")
_LATIN = re.compile(f"[\u00c2-\u00df][{_HIGH}]|[\u00e0-\u00ef][{_HIGH}]{{2}}")
"""UTF-8 of two or three bytes that was read as Latin-1 or Windows-1252."""
_LATIN_MARK = b"\xc3"  # begins the UTF-8 of every first character of it
_CHINESE_MARKS = ("锛", "銆", "锟斤拷")
"""UTF-8 read as GBK shows by what became of the full-width comma and stop, and of U+FFFD."""


class Scan:
    """Looks for CODES. `control`: the texts of the tokenizer's control tokens."""

    def __init__(self, control: Iterable[str]) -> None:
        control = sorted(control, key=len, reverse=True)
        self._control = re.compile("|".join(map(re.escape, control)) or "(?!)")
        self._marks = {("<|" if text.startswith("<|") else text).encode() for text in control}

    def suspects(self, text: str) -> set[str]:
        """What may be in a text; nothing else is. Fast, for many texts put together."""
        found = set()
        try:
            raw = text.encode("utf-8")
        except UnicodeEncodeError:
            raw = text.encode("utf-8", "surrogatepass")
            found.add("surrogate")
        if len(raw.translate(None, _DELETED)) != len(raw):
            found.add("control_character")
        if b"<" in raw and any(mark in raw for mark in self._marks):
            found.add("control_text")
        if len(raw) == len(text):
            return found
        if _DAMAGED.encode() in raw:
            found.add("damaged_text")
        if _LATIN_MARK in raw or any(mark.encode() in raw for mark in _CHINESE_MARKS):
            found.add("mojibake")
        if any(mark in raw for mark in _OVERRIDES):
            found.add("control_character")
        return found

    def found(self, text: str, suspects: Collection[str]) -> list[str]:
        """Which of `suspects` are in a text."""
        tests: dict[str, Callable[[str], object]] = {
            "surrogate": _SURROGATE.search,
            "damaged_text": lambda text: _DAMAGED in text,
            "mojibake": is_mojibake,
            "control_character": _CONTROL_CHARACTER.search,
            "control_text": self._control.search,
        }
        return [code for code in CODES if code in suspects and tests[code](text)]


def is_mojibake(text: str) -> bool:
    """Whether a text is UTF-8 that was read as another encoding: Latin-1, Windows-1252 or GBK."""
    runs = _LATIN.findall(text)
    if len(runs) > 1 or any(len(run) > 2 for run in runs):
        return True
    if not any(mark in text for mark in _CHINESE_MARKS):
        return False
    undone = text.encode("gb18030", "ignore").decode("utf-8", "replace")
    lost = undone.count(_DAMAGED)
    whole = sum(not character.isascii() for character in undone) - lost
    return whole > 2 * lost
