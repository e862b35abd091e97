"""What the training loop asks of the processes that share a training; alone, there is nothing to ask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Ranks(Protocol):
    """The processes of a training: this one is number `rank` of `world`. Every rank must call every method
    in the same order; a rank that is gone shows as Problem cluster.peer_lost."""

    rank: int
    world: int

    def total(self, values: Sequence[float]) -> list[float]:
        """Each value summed over all ranks, in float64."""
        ...

    def most(self, value: int) -> int:
        """The largest of all ranks' values. No rank goes on before all have come here."""
        ...

    def gather(self, value: str) -> list[str]:
        """Every rank's text, in the order of their numbers."""
        ...


class Alone:
    """The one process of a training in one process."""

    rank = 0
    world = 1

    def total(self, values: Sequence[float]) -> list[float]:
        """The values themselves."""
        return list(values)

    def most(self, value: int) -> int:
        """The value itself."""
        return value

    def gather(self, value: str) -> list[str]:
        """The text itself."""
        return [value]
