"""Comparing texts the way a person would: what only looks different counts as equal."""

from __future__ import annotations

import re
import unicodedata

_IDEOGRAPHS = "\u2e80-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
# A point between digits and a sign before a number are part of the number; other punctuation is not text.
_IN_NUMBER = re.compile(r"(?<=\d)\.(?=\d)|(?<![\w.])-(?=\d)")
_KEPT = "%#"
_BESIDE_IDEOGRAPH = re.compile(rf"(?<=[{_IDEOGRAPHS}]) | (?=[{_IDEOGRAPHS}])")
_WORD_CHARACTER = rf"[^\W{_IDEOGRAPHS}]"


def normalise(text: str) -> str:
    """The text in NFKC and without case; punctuation becomes a space (but "3.14", "-5", "%", "#" stay, and
    "1,000" is "1000"); blanks become one space, and none beside a Chinese character."""
    plain = unicodedata.normalize("NFKC", text).casefold().replace("\u2212", "-")
    plain = _THOUSANDS.sub("", plain)
    kept = {match.start() for match in _IN_NUMBER.finditer(plain)}
    letters = (
        " " if unicodedata.category(c)[0] == "P" and c not in _KEPT and i not in kept else c
        for i, c in enumerate(plain)
    )
    return _BESIDE_IDEOGRAPH.sub("", " ".join("".join(letters).split()))


def exact(answer: str, reference: str) -> bool:
    """Whether the two are equal after `normalise`."""
    return normalise(answer) == normalise(reference)


def contains(answer: str, phrase: str) -> bool:
    """Whether the answer holds the phrase, both normalised; not inside a longer word or number ("4" is not
    in "42", "cat" not in "category"), save that Chinese has no word limits."""
    wanted = normalise(phrase)
    if not wanted:
        return False
    before = rf"(?<!{_WORD_CHARACTER})(?<!\d\.)" if re.match(_WORD_CHARACTER, wanted[0]) else ""
    after = rf"(?!{_WORD_CHARACTER})(?!\.\d)" if re.match(_WORD_CHARACTER, wanted[-1]) else ""
    return re.search(f"{before}{re.escape(wanted)}{after}", normalise(answer)) is not None
