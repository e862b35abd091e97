"""How an answer ends: at a stop string, or never, and why."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

LONGEST_PERIOD = 64
FEWEST_REPEATS = 3
FEWEST_REPEATED = 12
"""So many tokens at the end must be one repeated passage: "ha ha ha" is no loop yet."""


class StopText:
    """Cuts a text that comes in pieces before the stop string that is complete first.

    What could be the beginning of one is held back, so the cut does not depend on how the text is divided.
    """

    def __init__(self, stops: Iterable[str]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._held = ""
        self.hit = False

    def put(self, piece: str) -> str:
        """The text that is certain by now; nothing more once `hit` is true."""
        text, self._held = self._held + piece, ""
        found = [(text.index(stop) + len(stop), text.index(stop)) for stop in self._stops if stop in text]
        if found:
            self.hit = True
            return text[: min(found)[1]]
        kept = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - kept :]
        return text[: len(text) - kept]

    def end(self) -> str:
        """What was held back when the text ended."""
        text, self._held = self._held, ""
        return text


def _overlap(text: str, stop: str) -> int:
    """Length of the longest proper beginning of `stop` with which `text` ends."""
    longest = min(len(text), len(stop) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(stop[:size])), 0)


def loop(ids: Sequence[int]) -> tuple[int, int] | None:
    """(tokens of the passage, how often it stands in a row) where the ids end in a repeated passage."""
    for period in range(1, min(LONGEST_PERIOD, len(ids) // FEWEST_REPEATS) + 1):
        same = 0
        while same + period < len(ids) and ids[-1 - same] == ids[-1 - same - period]:
            same += 1
        repeats = same // period + 1
        if repeats >= FEWEST_REPEATS and repeats * period >= FEWEST_REPEATED:
            return period, repeats
    return None
