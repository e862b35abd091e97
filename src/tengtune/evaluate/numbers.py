"""The number an answer ends with, as GSM8K (openai/grade-school-math) marks it: "#### 18"."""

from __future__ import annotations

import re
import unicodedata
from decimal import Decimal

MARK = "####"
_NUMBER = re.compile(r"-?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|-?\.\d+")


def final_number(text: str) -> Decimal | None:
    """The first number after the last "####", else the last number of the text; None when there is none.

    "1,234.50", "$1234.5" and full-width digits are read; "5-3" ends in 3, not in -3.
    """
    plain = unicodedata.normalize("NFKC", text).replace("\u2212", "-")
    marked = _numbers(plain.rpartition(MARK)[2]) if MARK in plain else []
    found = marked[:1] or _numbers(plain)[-1:]
    return found[0] if found else None


def _numbers(text: str) -> list[Decimal]:
    values = []
    for match in _NUMBER.finditer(text):
        number = match[0].replace(",", "")
        if number.startswith("-") and re.search(r"[\d)]\s*$", text[: match.start()]):
            number = number[1:]  # a minus after a number subtracts
        values.append(Decimal(number))
    return values
