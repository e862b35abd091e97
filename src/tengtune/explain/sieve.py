"""Which places of a large text may hold one of many texts, several times faster than a regular expression.

Of each text seven bytes in a row are chosen. Wherever it stands, one of the two groups of six in them begins
at an even place; so only even places are looked at, all of a block at once: four bytes, mixed to 16 bits, are
looked up in a table, and the few groups that pass are compared in full. Texts of less than seven bytes go by
five and four.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

Owner = TypeVar("Owner", bound=Hashable)
Pairs = npt.NDArray[np.uint16]
_MIX = np.uint16(40503)
_COMMON = b"etaoinsr0 "
_WORDS = (b"fail", b"iled", b"rror", b"RROR", b"xcept", b"Task", b"evice", b"emory", b"time")
"""Pieces of the words that logs are full of."""
SHORTEST = 5


class Sieve(Generic[Owner]):
    """`Sieve([(text, owner), ...])`; every text has SHORTEST bytes or more."""

    def __init__(self, texts: Iterable[tuple[bytes, Owner]]) -> None:
        self._owners: dict[int, list[tuple[bytes, Owner]]] = {}
        for text, owner in texts:
            window = _rarest(text, 7 if len(text) >= 7 else SHORTEST)
            for group in {window[:-1], window[1:]}:
                self._owners.setdefault(int.from_bytes(group, "little"), []).append((text, owner))
        groups = np.array(sorted(self._owners), np.uint64)
        self._short, self._long = groups[groups < 1 << 32], groups[groups >= 1 << 32]
        self._table = np.zeros(1 << 16, np.bool_)
        low, high = ((groups >> np.uint64(shift)).astype(np.uint16) for shift in (0, 16))
        self._table[_mixed(low, high)] = True

    def places(self, data: bytes, start: int, stop: int) -> Iterator[tuple[int, list[tuple[bytes, Owner]]]]:
        """Even places in data[start:stop] where a text may stand, in order, with what it may be. A place is
        within the text, which may begin before it and reach beyond `stop`: so data may be looked through part
        by part, if its begin stays an even one."""
        start += start % 2
        count, wanted = (len(data) - start) // 2, (stop - start + 1) // 2
        if count < 2 or wanted < 1 or not self._owners:
            return
        pairs: Pairs = np.frombuffer(data, "<u2", count, start)
        mixed = _mixed(pairs[:-1][:wanted], pairs[1:][:wanted])
        passed = np.flatnonzero(np.take(self._table, mixed, mode="clip"))
        four = pairs[passed].astype(np.uint64) | pairs[passed + 1].astype(np.uint64) << np.uint64(16)
        third = pairs[np.minimum(passed + 2, count - 1)].astype(np.uint64)
        found = [
            _within(self._short, four, passed),
            _within(self._long, four | third << np.uint64(32), passed),
        ]
        for place, group in sorted(each for some in found for each in some):
            yield start + 2 * place, self._owners[group]


def lines_between(data: bytes, start: int, stop: int) -> int:
    """How many lines end in data[start:stop]."""
    if stop - start < 1 << 12:
        return data.count(b"\n", start, stop)
    return int(np.count_nonzero(np.frombuffer(data, np.uint8, stop - start, start) == 10))


def _within(
    known: npt.NDArray[np.uint64], groups: npt.NDArray[np.uint64], places: npt.NDArray[np.intp]
) -> Iterator[tuple[int, int]]:
    """(place, group) of the groups that are known; `known` is sorted."""
    if not len(known):
        return iter(())
    right = known[np.minimum(np.searchsorted(known, groups), len(known) - 1)] == groups
    return zip(places[right].tolist(), groups[right].tolist(), strict=True)


def _mixed(low: Pairs, high: Pairs) -> Pairs:
    mixed: Pairs = low * _MIX
    mixed += high
    return mixed


def _rarest(text: bytes, width: int) -> bytes:
    """The bytes that ordinary lines are least likely to hold."""
    windows = [text[i : i + width] for i in range(len(text) - width + 1)]
    return max(windows, key=_rarity)


def _rarity(window: bytes) -> int:
    usual = sum(word in window for word in _WORDS)
    return len(set(window)) + sum(map(_weight, window)) - 6 * usual


def _weight(byte: int) -> int:
    if byte in _COMMON:
        return 0
    return 1 if chr(byte).islower() or chr(byte).isdigit() else 2
