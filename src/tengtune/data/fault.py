"""Fault: what is wrong with one record. Every record that is dropped, cut or odd leaves one behind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tengtune.ui import language

Note = Callable[..., None]
"""note(code, **values): a remark on a record that is kept all the same."""


@dataclass(frozen=True)
class Fault:
    """A remark on a record. `record` counts from 0 in its file, None for the file as a whole; `line`
    from 1. `dropped`: the record is not used. The reason's text is "data.<code>" in ui/messages."""

    file: str
    record: int | None
    line: int | None
    code: str
    values: dict[str, Any] = field(default_factory=dict)
    dropped: bool = True

    @property
    def where(self) -> str:
        """file, record and line, as a person writes them."""
        place = self.file if self.record is None else f"{self.file}:{self.record}"
        return f"{place} ({language.say('data.line', line=self.line)})" if self.line else place

    def reason(self) -> str:
        """What is wrong, in the current language. Holds keys, roles and numbers, never the record's text."""
        return language.say(f"data.{self.code}", **self.values)


class Unfit(Exception):
    """Raised while a record is converted: the record cannot be used, for this reason."""

    def __init__(self, code: str, **values: Any) -> None:
        super().__init__(code)
        self.code, self.values = code, values
