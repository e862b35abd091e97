"""Lists of cards in every notation people write: "[0,8)", "[0,8]", "0-7", "0,1,4", "0-3,6"."""

from __future__ import annotations

import re
import unicodedata

from tengtune.ui.problems import Problem

MOST = 1024
"""No machine has so many cards: a number beyond is a slip."""

_RANGE = re.compile(r"\[(\d{1,6}),(\d{1,6})([)\]])")
_PART = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?")


def parse(text: str) -> tuple[list[int], bool]:
    """The cards in their order, and whether the notation is one that is read in two ways: "[0,8]".

    That one is half-open like "[0,8)", as mindformers reads it from r1.1 on (r1.0 cannot read it). Commas and
    brackets may be full-width. Problem: anything else, a card twice, an empty range.
    """
    plain = unicodedata.normalize("NFKC", text).replace("、", ",")
    if gap := re.search(r"\d\s+\d", plain):  # "0 1" is not card 1
        raise Problem("ranktable.bad_cards", where=text, part=gap[0])
    plain = re.sub(r"\s", "", plain)
    if match := _RANGE.fullmatch(plain):
        cards = list(_range(int(match[1]), int(match[2]), text))
        return cards, match[3] == "]"
    cards = []
    for part in plain.split(","):
        match = _PART.fullmatch(part)
        if match is None:
            raise Problem("ranktable.bad_cards", where=text, part=part or ",")
        first = int(match[1])
        cards += _range(first, int(match[2] or first) + 1, text)
    if len(set(cards)) < len(cards):
        twice = next(card for card in cards if cards.count(card) > 1)
        raise Problem("ranktable.card_twice", where=text, card=twice)
    return cards, False


def _range(start: int, stop: int, text: str) -> range:
    if not start < stop <= MOST:
        raise Problem("ranktable.bad_cards", where=text, part=f"{start}..{stop}")
    return range(start, stop)
