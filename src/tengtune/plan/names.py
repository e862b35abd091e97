"""How people write names of cards and machines, and how many: what is the same in all of these ways."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

_TIMES = r"\s*[x×*]\s*"
_COUNTED = re.compile(
    rf"(?:(\d{{1,5}}){_TIMES}(?=\d+{_TIMES}))?(?:(\d{{1,5}}){_TIMES})?(.+?)(?:{_TIMES}(\d{{1,5}}))?", re.ASCII
)
# As sentences have it: 2 台 8 卡, 4 张, 2 servers of, 8 cards of; before the name or behind it.
_MACHINES = re.compile(
    r"(?<![\w.])(\d{1,5})\s*(?:台|机|个?节点|(?:machines?|servers?|nodes?)\b)(?:的|\s*of\b)?", re.ASCII
)
_CARDS = re.compile(
    r"(?<![\w.])(\d{1,5})\s*(?:[张块]卡|[张块片卡]|(?:cards?|npus?)\b)(?:的|\s*of\b)?", re.ASCII
)
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


def counted(text: str) -> Counted | None:
    """The numbers of "4x NAME", "NAME*4", "2x8x NAME", "8张NAME", "2台NAME", "2 servers of NAME"; None where
    they contradict each other or are 0."""
    plain = folded(text)
    said: dict[str, int] = {}
    for key, pattern in (("machines", _MACHINES), ("cards", _CARDS)):
        match = pattern.search(plain)
        if match is not None:
            said[key] = int(match[1])
            plain = f"{plain[: match.start()]} {plain[match.end() :]}".strip(" ,")
    match = _COUNTED.fullmatch(plain)
    if match is None:
        return None
    machines, before, name, after = match.groups()
    if (before and after) or ((before or after) and "cards" in said) or (machines and said):
        return None
    number = before or after
    if number and (machines or "machines" in said):
        said["cards"], number = int(number), None
    if machines:
        said["machines"] = int(machines)
    found = Counted(name.strip(), said.get("machines"), said.get("cards"), int(number) if number else None)
    return None if 0 in (found.machines, found.cards, found.number) else found


def folded(text: str) -> str:
    """Small letters; wide letters, digits and marks as usual ones."""
    return unicodedata.normalize("NFKC", text).strip().lower()


def key(name: str) -> str:
    """A name without what writers add or leave out: case, makers, blanks and marks, "Atlas", "Model"."""
    words = _MARKS.sub(" ", _MAKERS.sub(" ", folded(name)))
    return _NOISE.sub("", words).replace(" ", "").removeprefix("atlas")
