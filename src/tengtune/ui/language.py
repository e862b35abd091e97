"""Which language the user reads, and the texts in it.

Texts live in `messages/<area>.yaml`, Chinese and English side by side under one code, so that a
change of one is seen beside the other. Only the area that is asked for is read.
"""

from __future__ import annotations

import functools
import os
import string
from collections.abc import Mapping
from importlib import resources
from typing import Any, Literal

Language = Literal["zh", "en"]
LANGUAGES: tuple[Language, ...] = ("zh", "en")

_chosen: Language | None = None


def choose(language: Language | None) -> None:
    """Set the language for this process (`--lang`); None goes back to the environment."""
    global _chosen
    _chosen = language


def current() -> Language:
    """The language in force: `--lang`, then TENGTUNE_LANG, then the locale; English otherwise."""
    if _chosen:
        return _chosen
    for variable in ("TENGTUNE_LANG", "LC_ALL", "LC_MESSAGES", "LANG"):
        value = os.environ.get(variable, "")
        if value:
            return "zh" if value.lower().startswith("zh") else "en"
    return "en"


@functools.cache
def area_messages(area: str) -> dict[str, Any]:
    """All texts of one area: {code: {"en": ..., "zh": ...}}."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    text = resources.files("tengtune.ui").joinpath("messages", f"{area}.yaml").read_text(encoding="utf-8")
    messages: dict[str, Any] = yaml.load(text, Loader=loader)
    return messages


def lookup(code: str) -> Any:
    """The entry of `code` ("area.name") in the current language: a text, or {what, why, fix}."""
    return area_messages(code.split(".", 1)[0])[code][current()]


def say(code: str, **values: object) -> str:
    """The one-line text of `code` with its {placeholders} filled."""
    return fill(str(lookup(code)), values)


def fill(text: str, values: Mapping[str, object]) -> str:
    """A text with its {placeholders} filled; {count:row|rows} gives "1 row", "2 rows"."""
    return _PLURALS.vformat(text, (), values) if "|" in text else text.format_map(values)


class _Plurals(string.Formatter):
    def format_field(self, value: Any, format_spec: str) -> str:
        one, bar, many = format_spec.partition("|")
        if not bar:
            return str(super().format_field(value, format_spec))
        return f"{value} {one if str(value) == '1' else many}"


_PLURALS = _Plurals()
