"""Did you mean ...: paths that look like one that is not there."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

from tengtune.ui import language

MOST_NAMES = 10_000
"""So many names of a folder are looked at."""


def similar(path: Path, folders: bool = False) -> list[Path]:
    """At most three paths that are there and differ from `path` in its first part that is not; folders: only
    those that are folders."""
    there = next((place for place in path.parents if place.is_dir()), None)
    if there is None:
        return []
    wanted, *rest = path.relative_to(there).parts
    try:
        with os.scandir(there) as entries:
            names = [entry.name for entry, _ in zip(entries, range(MOST_NAMES), strict=False)]
    except OSError:
        return []
    near = difflib.get_close_matches(wanted.lower(), {name.lower() for name in names}, n=3, cutoff=0.6)
    chosen = sorted((n for n in names if n.lower() in near), key=lambda n: near.index(n.lower()))
    found = [there.joinpath(name, *rest) for name in chosen if not name.startswith(".")]
    return [each for each in found if (each.is_dir() if folders else each.exists())][:3]


def did_you_mean(path: Path, folders: bool = False) -> str:
    """The question as a text with a blank behind it; "" where nothing looks like the path."""
    try:
        found = similar(path, folders)
    except OSError:  # a folder that may not be looked into, a name that is too long
        return ""
    either = language.say("ui.or_quoted")
    return language.say("ui.did_you_mean", near=either.join(map(str, found))) if found else ""
