"""A file of mindformers' while it is read: its values, and what became of each key."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from tengtune.mindformers import table
from tengtune.mindformers.notes import Note
from tengtune.mindformers.table import Tree
from tengtune.models.spec import Family
from tengtune.recipe_fault import place
from tengtune.run_yaml import Lines
from tengtune.ui.language import say
from tengtune.ui.problems import Problem

_LONGEST = 100


class Taken(NamedTuple):
    """A key of theirs that says something here: ours, with its value."""

    theirs: str
    value: Any
    ours: str
    own: Any


class Left(NamedTuple):
    """A key of theirs that says nothing here; why: mindformers.why_<word>."""

    theirs: str
    value: Any
    why: str


@dataclass
class Reading:
    """What became of a file: our values by "group.key", and what is told of theirs. `data` is what will be
    trained on, where that was named."""

    path: Path
    tree: Tree
    lines: Lines
    family: Family
    data: Path | None = None
    values: dict[str, Any] = field(default_factory=dict)
    taken: list[Taken] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)

    def at(self, path: str, default: Any = None) -> Any:
        """Their value, None for a key that is there and empty."""
        return table.value(self.tree, path, default)

    def checked(self, path: str, codec: Callable[[Any], Any], default: Any = None) -> Any:
        """Their value as a codec reads it, the default where there is none; Problem with its line."""
        found = self.at(path)
        if found is None:
            return default
        try:
            return codec(found)
        except ValueError as error:
            raise Problem(
                "mindformers.bad_value",
                where=place(self.path, self.lines, table.way(self.tree, path) or ()),
                key=path,
                value=shown(found),
                reason=say(f"mindformers.wanted_{error}"),
            ) from error

    def take(self, ours: str, own: Any, *theirs: str) -> None:
        """Take `own` for our key because of their keys, those that are there; where none is, because of the
        default of the first."""
        self.values[ours] = own
        there = [path for path in theirs if self.at(path) is not None]
        self.taken += [Taken(path, self.at(path), ours, own) for path in there or theirs[:1]]

    def alike(self, own: str, theirs: str) -> None:
        """Their key says what no key of ours says, and what is so here in any case."""
        self.taken.append(Taken(theirs, self.at(theirs), "-", own))

    def note(self, kind: Literal["none", "changed", "trap"], key: str, name: str, **values: object) -> None:
        self.notes.append(Note(kind, key, name, values))

    def left(self) -> list[Left]:
        """All keys that were not taken."""
        used, words = {each.theirs for each in self.taken}, table.known()["unmapped"]
        return [
            Left(path, value, table.longest(path, words) or "unknown")
            for path, _, value in table.leaves(self.tree)
            if not any(f"{path}.".startswith(f"{key}.") or key.startswith(f"{path}.") for key in used)
        ]


def gathered(left: list[Left], taken: list[Taken]) -> dict[str, list[str]]:
    """Each reason with its keys; where all keys of a part have one reason, the part: `context.*`."""
    whys: dict[str, set[str]] = {}
    entries = [(each.theirs, each.why) for each in left]
    for path, why in [*entries, *((each.theirs, "") for each in taken)]:
        for beginning in _beginnings(path):
            whys.setdefault(beginning, set()).add(why)
    table: dict[str, list[str]] = {}
    for path, why in entries:
        part = next(beginning for beginning in _beginnings(path) if whys[beginning] == {why})
        name = path if part == path else f"{part}.*"
        if name not in table.setdefault(why, []):
            table[why].append(name)
    return table


def _beginnings(path: str) -> list[str]:
    """`a.b.c`: a, a.b, a.b.c."""
    parts = path.split(".")
    return [".".join(parts[: length + 1]) for length in range(len(parts))]


def shown(value: Any) -> str:
    """A value of theirs in a line; a dash where there is none."""
    if value is None:
        return "-"
    return json.dumps(value, ensure_ascii=False, default=str)[:_LONGEST]
