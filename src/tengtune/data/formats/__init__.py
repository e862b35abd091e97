"""The record formats: which keys tell one, and how it becomes messages. A new one is a new module and row."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from tengtune.data.fault import Notes
from tengtune.data.formats import alpaca, dolly, instances, pairs, plain, turns
from tengtune.data.formats.context import CONTEXT_KEYS
from tengtune.ui.lists import joined

ALIKE = 0.85
"""What difflib says of two names so that one is taken for the other, misspelt; beside keys that are known."""
SIMILAR = 0.8
"""The same where only names that make a whole format count."""

Read = Callable[[dict[str, Any], Notes], list[Any]]


@dataclass(frozen=True)
class Format:
    """A record format. marks: sets of keys, any of which tells it when all of its keys are there.

    read(record, notes) gives the messages and raises Unfit where it cannot; with `many` it gives the messages
    of several conversations. keys: all it looks at. tools: whether a record may offer tools.
    """

    marks: tuple[frozenset[str], ...]
    read: Read
    keys: frozenset[str]
    many: bool = False
    tools: bool = False

    def has_marks(self, keys: frozenset[str]) -> bool:
        """Whether a record with these keys is of this format."""
        return any(mark <= keys for mark in self.marks)


def _row(read: Read, keys: frozenset[str], *marks: str, many: bool = False, tools: bool = False) -> Format:
    """A format told by any of `marks`, each a key or several with "+" between."""
    return Format(tuple(frozenset(mark.split("+")) for mark in marks), read, keys, many, tools)


def _turns(*keys: str) -> Format:
    return _row(turns.reader(*keys), turns.KEYS | set(keys), *keys, tools=True)


def _pair(question: str, *answers: str) -> Format:
    keys = frozenset((question, *answers)) | CONTEXT_KEYS
    return _row(pairs.reader(question, *answers), keys, *(f"{question}+{answer}" for answer in answers))


FORMATS: dict[str, Format] = {
    "messages": _turns("messages"),
    "conversations": _turns("conversations", "conversation"),
    "instances": _row(instances.read, instances.KEYS, "instruction+instances", many=True),
    "dolly": _row(dolly.read, dolly.KEYS, "instruction+response"),
    "alpaca": _row(alpaca.read, alpaca.KEYS, "instruction", "input+output"),
    "query": _pair("query", "response"),
    "prompt": _pair("prompt", "completion", "response"),
    "question": _pair("question", "answer"),
    "text": _row(plain.read, plain.KEYS, "text"),
}
"""In the order in which they are tried."""

KEYS = frozenset().union(*(form.keys for form in FORMATS.values()))
NAMES = KEYS | turns.TURN_KEYS | turns.ROLES.keys()
"""What a user's own names can be mapped to: keys of records, keys of turns, roles."""


def choose(keys: Iterable[str], wanted: str = "auto") -> Format | None:
    """The format of a record with these keys: `wanted`, or with "auto" the first it has the marks of."""
    found = frozenset(keys)
    names = FORMATS if wanted == "auto" else [wanted]
    return next((FORMATS[name] for name in names if FORMATS[name].has_marks(found)), None)


def expected(wanted: str) -> str:
    """The keys a record must have, for messages to the user."""
    names = FORMATS if wanted == "auto" else [wanted]
    return joined("+".join(sorted(mark)) for name in names for mark in FORMATS[name].marks)


def probable(keys: Iterable[str], wanted: str) -> tuple[str, str] | None:
    """Of keys that are of no format: one that is probably misspelt, and the key that was meant, where mending
    what is misspelt makes them a format's."""
    names = FORMATS if wanted == "auto" else [wanted]
    marks = {key for name in names for mark in FORMATS[name].marks for key in mark}
    meant: dict[str, str] = {}
    for key in keys:
        lower = key.strip().lower()
        near = difflib.get_close_matches(lower[:40], sorted(marks), n=1, cutoff=SIMILAR)
        meant[key] = near[0] if near else lower
    changed = [(key[:40], near) for key, near in meant.items() if key.strip().lower() != near]
    return changed[0] if changed and choose(meant.values(), wanted) else None


def misspelt(keys: Iterable[str], form: Format) -> tuple[str, str] | None:
    """A key that is probably a misspelling of one the format reads and the record lacks, and that one."""
    keys = list(keys)
    lacking = sorted(form.keys.difference(keys))
    for key in keys:
        if key not in form.keys and lacking:
            near = difflib.get_close_matches(key[:40], lacking, n=1, cutoff=ALIKE)
            if near:
                return key[:40], near[0]
    return None
