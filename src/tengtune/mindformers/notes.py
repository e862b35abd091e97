"""What is told beside a file: what the other side cannot express, and the traps on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from tengtune.ui import language


def one_line(text: str) -> str:
    """A text for a comment, whatever names and values are in it: what would end the line, or what YAML does
    not take, becomes a question mark."""
    return "".join(character if character.isprintable() else "?" for character in text)


@dataclass(frozen=True)
class Note:
    """`kind`: none (no counterpart), changed (expressed otherwise), trap. `name` is a text's name,
    mindformers.<name>; `key` is the key it is about."""

    kind: Literal["none", "changed", "trap"]
    key: str
    name: str
    values: Mapping[str, object] = field(default_factory=dict)

    @property
    def code(self) -> str:
        return f"mindformers.{self.name}"

    @property
    def text(self) -> str:
        """In the language in force."""
        return language.say(self.code, **self.values)
