"""Characters that should not be in a text, found in many texts at once: nearly always there are none."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable

import numpy as np

CODES = ("surrogate", "damaged_text", "mojibake", "control_character", "control_text")
"""What can be found; the codes of its faults."""

_SURROGATE = re.compile("[\ud800-\udfff]")
_DAMAGED = "\ufffd"
_CONTROL = "\x00-\x08\x0b\x0c\x0e-\x1f\x7f\u202d\u202e"
_CONTROL_CHARACTER = re.compile(f"[{_CONTROL}]")
_HIGH = "\u0080-\u00bf" + bytes(set(range(0x80, 0xA0)) - set(b"\x81\x8d\x8f\x90\x9d")).decode("cp1252")
_LATIN = re.compile(f"[\u00c2-\u00df][{_HIGH}]|[\u00e0-\u00ef][{_HIGH}]{{2}}")
"""UTF-8 of two or three bytes that was read as Latin-1 or Windows-1252."""
_IN_LATIN = "mojibake in Latin"
_LATIN_BYTES = re.compile(rb"\xc3[\x82-\xaf](?:\xc2|\xc5|\xc6|\xcb|\xe2[\x80\x82\x84])")
"""The same in UTF-8, roughly: found several times faster."""
_CHINESE = re.compile("锛|銆|锟斤拷")
"""UTF-8 read as GBK shows by what became of the full-width comma and stop, and of U+FFFD."""


class Scan:
    """Looks for CODES. `control`: the texts of the tokenizer's control tokens."""

    def __init__(self, control: Iterable[str]) -> None:
        control = sorted(control, key=len, reverse=True)
        self._control = re.compile("|".join(map(re.escape, control)) or "(?!)")
        self._marks = {"<|" if text.startswith("<|") else text for text in control}
        firsts = "".join({re.escape(mark[0]) for mark in self._marks})
        classes = {
            "damaged_text": _DAMAGED,
            "mojibake": "锛銆锟",
            _IN_LATIN: "\u00c2-\u00ef",
            "control_character": _CONTROL,
            "surrogate": "\ud800-\udfff",
            "control_text": firsts or "<",
        }
        self._bit_of = {code: 1 << bit for bit, code in enumerate(classes)}
        self._bits = np.zeros(1 << 16, np.uint8)  # by UTF-16 code: what it may be a sign of
        every = "".join(map(chr, range(1 << 16)))
        for code, characters in classes.items():
            for match in re.finditer(f"[{characters}]", every):
                self._bits[match.start()] |= self._bit_of[code]

    def suspects(self, text: str) -> set[str]:
        """What may be in a text; nothing else is. Fast, for many texts put together: characters are looked
        up, and only where one gives cause the text is searched."""
        units = np.frombuffer(text.encode("utf-16-le", "surrogatepass"), "<u2")
        bits = int(np.bitwise_or.reduce(self._bits[units], initial=0))
        found = {code for code, bit in self._bit_of.items() if bits & bit}
        if "control_text" in found and not any(mark in text for mark in self._marks):
            found.remove("control_text")
        if "surrogate" in found or _IN_LATIN in found:
            raw = _utf8(text)
            if raw is not None:  # no surrogates but pairs
                found.discard("surrogate")
            if _IN_LATIN in found and (raw is None or _LATIN_BYTES.search(raw)):
                found.add("mojibake")
            found.discard(_IN_LATIN)
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
    if not _CHINESE.search(text):
        return False
    undone = text.encode("gb18030", "ignore").decode("utf-8", "replace")
    lost = undone.count(_DAMAGED)
    whole = sum(not character.isascii() for character in undone) - lost
    return whole > 2 * lost


def _utf8(text: str) -> bytes | None:
    """The text in UTF-8; None when there is a lone surrogate in it."""
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        return None
