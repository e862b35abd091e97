"""The cards a run file of mindformers is written for: `8x 910b`, `2x8x 910a`, `8`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from tengtune.mindformers.table import known
from tengtune.recipe import Recipe
from tengtune.ui.lists import joined
from tengtune.ui.problems import Problem

USUAL = "910b"
_SAME = str.maketrans({"×": "x", "*": "x", " ": "", "_": "-"})


@dataclass(frozen=True)
class Hardware:
    """`nodes` machines of `cards` cards each, all of one kind; memory in GB, for max_device_memory."""

    nodes: int
    cards: int
    kind: str
    memory: int
    bfloat16: bool
    flash: bool

    @property
    def ranks(self) -> int:
        return self.nodes * self.cards

    def __str__(self) -> str:
        return f"{f'{self.nodes}x ' if self.nodes > 1 else ''}{self.cards}x {self.kind}"


def of_run(recipe: Recipe) -> Hardware:
    """As many cards as the run file has ranks, of the usual kind."""
    nodes = recipe.parallel.nodes
    return _of(USUAL, nodes, recipe.parallel.ranks // nodes)


def parse(text: str) -> Hardware:
    """Problem for a text that is none, or cards we do not know."""
    kinds, aliases = known()["hardware"], known()["aliases"]
    parts = text.lower().translate(_SAME).split("x")
    named = parts[-1] in kinds or parts[-1] in aliases
    kind = aliases.get(parts[-1], parts[-1]) if named else USUAL
    numbers = parts[:-1] if named else parts
    if not 1 <= len(numbers) <= 2 or not all(
        re.fullmatch(r"0*[1-9]\d{0,3}", part, re.ASCII) for part in numbers
    ):
        raise Problem("mindformers.hardware", where=f"--hardware {text}", known=joined(kinds))
    nodes, cards = [1, *map(int, numbers)][-2:]
    return _of(kind, nodes, cards)


def _of(kind: str, nodes: int, cards: int) -> Hardware:
    values: dict[str, Any] = known()["hardware"][kind]
    return Hardware(nodes, cards, kind, values["memory"], values["bfloat16"], values["flash"])
