"""How people write names of cards and machines, and how many: what is the same in all of these ways."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

_TIMES = r"\s*[x×*]\s*"
_SOME = r"[-+]?\d+(?:\.\d+)?"  # what stands where a count belongs, be it one or not
_COUNTED = re.compile(
    rf"(?:({_SOME}){_TIMES}(?={_SOME}{_TIMES}))?(?:({_SOME}){_TIMES})?(.+?)(?:{_TIMES}({_SOME}))?", re.ASCII
)
_ALONE = (
    r"(?<![\w.])((?:(?:^|(?<=\s))[-+])?\d+(?:\.\d+)?)"  # no sign: what joins it to a name, as in 910b4-8卡
)
# As sentences have it: 2 台 8 卡, 4 张, 2 servers of, 8 cards of; before the name or behind it.
_MACHINES = re.compile(
    rf"{_ALONE}\s*(?:台|机|个?节点|(?:machines?|servers?|nodes?)\b)(?:的|\s*of\b)?", re.ASCII
)
_CARDS = re.compile(rf"{_ALONE}\s*(?:[张块个]卡|[张块片卡个]|(?:cards?|npus?)\b)(?:的|\s*of\b)?", re.ASCII)
# Chinese numerals, as far as they count machines or cards.
_DIGITS = {digit: value for value, digit in enumerate("零一二三四五六七八九")} | {
    "〇": 0,
    "两": 2,
    "单": 1,
    "双": 2,
}
_TENS = {"十": 10, "百": 100, "千": 1000}
_NUMERAL = re.compile(rf"[{''.join([*_DIGITS, *_TENS])}]{{1,9}}(?=\s*(?:[台机张块片卡个]|节点))")
MOST = 99_999
"""Of cards or machines; more is a slip of the hand."""
_MAKERS = re.compile("huawei|nvidia|ascend|geforce|华为|昇腾|英伟达")
_NOISE = re.compile(
    r"\b(?:sxm\d?|pcie|npus?|gpus?|cards?|of|model|training|servers?)\b|型号|训练卡|训练|服务器|卡", re.ASCII
)
_MARKS = re.compile(r"[-_/.,()\s]+")


@dataclass(frozen=True)
class Counted:
    """A name with what was said of how many: machines and cards of each, or a mere number, which is one
    or the other."""

    name: str
    machines: int | None = None
    cards: int | None = None
    number: int | None = None


class BadCountError(ValueError):
    """No whole number of cards or machines, or two that contradict each other."""


def counted(text: str) -> Counted | None:
    """The numbers of "4x NAME", "NAME*4", "2x8x NAME", "8张NAME", "两台NAME", "2 servers of NAME"; None where
    there is no name; BadCountError."""
    plain = _NUMERAL.sub(lambda found: str(_numeral(found[0])), folded(text))
    said: dict[str, int] = {}
    for key, pattern in (("machines", _MACHINES), ("cards", _CARDS)):
        match = pattern.search(plain)
        if match is not None:
            said[key] = _count(match[1])
            plain = f"{plain[: match.start()]} {plain[match.end() :]}".strip(" ,")
    match = _COUNTED.fullmatch(plain)
    if match is None:
        return None
    machines, before, name, after = match.groups()
    if (before and after) or ((before or after) and "cards" in said) or (machines and said):
        raise BadCountError
    number = before or after
    if number and (machines or "machines" in said):
        said["cards"], number = _count(number), None
    if machines:
        said["machines"] = _count(machines)
    alone = None if number is None else _count(number)
    return Counted(name.strip(), said.get("machines"), said.get("cards"), alone)


def _count(text: str) -> int:
    if not re.fullmatch(r"0*[1-9]\d{0,4}", text, re.ASCII):  # 1 to MOST
        raise BadCountError
    return int(text)


def _numeral(text: str) -> int:
    """十六: 16, 一百二十八: 128; without tens digits in a row: 一六 is 16, too."""
    if not any(sign in _TENS for sign in text):
        return int("".join(str(_DIGITS[sign]) for sign in text))
    total, digit = 0, 0
    for sign in text:
        if sign in _TENS:
            total, digit = total + (digit or 1) * _TENS[sign], 0
        else:
            digit = _DIGITS[sign]
    return total + digit


def folded(text: str) -> str:
    """Small letters; wide letters, digits and marks as usual ones."""
    return unicodedata.normalize("NFKC", text).strip().lower()


def key(name: str) -> str:
    """A name without what writers add or leave out: case, makers, blanks and marks, "Atlas", "Model"."""
    words = _MARKS.sub(" ", _MAKERS.sub(" ", folded(name)))
    return _NOISE.sub("", words).replace(" ", "").removeprefix("atlas")
