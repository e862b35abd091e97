"""Reading YAML as people mean it, with the line of every key.

PyYAML's own rules read `1e-4` as a text, `no` as False and `12:30` as 750, and keep the last of two
equal keys in silence. Here a plain scalar is null, true/false, an int, a float (exponents included) or a
text, and nothing else; equal keys are refused.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import yaml

from tengtune.files import open_plain
from tengtune.ui.language import say
from tengtune.ui.problems import Problem, os_errors

KeyPath = tuple[str | int, ...]
Lines = dict[KeyPath, int]

_INT = re.compile(r"[-+]?\d[\d_]*\Z")
_FLOAT = re.compile(r"[-+]?(\d[\d_]*\.?\d*|\.\d+)([eE][-+]?\d+)?\Z")
_ODD = re.compile("[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")
_CONSTANTS = {"": None, "~": None, "null": None, "true": True, "false": False}
_REASONS = {
    "mapping values are not allowed": "colon",
    "cannot start any token": "tab",
    "could not find expected ':'": "no_colon",
    "expected <block end>": "indent",
    "expected ',' or": "bracket",
    "unexpected end of stream": "quote",
    "undefined alias": "alias",
    "found another document": "two",
}
"""What the YAML reader says -> our words for it, `recipe.yaml_<name>`."""
_DATA = (".json", ".jsonl", ".ndjson", ".csv", ".tsv", ".txt", ".parquet", ".gz")
MAX_BYTES = 1_000_000
MAX_NODES = 20_000
_LONGEST_INT = 100
"""Digits. A longer number stays a text, which no key takes for a number: Python reads none of thousands."""


def read_yaml(path: Path) -> tuple[dict[str, Any], Lines]:
    """The mapping in `path` and the line (from 1) of every key in it.

    Raises Problem: not UTF-8, not YAML, not a mapping, a key twice, a tag, absurdly large, a data file.
    """
    try:
        return _read(path)
    except Problem as problem:
        unread = ("recipe.not_utf8", "recipe.not_yaml", "recipe.not_mapping", "recipe.too_large")
        if problem.code in unread and path.suffix.lower() in _DATA:
            raise Problem("recipe.is_data", where=path, file=shlex.quote(path.name)) from problem
        raise


def _read(path: Path) -> tuple[dict[str, Any], Lines]:
    with os_errors(path), open_plain(path) as stream:
        raw = stream.read(MAX_BYTES + 1)
    if len(raw) > MAX_BYTES:
        raise Problem("recipe.too_large", where=path)
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Problem("recipe.not_utf8", where=path, byte=error.start) from error
    return parse(text, path)


def parse(text: str, path: Path) -> tuple[dict[str, Any], Lines]:
    """The same of the text of a file; `path` is what a Problem calls it."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else path
        reason = getattr(error, "problem", None) or getattr(error, "reason", None) or type(error).__name__
        raise Problem("recipe.not_yaml", where=place, reason=_reason(str(reason))) from error
    except RecursionError as error:
        raise Problem("recipe.too_large", where=path) from error
    if node is None or not isinstance(node, yaml.MappingNode):
        raise Problem("recipe.not_mapping", where=path)
    reader = _Reader(path)
    try:
        value = reader.convert(node, ())
    except RecursionError as error:  # an anchor inside itself
        raise Problem("recipe.too_large", where=path) from error
    return value, reader.lines


def _reason(said: str) -> str:
    """What the YAML reader says, in our words where we know it."""
    code = next((code for part, code in _REASONS.items() if part in said), "other")
    return say(f"recipe.yaml_{code}", said=said)


def parse_scalar(text: str) -> Any:
    """A plain scalar's value: null, true/false, int, float or the text itself."""
    if text.lower() in _CONSTANTS:
        return _CONSTANTS[text.lower()]
    if _INT.match(text) and len(text) <= _LONGEST_INT:
        return int(text.replace("_", ""))
    if _FLOAT.match(text) and not _INT.match(text):
        return float(text.replace("_", ""))
    return text


class _Reader:
    """Turns composed nodes into values and notes the line of each key."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: Lines = {}
        self.nodes = 0

    def convert(self, node: yaml.Node, at: KeyPath) -> Any:
        self.nodes += 1
        if self.nodes > MAX_NODES:  # also what an alias bomb runs into
            raise Problem("recipe.too_large", where=self.path)
        place = f"{self.path}:{node.start_mark.line + 1}"
        self.lines.setdefault(at, node.start_mark.line + 1)
        if not node.tag.startswith("tag:yaml.org,2002:") or "python" in node.tag:
            raise Problem("recipe.tag", where=place, tag=node.tag)
        if isinstance(node, yaml.ScalarNode):
            odd = _ODD.search(node.value)
            if odd:
                raise Problem("recipe.control_character", where=place, character=odd.group())
            return parse_scalar(node.value) if node.style is None else node.value
        if isinstance(node, yaml.SequenceNode):
            return [self.convert(item, (*at, i)) for i, item in enumerate(node.value)]
        assert isinstance(node, yaml.MappingNode)
        return self._mapping(node, at)

    def _mapping(self, node: yaml.MappingNode, at: KeyPath) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                raise Problem("recipe.key_not_text", where=f"{self.path}:{line}")
            key = str(key_node.value)
            if key in result:
                raise Problem("recipe.key_twice", where=f"{self.path}:{line}", key=key)
            self.lines[(*at, key)] = line
            result[key] = self.convert(value_node, (*at, key))
        return result
