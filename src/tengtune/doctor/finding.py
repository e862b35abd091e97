"""One thing that was judged: how it stands, why, and what mends it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from tengtune.host.survey import Card, Host
from tengtune.ui import language
from tengtune.ui.lists import joined

if TYPE_CHECKING:
    from tengtune.recipe import Recipe

Level = Literal["ok", "warn", "block", "unknown"]
Inputs = Literal["here", "elsewhere", "told"]


@dataclass(frozen=True)
class Finding:
    """`code` is the code of a text with what, and with why and fix unless all is well; `values` fill its
    placeholders."""

    level: Level
    code: str
    values: dict[str, object] = field(default_factory=dict)

    def texts(self) -> dict[str, str]:
        """{"what", "why", "fix"} in the language in force; what has no text is left out."""
        entry: dict[str, str] = language.lookup(self.code)
        return {part: language.fill(text, self.values) for part, text in entry.items()}

    def as_json(self) -> dict[str, str]:
        """The same for a program."""
        return {"level": self.level, "check": self.code.removeprefix("doctor."), **self.texts()}


def ok(code: str, **values: object) -> Finding:
    """It is as it should be."""
    return Finding("ok", code, values)


def warn(code: str, **values: object) -> Finding:
    """It may go wrong."""
    return Finding("warn", code, values)


def block(code: str, **values: object) -> Finding:
    """It will go wrong."""
    return Finding("block", code, values)


def unknown(code: str, **values: object) -> Finding:
    """It cannot be told."""
    return Finding("unknown", code, values)


@dataclass(frozen=True)
class Case:
    """What is judged: a host, and the run it is wanted for. seconds: how long a command was waited for;
    weights: bytes of the run's model where that is not on this machine's disk. inputs: whether the files that
    the run names are here, on the host that is judged elsewhere, or told of by its bundle."""

    host: Host
    recipe: Recipe | None = None
    seconds: float = 10.0
    weights: int | None = None
    inputs: Inputs = "here"

    @property
    def arch(self) -> str:
        """The machine type in the names of packages."""
        return self.host.machine.arch or "<arch>"

    def package(self, *names: str) -> Any:
        """The first of these packages that is installed, or None."""
        return next((self.host.python.packages[n] for n in names if n in self.host.python.packages), None)


def listed(cards: Sequence[Card]) -> str:
    """The numbers of cards."""
    return joined(str(card.number) for card in cards)


def chip_part(case: Case) -> str:
    """The chip in the names of CANN's operator packages."""
    names = [each.package for each in case.host.generations if each and each.package]
    return names[0] if names and names[0] else "<chip>"
