"""Versions as Ascend's packages write them, in order: 24.1.rc2.2, 25.0.RC1, 9.1.0-beta.3, 2.7.1.post2."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import zip_longest

_PART = re.compile(r"(?:(alpha|beta|rc|post|spc|b)[.]?)?([0-9]{1,9})")
_RANK = {"alpha": -3, "beta": -2, "b": -2, "rc": -1, None: 1, "post": 2, "spc": 2}
_NO_MORE = (0, 0)
"""What stands where the shorter of two versions ends: above its release candidates, below its patches."""


def key(version: str) -> list[tuple[int, int]] | None:
    """Something to compare by (see `older`); None for a text that is no version."""
    text = re.sub(r"(?<=\d)(?=(?:rc|post)\d)", ".", version.lower().partition("+")[0])
    parts = re.sub(r"[.-](?=(?:alpha|beta)\b)|[.-]", ".", text)
    parts = re.sub(r"(alpha|beta)\.(?=\d)", r"\1", parts)
    found = [_PART.fullmatch(part) for part in parts.split(".")]
    if not found or found[0] is None or found[0][1]:
        return None
    result = []
    for match in found:
        if match is None:
            return None
        result.append((_RANK[match[1]], int(match[2])))
    return result


def older(version: str, other: str) -> bool | None:
    """Whether a version came before another; None where one of the two is no version."""
    left, right = key(version), key(other)
    if left is None or right is None:
        return None
    pairs = list(zip_longest(left, right, fillvalue=_NO_MORE))
    return [a for a, _ in pairs] < [b for _, b in pairs]


def same(version: str, pattern: str) -> bool:
    """Whether a version is the one written, in either case; "25.3.X" stands for all that begin with 25.3."""
    version, pattern = version.lower(), pattern.lower()
    if pattern.endswith(".x"):
        return version.startswith(pattern[:-1]) or version == pattern[:-2]
    return version == pattern or (key(version) is not None and key(version) == key(pattern))


def among(version: str, patterns: Iterable[str]) -> bool:
    """Whether one of the patterns stands for it."""
    return any(same(version, pattern) for pattern in patterns)


def within(version: str, first: str, last: str) -> bool | None:
    """Whether a version lies in a range; its last may be "9.2.X". None where that cannot be told."""
    before = older(version, first)
    after = False if same(version, last) else older(last.lower().removesuffix(".x"), version)
    return None if before is None or after is None else not before and not after


def base(version: str) -> str:
    """ "2.7.1.post2+cpu" -> "2.7.1": the release that a patch or a build is of."""
    match = re.match(r"\d+(?:\.\d+)*", version)
    return match[0] if match else version
