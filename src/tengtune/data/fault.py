"""Fault: what is wrong with one record. Every record that is dropped, cut or odd leaves one behind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tengtune.ui import language

Note = Callable[..., None]
"""note(code, **values): a remark on a record that is kept all the same."""


def place(file: str, record: int | None, line: int | None = None) -> str:
    """File, record and line, as a person writes them; not as file:line, which it would be taken for."""
    if record is None:
        return language.say("data.place_line", file=file, line=line) if line else file
    code = "data.place_record_line" if line else "data.place_record"
    return language.say(code, file=file, record=record, line=line)


@dataclass(frozen=True)
class Fault:
    """A remark on a record. `record` counts from 0 in its file, None for the file as a whole; `line`
    from 1. `dropped`: the record is not used, or the file is broken. The reason's text is "data.<code>" in
    ui/messages. `raw` is the text of a record that could not be read, where somebody asked for it."""

    file: str
    record: int | None
    line: int | None
    code: str
    values: dict[str, Any] = field(default_factory=dict)
    dropped: bool = True
    raw: str | None = None

    @property
    def costs_record(self) -> bool:
        """Whether a record is not used because of this; a fault of the whole file costs none by itself."""
        return self.dropped and self.record is not None

    @property
    def where(self) -> str:
        """file, record and line, as a person writes them."""
        return place(self.file, self.record, self.line)

    def reason(self) -> str:
        """What is wrong, in the current language. Holds keys, roles and numbers, never the record's text."""
        return language.say(f"data.{self.code}", **self.values)

    def told(self) -> str:
        """Where and what is wrong, in one line."""
        return language.say("data.reason_at", where=self.where, reason=self.reason())

    def fix(self) -> str:
        """What to do about it, in the current language; "" where nothing needs to be done."""
        code = f"check.fix_{self.code}"
        return language.say(code, **self.values) if code in language.area_messages("check") else ""

    def as_json(self) -> dict[str, Any]:
        """The same as data: one line of data/dropped.jsonl."""
        return {
            "file": self.file,
            "record": self.record,
            "line": self.line,
            "dropped": self.costs_record,
            "code": self.code,
            "reason": self.reason(),
        }


class Unfit(Exception):
    """Raised while a record is converted: the record cannot be used, for this reason."""

    def __init__(self, code: str, **values: Any) -> None:
        super().__init__(code)
        self.code, self.values = code, values


class Notes:
    """What was found on one record: called as a Note it takes a remark; `reject` takes a reason against the
    record and lets the reading go on, so that the next reason is found too. unused: names of keys inside the
    record that were not looked at."""

    __slots__ = ("found", "unused")

    def __init__(self) -> None:
        self.found: list[tuple[str, dict[str, Any], bool]] = []
        self.unused: list[str] = []

    def __call__(self, code: str, **values: Any) -> None:
        self.found.append((code, values, False))

    def reject(self, unfit: Unfit) -> None:
        """The record cannot be used."""
        self.found.append((unfit.code, unfit.values, True))

    @property
    def rejected(self) -> bool:
        """Whether something was found that forbids the record's use."""
        return any(dropped for _, _, dropped in self.found)

    def faults(self, file: str, record: int, line: int | None) -> list[Fault]:
        """What was found, as faults of this record."""
        return [Fault(file, record, line, code, values, dropped) for code, values, dropped in self.found]
