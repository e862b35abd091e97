"""How an answer ends: at a stop string, or never, and why."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from tengtune.ui import language

LONGEST_PERIOD = 64
FEWEST_REPEATS = 3
FEWEST_REPEATED = 12
"""So many tokens at the end must be one repeated passage: "ha ha ha" is no loop yet."""
LONGEST_PASSAGE = 400
FEWEST_CHARACTERS = 40
"""The same for texts: what is shown is cut where a passage of at most so many characters fills the end."""
_SENTENCE_END = re.compile("[.!?。！？\n]")


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


def without_loop(text: str) -> tuple[str, int]:
    """The text up to the end of the first passage that is then repeated to the end, and how often it stands
    there; the text itself and 0 where its end is no loop."""
    found = _repeated(text, LONGEST_PASSAGE, FEWEST_CHARACTERS)
    if found is None:
        return text, 0
    period, same = found
    end = len(text) - same
    # The text before may end as the passage does, which then seems to begin earlier: end with a sentence.
    sentence = _SENTENCE_END.search(text, end - 1, end - 1 + period)
    return text[: sentence.end() if sentence else end], same // period + 1


def shown(text: str) -> str:
    """A text for a table: stripped, a loop at its end cut with "…" and the number of times it stood there."""
    kept, times = without_loop(text.strip())
    if not times:
        return kept
    return language.say("predict.looped", text=kept, loops=language.say("predict.loops", times=times))


def loop(ids: Sequence[int]) -> tuple[int, int] | None:
    """(tokens of the passage, how often it stands in a row) where the ids end in a repeated passage."""
    found = _repeated(ids, LONGEST_PERIOD, FEWEST_REPEATED)
    return None if found is None else (found[0], found[1] // found[0] + 1)


def _repeated(items: Sequence[object], longest: int, fewest: int) -> tuple[int, int] | None:
    """(length of the passage, number of items at the end that equal those a passage before), where the items
    end in a passage of at most `longest` that fills at least `fewest` of them."""
    for period in range(1, min(longest, len(items) // FEWEST_REPEATS) + 1):
        same = 0
        while same + period < len(items) and items[-1 - same] == items[-1 - same - period]:
            same += 1
        repeats = same // period + 1
        if repeats >= FEWEST_REPEATS and repeats * period >= fewest:
            return period, same
    return None
