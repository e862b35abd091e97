"""A run file's text with other values, its comments and its order left as they are."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from tengtune import run_yaml

Keys = tuple[str, ...]
Tree = dict[str, Any]


def rewritten(text: str, path: Path, wanted: Tree) -> str:
    """The text of the run file `path` with the values of `wanted`. Only what differs is touched; where that
    cannot be done in place (an anchor used twice, say), all is written anew, without the comments."""
    before, _ = run_yaml.parse(text, path)
    known = dict(_leaves(before))
    made = text
    try:
        for keys, value in _leaves(wanted):
            if keys not in known or known[keys] != value:
                made = _with(made, keys, value)
        if run_yaml.parse(made, path)[0] == wanted:
            return made
    except (yaml.YAMLError, _OddError):
        pass
    return yaml.safe_dump(copy.deepcopy(wanted), allow_unicode=True, sort_keys=False)


class _OddError(Exception):
    """A place in the file that cannot be changed in place."""


def _leaves(tree: Mapping[str, Any], above: Keys = ()) -> Iterator[tuple[Keys, Any]]:
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, (*above, key))
        else:
            yield (*above, key), value


def _with(text: str, keys: Keys, value: Any) -> str:
    """The text with one value changed or put in."""
    node = yaml.compose(text, Loader=yaml.SafeLoader)
    assert node is not None  # a run file has keys
    for depth, key in enumerate(keys):
        if not isinstance(node, yaml.MappingNode):
            return _replaced(text, node, _nested(keys[depth:], value))
        inner = next((pair[1] for pair in node.value if pair[0].value == key), None)
        if inner is None:
            return _put_in(text, node, keys[depth:], value, top=depth == 0)
        node = inner
    return _replaced(text, node, value)


def _replaced(text: str, node: yaml.Node, value: Any) -> str:
    start, end = node.start_mark.index, node.end_mark.index
    blank = " " if start == end else ""  # a key without a value
    return f"{text[:start]}{blank}{_shown(value)}{text[end:]}"


def _put_in(text: str, node: yaml.MappingNode, keys: Keys, value: Any, top: bool) -> str:
    """A key that is not there: before the first one of its group; a group that is not there at the end."""
    if node.flow_style:
        place = node.start_mark.index + 1
        comma = ", " if node.value else ""
        return f"{text[:place]}{keys[0]}: {_shown(_nested(keys[1:], value))}{comma}{text[place:]}"
    if not node.value:
        raise _OddError
    if top and len(keys) > 1:
        lines = "".join(f"{'  ' * depth}{key}:\n" for depth, key in enumerate(keys[:-1]))
        lines += f"{'  ' * (len(keys) - 1)}{keys[-1]}: {_shown(value)}\n"
        return text.rstrip("\n") + "\n" + lines
    first = node.value[0][0].start_mark
    line = f"{keys[0]}: {_shown(_nested(keys[1:], value))}\n{' ' * first.column}"
    return text[: first.index] + line + text[first.index :]


def _nested(keys: Keys, value: Any) -> Any:
    for key in reversed(keys):
        value = {key: value}
    return value


def _shown(value: Any) -> str:
    """A value as YAML on one line; plain words without quotes."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_shown(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, str) and value.isidentifier() and run_yaml.parse_scalar(value) == value:
        return value
    return json.dumps(value, ensure_ascii=False)
