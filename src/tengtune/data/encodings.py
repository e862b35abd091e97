"""In which encoding bytes are that are no UTF-8; and reading lines of which some are UTF-8 after all."""

from __future__ import annotations

import codecs
import re
from typing import NamedTuple

from tengtune.data.detect import marked_encoding, unmarked_utf16

DAMAGED = re.compile("[\udc80-\udcff]")
"""Bytes that are not of the encoding, as a text decoded with "surrogateescape" has them."""
_CUT = re.compile(rb"[\xc2-\xf4][\x80-\xbf]{0,2}\Z")
LONGEST_LINE = 1 << 16
"""Bytes up to which a line is kept together, to be decoded as a whole."""

MARK_UNITS = "tengtune.mark_units"
codecs.register_error(MARK_UNITS, lambda error: ("\udcff", getattr(error, "end", 0)))
"""A mark for each unit of UTF-16 or UTF-32 that is none; "surrogateescape" knows bytes only."""


class Census(NamedTuple):
    """What stands in lines beyond ASCII: texts that are UTF-8, texts that are not, the likely encoding of
    these ("?" where it is unsure), and whether only one of several lines is beyond ASCII."""

    sound: int
    odd: int
    guess: str
    single: bool


def census(data: bytes) -> Census:
    """Look at bytes of which some are not UTF-8; they may end within a character."""
    lines = [line for line in _CUT.sub(b"", data).splitlines() if line.strip()]
    wide = [line for line in lines if not line.isascii()]
    pieces = [piece for line in wide for piece in line.split(b'"') if not piece.isascii()]
    sound = sum(map(_is_utf8, pieces))
    odd = [line for line in wide if not _is_utf8(line)]
    guess = encoding_guess(b"\n".join(odd))
    single = len(wide) == 1 and len(lines) > 2
    return Census(sound, len(pieces) - sound, "?" if guess.startswith("UTF-") else guess, single)


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


class LineDecoder:
    """Decodes a file of some encoding of which single lines may be UTF-8: those that are by their bytes, and
    make less sense as the other. What is neither is marked (see DAMAGED). As codecs.IncrementalDecoder."""

    def __init__(self, encoding: str) -> None:
        self._encoding, self._pending = encoding, b""
        self.mixed = False  # lines that are UTF-8 were among them

    def getstate(self) -> tuple[bytes, int]:
        """The bytes that are not decoded yet, and 0."""
        return self._pending, 0

    def decode(self, data: bytes, final: bool = False) -> str:
        """The text of the lines that are complete now; of all that is left when `final`."""
        data = self._pending + data
        end = len(data) if final else max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if len(data) - end > LONGEST_LINE:
            end = max(end, data.rfind(b'"') + 1)  # never a part of a character in these encodings
        self._pending = data[end:]
        return "".join(map(self._line, data[:end].splitlines(keepends=True)))

    def _line(self, line: bytes) -> str:
        if line.isascii():
            return line.decode("ascii")
        other = line.decode(self._encoding, "surrogateescape")
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError:
            return other
        if not DAMAGED.search(other) and not self._is_likelier(text, other):
            return other
        self.mixed = True
        return text

    def _is_likelier(self, text: str, other: str) -> bool:
        """Whether a line that can be read as UTF-8 and as the file's encoding is the first."""
        wide = [c for c in text if not c.isascii()]
        if self._encoding == "WINDOWS-1252" or not _SINGLE_ACCENTS.sub("", text).strip(_ASCII):
            return True
        # Two bytes of UTF-8 may well be a character of another encoding, hardly three, and again three.
        long = sum(c >= "\u0800" for c in wide)
        if long > 1 and 2 * long >= len(wide):
            return True
        return _share_of_common(text, self._encoding) > _share_of_common(other, self._encoding)


_ASCII = "".join(map(chr, range(128)))
_SINGLE_ACCENTS = re.compile("(?<=[A-Za-z])[\u00c0-\u00ff](?![^\x00-\x7f])")


