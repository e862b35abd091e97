"""A run file with other values: comments and order stay, and the values are those that were asked for."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import EXAMPLES

from tengtune import run_yaml
from tengtune.plan.rewrite import rewritten

FILE = Path("run.yaml")
BLOCK = """# head
model: a/b   # mine
data: d.json

train:
  # why
  micro_batch: 2   # two
  recompute: full
parallel: {ranks: 4, zero: 3}   # flow
lora:
"""


def values(text: str) -> dict[str, Any]:
    return run_yaml.parse(text, FILE)[0]


def changed(text: str, **changes: Any) -> tuple[str, dict[str, Any]]:
    """The text with changes, `group__key=value`, and the values that it must have."""
    wanted = copy.deepcopy(values(text))
    for name, value in changes.items():
        group = wanted
        *above, last = name.split("__")
        for part in above:
            if not isinstance(group.get(part), dict):
                group[part] = {"path": group[part]} if part == "model" else {}
            group = group[part]
        group[last] = value
    return rewritten(text, FILE, wanted), wanted


@pytest.mark.parametrize(
    ("changes", "lines"),
    [
        ({"train__micro_batch": 4}, ["  micro_batch: 4   # two"]),
        ({"train__method": "full"}, ["  method: full"]),
        ({"parallel__zero": 0, "parallel__nodes": 2}, ["parallel: {nodes: 2, ranks: 4, zero: 0}   # flow"]),
        ({"backend": "mindspore"}, ["backend: mindspore"]),
        ({"model__dtype": "auto"}, ['model: {dtype: auto, path: "a/b"}   # mine']),
        ({"lora__base": "int8"}, ["lora: {base: int8}"]),
        ({"output__dir": "true"}, ["output:", '  dir: "true"']),
    ],
)
def test_only_what_differs_is_touched(changes: dict[str, Any], lines: list[str]) -> None:
    text, wanted = changed(BLOCK, **changes)
    assert values(text) == wanted
    before, after = BLOCK.splitlines(), text.splitlines()
    assert [line for line in after if line not in before] == lines
    assert [line for line in before if line not in after] == [] or len(after) == len(before)


def test_what_stands_twice_under_one_anchor_is_written_anew() -> None:
    text = "model: m\ndata: d\ntrain: &t {micro_batch: 2}\nlora: *t\n"
    made, wanted = changed(text, train__micro_batch=4)
    assert values(made) == wanted
    assert values(made)["lora"] == {"micro_batch": 2}


def test_nothing_to_change_changes_nothing() -> None:
    for path in EXAMPLES.glob("*.yaml"):
        text = path.read_text("utf-8")
        assert rewritten(text, path, values(text)) == text


NAMES = st.sampled_from(["backend", "train__micro_batch", "train__recompute", "lora__base", "parallel__zero"])
VALUES = st.one_of(
    st.integers(-5, 99), st.sampled_from(["full", "none", "no", "1e-4", "a: b", "中文", "#", ""])
)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.sampled_from(sorted(EXAMPLES.glob("*.yaml"))), st.dictionaries(NAMES, VALUES, min_size=1))
def test_examples_keep_their_comments(path: Path, changes: dict[str, Any]) -> None:
    text = path.read_text("utf-8")
    made, wanted = changed(text, **changes)
    assert values(made) == wanted
    comments = [line for line in text.splitlines() if line.startswith("#")]
    assert [line for line in made.splitlines() if line.startswith("#")] == comments
