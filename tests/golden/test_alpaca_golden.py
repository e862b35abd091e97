"""Alpaca records against mindformers' alpaca_converter: its texts where it works, else a reason."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from tengtune.data.fault import Fault
from tengtune.data.read import Reader
from tengtune.text.conversation import Conversation
from tengtune.ui.problems import Problem

CASES: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent / "alpaca_converter" / "cases.json").read_text("utf-8")
)
NOT_TEXT = {"output_number", "output_null", "output_list", "nan_value", "instruction_null_no_input"}
"""The converter passes these on, and the next script ends on them."""
BETTER = {"extra_keys_dropped", "duplicate_key"}
"""The converter loses system and history, and one of two equal keys, without a word."""


def read(case: dict[str, Any], folder: Path) -> list[Conversation | Fault]:
    path = folder / "data.json"
    if "input_base64" in case:
        path.write_bytes(base64.b64decode(case["input_base64"]))
    else:
        path.write_bytes(case["input"].encode("utf-8"))
    items: list[Conversation | Fault] = []
    for item in Reader({"data.json": path}, "alpaca").read():
        items += [item] if isinstance(item, Fault) else [*item.conversations, *item.faults]
    return items


@pytest.mark.parametrize(
    "case",
    [c for c in CASES if "output" in c["expected"] and c["tag"] not in NOT_TEXT | BETTER],
    ids=lambda c: c["tag"],
)
def test_the_same_turns_as_the_converter(case: dict[str, Any], tmp_path: Path) -> None:
    expected = [
        [(turn["from"], turn["value"]) for turn in record["conversations"]]
        for record in json.loads(case["expected"]["output"])
    ]
    ours = [item for item in read(case, tmp_path) if isinstance(item, Conversation)]
    assert [[(m.role, m.content) for m in c.messages] for c in ours] == expected


WORKS_HERE = {
    "input_null": [("user", "a"), ("assistant", "b")],
    "instruction_empty_with_input": [("user", "y"), ("assistant", "x")],
    "instruction_null_with_input": [("user", "y"), ("assistant", "x")],
    "top_level_object": [("user", "a"), ("assistant", "b")],
    "top_level_wrapped": [("user", "a"), ("assistant", "b")],
    "utf8_bom": [("user", "a"), ("assistant", "b")],
    "extra_keys_dropped": [
        ("system", "x"),
        ("user", "q"),
        ("assistant", "r"),
        ("user", "a"),
        ("assistant", "b"),
    ],
}


@pytest.mark.parametrize("tag", WORKS_HERE)
def test_what_the_converter_loses_is_read(tag: str, tmp_path: Path) -> None:
    (case,) = (c for c in CASES if c["tag"] == tag)
    (ours,) = (item for item in read(case, tmp_path) if isinstance(item, Conversation))
    assert [(m.role, m.content) for m in ours.messages] == WORKS_HERE[tag]


DROPPED = {
    "output_number": "not_text",
    "output_null": "missing",
    "output_list": "not_text",
    "nan_value": "missing",
    "input_number": "not_text",
    "input_list_empty": "not_text",
    "instruction_missing": "missing",
    "output_missing": "missing",
    "duplicate_key": "key_twice",
    "record_is_string": "not_object",
    "record_is_null": "not_object",
    "openai_messages_format": "no_format",
    "sharegpt_format": "no_format",
}


@pytest.mark.parametrize("tag", DROPPED)
def test_what_cannot_be_read_has_a_reason(tag: str, tmp_path: Path) -> None:
    (case,) = (c for c in CASES if c["tag"] == tag)
    items = read(case, tmp_path)
    assert not any(isinstance(item, Conversation) for item in items)
    dropped = [item for item in items if isinstance(item, Fault) and item.dropped]
    assert [(fault.record, fault.code) for fault in dropped] == [(0, DROPPED[tag])]


def test_one_bad_record_costs_that_record_only(tmp_path: Path) -> None:
    (case,) = (c for c in CASES if c["tag"] == "one_bad_record_among_good")
    items = read(case, tmp_path)
    assert [i.source for i in items if isinstance(i, Conversation)] == ["data.json:0", "data.json:2"]
    (fault,) = (i for i in items if isinstance(i, Fault))
    assert (fault.record, fault.line, fault.code) == (1, 6, "missing")


@pytest.mark.parametrize("tag", ["empty_file", "gbk_bytes", "trailing_comma", "single_quotes"])
def test_a_broken_file_is_a_problem(tag: str, tmp_path: Path) -> None:
    (case,) = (c for c in CASES if c["tag"] == tag)
    with pytest.raises(Problem) as caught:
        read(case, tmp_path)
    code = {"empty_file": "data.empty_file", "gbk_bytes": "data.not_utf8"}.get(tag, "data.bad_json")
    assert caught.value.code == code
    assert str(tmp_path / "data.json") in str(caught.value.where)
