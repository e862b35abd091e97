"""In which writing systems texts are: a rough idea of a data set's languages, from its letters alone."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

LATIN, HAN, KANA, HANGUL, CYRILLIC, ARABIC, OTHER = range(1, 8)
_RANGES: tuple[tuple[int, int, int], ...] = (
    (0x41, 0x5A, LATIN),
    (0x61, 0x7A, LATIN),
    (0xC0, 0x24F, LATIN),
    (0x370, 0x3FF, OTHER),
    (0x400, 0x52F, CYRILLIC),
    (0x530, 0x5FF, OTHER),
    (0x600, 0x77F, ARABIC),
    (0x780, 0x10FF, OTHER),
    (0x1100, 0x11FF, HANGUL),
    (0x1200, 0x1DFF, OTHER),
    (0x1E00, 0x1EFF, LATIN),
    (0x3040, 0x30FF, KANA),
    (0x3400, 0x9FFF, HAN),
    (0xAC00, 0xD7AF, HANGUL),
    (0xD840, 0xD888, HAN),  # the first halves of Han characters beyond the basic plane
    (0xF900, 0xFAFF, HAN),
)
_NAMES = {
    LATIN: "latin",
    HAN: "zh",
    KANA: "ja",
    HANGUL: "ko",
    CYRILLIC: "cyrillic",
    ARABIC: "arabic",
    OTHER: "other",
}
LETTERS_A_WORD = 5
"""A Han, Kana or Hangul character counts as much as so many letters of an alphabet."""
CLEAR = 0.7
"""A text is of one language when so much of it is."""
LOOKED_AT = 4000
"""Characters of a text that are looked at."""


def _table() -> npt.NDArray[np.uint8]:
    table = np.zeros(1 << 16, np.uint8)
    for first, last, script in _RANGES:
        table[first : last + 1] = script
    return table


_SCRIPT = _table()


def language_of(text: str) -> str:
    """zh, ja, ko, latin (English and all others so written), cyrillic, arabic, other; "mixed" where none
    prevails, "none" without letters."""
    units = np.frombuffer(text[:LOOKED_AT].encode("utf-16-le", "surrogatepass"), "<u2")
    counts = np.bincount(_SCRIPT[units], minlength=8).astype(np.float64)
    counts[0] = 0
    counts[[LATIN, CYRILLIC, ARABIC, OTHER]] /= LETTERS_A_WORD
    if counts[KANA] > 0.1 * counts[HAN]:  # Japanese is written with both
        counts[KANA] += counts[HAN]
        counts[HAN] = 0
    total = counts.sum()
    if not total:
        return "none"
    top = int(counts.argmax())
    return _NAMES[top] if counts[top] >= CLEAR * total else "mixed"