def _share_of_common(text: str, encoding: str) -> float:
    """Share of the characters beyond ASCII that are common ones of an encoding."""
    wide = [c for c in text if not c.isascii()]
    common = _COMMON.get(encoding, _COMMON["GBK"])
    return sum(bool(common.fullmatch(c.encode(encoding, "ignore"))) for c in wide) / max(len(wide), 1)


_COMMON = {
    "GBK": re.compile(rb"[\xa1\xa3\xb0-\xd7][\xa1-\xfe]"),
    "BIG5": re.compile(rb"[\xa1-\xa3\xa4-\xc6][\x40-\x7e\xa1-\xfe]"),
    "SHIFT_JIS": re.compile(rb"[\xa1-\xdf]|[\x81-\x83\x88-\x98][\x40-\xfc]"),
    "EUC-JP": re.compile(rb"[\xa1-\xa5\xb0-\xcf][\xa1-\xfe]"),
    "EUC-KR": re.compile(rb"[\xa1-\xa3\xb0-\xc8][\xa1-\xfe]"),
}
"""What the common characters and the punctuation of an encoding are written as; of GB18030 as of GBK."""


def encoding_guess(raw: bytes) -> str:
    """The likely encoding of bytes that are no UTF-8, by the name iconv knows; "?" when unsure."""
    marked = marked_encoding(raw)
    if marked:
        return marked[0]
    wide = unmarked_utf16(raw)
    if wide:
        return wide
    script = _script(raw)
    if script:
        return script
    scores = {name: _score(raw, codec, ranges) for name, codec, ranges in _CHINESE}
    best = max(scores, key=lambda name: scores[name])
    if scores[best] > 0.5:
        return best
    return "WINDOWS-1252" if _is_western(raw) else "?"


def _script(raw: bytes) -> str | None:
    """The encoding of Japanese or Korean, which shows by its own letters; None when there are too few."""
    for name, codec, first, last, share in _SCRIPTS:
        text = codecs.getincrementaldecoder(codec)("replace").decode(raw[:65536])
        wide = [c for c in text if not c.isascii()]
        letters = sum(first <= c <= last for c in wide)
        if letters >= 8 and letters >= share * len(wide) and wide.count("\ufffd") * 50 <= len(wide):
            return name
    return None


_SCRIPTS = (
    ("SHIFT_JIS", "cp932", "\u3041", "\u30fe", 0.3),
    ("EUC-JP", "euc_jp", "\u3041", "\u30fe", 0.3),
    ("EUC-KR", "euc_kr", "\uac00", "\ud7a3", 0.9),  # of Chinese in GBK, half would be read as such
)
"""Name, codec, and the letters that are so great a share of what is beyond ASCII."""

_CHINESE = (
    ("GBK", "gbk", ((0xB0A1, 0xD7F9), (0xA1A1, 0xA3FE))),
    ("GB18030", "gb18030", ((0xB0A1, 0xD7F9), (0xA1A1, 0xA3FE))),
    ("BIG5", "big5", ((0xA440, 0xC67E), (0xA140, 0xA3BF))),
)
"""Name, codec, and the two-byte codes of its common characters and its punctuation."""


def _score(raw: bytes, codec: str, ranges: tuple[tuple[int, int], ...]) -> float:
    """Share of the non-ASCII characters that are common ones when `raw` is read as this encoding."""
    text = codecs.getincrementaldecoder(codec)("replace").decode(raw[:65536])
    wide = [c for c in text if not c.isascii()]
    codes = [int.from_bytes(c.encode(codec, "ignore"), "big") for c in wide if c != "\ufffd"]
    return sum(any(low <= code <= high for low, high in ranges) for code in codes) / max(len(wide), 1)


def _is_western(raw: bytes) -> bool:
    """Mostly ASCII, with accented letters here and there."""
    wide = bytes(byte for byte in raw[:65536] if byte >= 0x80)
    return 0 < len(wide) < len(raw[:65536]) * 0.3 and all(
        byte >= 0xC0 or byte in b"\x91\x92\x93\x94\x96\x97" for byte in wide
    )
