"""What is wrong with a run file, in our words: pydantic's faults as Problems with the line of the key."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tengtune.run_yaml import KeyPath, Lines
from tengtune.ui.language import say
from tengtune.ui.problems import Problem

_LONGEST = 200
_COMMA = re.compile(r"[-+]?\d*,\d+([eE][-+]?\d+)?")
"""A number with a decimal comma."""
_REASONS = {
    "int_type": "whole_number",
    "float_type": "number",
    "finite_number": "finite",
    "bool_type": "bool",
    "string_type": "text",
    "list_type": "list",
    "dict_type": "mapping",
    "model_type": "mapping",
    "literal_error": "choice",
    "greater_than": "above",
    "greater_than_equal": "at_least",
    "less_than": "below",
    "less_than_equal": "at_most",
    "too_short": "empty",
    "folder_name": "folder_name",
    "folder_characters": "folder_characters",
}
"""pydantic's type of a fault -> our reason, `recipe.reason_<name>`."""
_LIMITS = ("gt", "ge", "lt", "le")


def place(path: Path, lines: Lines, at: KeyPath) -> str:
    """file:line of the key, or of the nearest key around it; line 0 marks `--set`."""
    for length in range(len(at), -1, -1):
        line = lines.get(at[:length])
        if line is not None:
            return f"--set {'.'.join(map(str, at))}" if line == 0 else f"{path}:{line}"
    return str(path)


def problem(
    error: ValidationError, path: Path, lines: Lines, values: dict[str, Any], known: Sequence[str]
) -> Problem:
    """The first fault pydantic found, as a screen. known: all keys of a run file."""
    # A misspelt key is also a missing one: the spelling is what the user can see.
    fault = min(error.errors(), key=lambda each: each["type"] != "extra_forbidden")
    at: KeyPath = tuple(fault["loc"])
    if isinstance(values.get("model"), str) and at[:1] == ("model",):
        at = ("model",)
    where, key = place(path, lines, at), ".".join(map(str, at))
    if fault["type"] == "extra_forbidden":
        return unknown_key(key, where, known)
    if fault["type"] == "missing":
        return Problem("recipe.missing", where=where, key=key)
    shown = json.dumps(fault.get("input"), ensure_ascii=False, default=str)
    reason = _reason(fault["type"], fault.get("ctx", {}))
    written = str(fault.get("input"))
    if fault["type"] in ("float_type", "int_type") and _COMMA.fullmatch(written):
        reason = say("recipe.reason_comma", number=written.replace(",", "."))
    return Problem("recipe.bad_value", where=where, key=key, value=shown[:_LONGEST], reason=reason)


def unknown_key(key: str, where: str, known: Sequence[str]) -> Problem:
    """There is no such key; the nearest one is named."""
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.5) or [
        full for full in known if full.split(".")[-1] == key.split(".")[-1]
    ]
    nearest = say("recipe.nearest", near=near[0]) if near else ""
    return Problem("recipe.unknown_key", where=where, key=key, nearest=nearest)


def _reason(kind: str, values: dict[str, Any]) -> str:
    """Why a value does not fit."""
    limit = next((values[name] for name in _LIMITS if name in values), 0)
    choices = str(values.get("expected", "")).replace("'", "").replace(" or ", ", ")
    return say(f"recipe.reason_{_REASONS.get(kind, 'other')}", limit=f"{limit:.12g}", choices=choices)
