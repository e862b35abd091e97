"""How a value changes between a run file of ours and one of mindformers', both ways.

`theirs` takes our value; `ours` takes theirs and raises ValueError, whose text is the reason's name in
mindformers.wanted_<name>, for one that cannot be meant.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Codec:
    """Both directions of one kind of value."""

    theirs: Callable[[Any], Any]
    ours: Callable[[Any], Any]


def rounded(number: float) -> float:
    """To 12 digits: what a division adds in the 16th stays out of a file."""
    return float(f"{number:.12g}")


def plain(number: float) -> float | int:
    """A whole number as one: LoraConfig's alpha is an int."""
    return int(number) if float(number).is_integer() else number


def whole(value: Any) -> int:
    """A whole number, however it is written."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**32:
        raise ValueError("whole")
    return value


def count(value: Any) -> int:
    """A whole number from 1."""
    number = whole(value)
    if number < 1:
        raise ValueError("count")
    return number


def number(value: Any) -> float:
    """A number that is one, not below 0."""
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value < math.inf:
        raise ValueError("number")
    return float(value)


def flag(value: Any) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise ValueError("flag")
    return value


def _recompute(value: Any) -> str:
    """Which layers: all, none, so many, so many of each pipeline stage. Here it is all or none."""
    parts = value if isinstance(value, list) else [value]
    if not all(isinstance(part, (bool, int)) for part in parts):
        raise ValueError("flag")
    return "full" if any(parts) else "none"


CODECS = {
    "whole": Codec(int, whole),
    "epochs": Codec(math.ceil, count),
    "count": Codec(int, count),
    "number": Codec(float, number),
    "scale": Codec(plain, number),
    "recompute": Codec(lambda value: value == "full", _recompute),
    "limit": Codec(lambda value: value, lambda value: whole(value) or None),
}
"""By the names that facts/mindformers.yaml uses."""
