"""The record formats: which key tells one, and how it becomes messages. A new format is a new module here."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from tengtune.data.fault import Note, Unfit
from tengtune.data.formats import alpaca, turns
from tengtune.data.formats.values import as_object
from tengtune.text.conversation import Message


@dataclass(frozen=True)
class Format:
    """A record format. mark: the key whose presence tells it.

    read(record, note) gives the messages and raises Unfit where it cannot; unused(record) names the
    keys of a record that could be read which were not looked at.
    """

    mark: str
    read: Callable[[dict[str, Any], Note], tuple[Message, ...]]
    unused: Callable[[dict[str, Any]], Iterable[str]]


FORMATS: dict[str, Format] = {
    "alpaca": Format("instruction", alpaca.read, alpaca.unused),
    **{key: Format(key, turns.reader(key), turns.unused(key)) for key in ("messages", "conversations")},
}


def choose(record: Any, wanted: str) -> Format:
    """The format of a record: the one that is `wanted`, or with "auto" the one its keys tell.

    Raises Unfit when the record is no object or has no such key.
    """
    keys = as_object(record, "record").keys()
    names = FORMATS if wanted == "auto" else [wanted]
    for name in names:
        if FORMATS[name].mark in keys:
            return FORMATS[name]
    raise Unfit("no_format", keys=", ".join(sorted(map(str, keys))) or "-", expected=expected(wanted))


def expected(wanted: str) -> str:
    """The keys a record must have one of, for messages to the user."""
    return ", ".join(format.mark for name, format in FORMATS.items() if wanted in ("auto", name))
