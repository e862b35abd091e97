"""What kind of file this is: its encoding and how records lie in it, told from its first bytes."""

from __future__ import annotations

import codecs
from typing import Literal

Layout = Literal["array", "lines", "values"]

UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def layout(head: str) -> Layout | None:
    """How records lie in a JSON text that begins with `head`; None when it is no JSON of ours.

    array   one list, whatever its line breaks
    lines   JSON Lines: an object in each line
    values  one object (or several) written over many lines
    """
    text = head.lstrip(" \t\r\n")
    if text.startswith("["):
        return "array"
    if not text.startswith("{"):
        return None
    first = text.partition("\n")[0].rstrip()
    # A record that is broken off ends anywhere; an object laid out over lines breaks only after these.
    return "values" if first.endswith(("{", "[", ",")) else "lines"


def encoding_guess(raw: bytes) -> str:
    """The likely encoding of bytes that are no UTF-8, by the name iconv knows; "?" when unsure."""
    if raw.startswith(UTF16):
        return "UTF-16"
    for name in ("gbk", "gb18030", "big5"):
        try:
            codecs.getincrementaldecoder(name)().decode(raw, final=False)
        except UnicodeDecodeError:
            continue
        return name.upper()
    return "?"
