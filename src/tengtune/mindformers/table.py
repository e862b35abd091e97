"""facts/mindformers.yaml, and the way to a key in one of mindformers' files.

A key's path is dotted, `optimizer.betas.0`; in a list of objects the object's `type` stands for its number,
`callbacks.MFLossMonitor.per_print_times`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tengtune import facts
from tengtune.run_yaml import KeyPath

Tree = dict[str, Any]
_ABSENT = object()
_LONGEST = 100


@dataclass(frozen=True)
class Row:
    """One thing that both say: our key, theirs (the first that is there), and the codec of the values."""

    ours: str
    theirs: tuple[str, ...]
    codec: str


def known() -> Tree:
    """facts/mindformers.yaml."""
    found: Tree = facts.tree("mindformers.yaml")
    return found


@functools.cache
def rows() -> tuple[Row, ...]:
    """The table of keys."""
    return tuple(Row(each["ours"], tuple(each["theirs"]), each["as"]) for each in known()["keys"])


def way(tree: Any, path: str) -> KeyPath | None:
    """The keys and numbers that lead to `path`; None where it is not there."""
    steps: list[str | int] = []
    for part in path.split("."):
        step: str | int | None = part
        if isinstance(tree, list):
            step = _in_list(tree, part)
            tree = _ABSENT if step is None else tree[step]
        else:
            tree = tree.get(part, _ABSENT) if isinstance(tree, dict) else _ABSENT
        if tree is _ABSENT or step is None:
            return None
        steps.append(step)
    return tuple(steps)


def _in_list(items: list[Any], part: str) -> int | None:
    if part.isdecimal():
        return int(part) if int(part) < len(items) else None
    return next(
        (i for i, item in enumerate(items) if isinstance(item, dict) and item.get("type") == part), None
    )


def value(tree: Any, path: str, default: Any = None) -> Any:
    """What stands at `path`, the default where nothing does."""
    steps = way(tree, path)
    if steps is None:
        return default
    found: Any = tree
    for step in steps:
        found = found[step]
    return found


def put(tree: Tree, path: str, new: Any) -> None:
    """Set `path`, whose last part alone may be new."""
    before, _, last = path.rpartition(".")
    holder: Any = value(tree, before) if before else tree
    if isinstance(holder, list):
        holder[int(last)] = new
    else:
        holder[last] = new


def drop(tree: Tree, path: str) -> None:
    """Take `path` out, where it is there."""
    before, _, last = path.rpartition(".")
    holder = value(tree, before) if before else tree
    if isinstance(holder, dict):
        holder.pop(last, None)


def leaves(tree: Any, path: str = "", at: KeyPath = ()) -> Iterator[tuple[str, KeyPath, Any]]:
    """Every value that is no object and no list of objects: its path, the way to it, and itself."""
    if isinstance(tree, dict) and tree:
        for key, inner in tree.items():
            name = _printable(key)
            yield from leaves(inner, f"{path}.{name}" if path else name, (*at, key))
    elif isinstance(tree, list) and tree and all(isinstance(item, dict) for item in tree):
        for number, item in enumerate(tree):
            kind = item.get("type")
            name = kind if isinstance(kind, str) else str(number)
            yield from leaves(item, f"{path}.{name}", (*at, number))
    else:
        yield path, at, tree


def _printable(name: str) -> str:
    """A name of a stranger's file as it is shown."""
    return "".join(character if character.isprintable() else "?" for character in name[:_LONGEST])


def longest(path: str, words: dict[str, str]) -> str | None:
    """The word of the longest beginning of `path` that `words` has."""
    parts = path.split(".")
    for length in range(len(parts), 0, -1):
        word = words.get(".".join(parts[:length]))
        if word is not None:
            return word
    return None
