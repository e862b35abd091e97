"""Records to conversations: every format, every fault by name, and the messy files as their manifest says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.data_lab import judged

import tengtune
from tengtune.data.fault import Fault
from tengtune.data.read import Reader
from tengtune.recipe import LabelPolicy
from tengtune.text.conversation import Conversation
from tengtune.ui import language
from tengtune.ui.problems import Problem

MESSY = Path(__file__).resolve().parents[1] / "data" / "messy"
Turns = list[tuple[str, str]]


def read(
    path: Path, format: str = "auto", policy: LabelPolicy = "assistant"
) -> tuple[list[Conversation], list[Fault], Reader]:
    return judged({path.name: path}, format, policy)


def one(record: Any, folder: Path, format: str = "auto", policy: LabelPolicy = "assistant") -> Turns | str:
    """The turns of a single record, or the code it was dropped for."""
    path = folder / "data.json"
    path.write_text(json.dumps([record]), "utf-8")
    conversations, faults, _ = read(path, format, policy)
    dropped = [fault.code for fault in faults if fault.dropped]
    assert len(conversations) + len(dropped) == 1
    return dropped[0] if dropped else [(m.role, m.content) for m in conversations[0].messages]


def remarks(record: Any, folder: Path, policy: LabelPolicy = "assistant") -> list[str]:
    path = folder / "data.json"
    path.write_text(json.dumps([record]), "utf-8")
    return [fault.code for fault in read(path, policy=policy)[1] if not fault.dropped]


ASKED: Turns = [("user", "q"), ("assistant", "a")]
QUESTION, ANSWER = {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({"instruction": "q", "output": "a"}, ASKED),
        ({"instruction": "q.", "input": "x", "output": "a"}, [("user", "q: x"), ("assistant", "a")]),
        ({"instruction": "q", "input": None, "output": "a", "history": None, "system": ""}, ASKED),
        (
            {"instruction": "q", "output": "a", "system": "s", "history": [["h", "r"]]},
            [("system", "s"), ("user", "h"), ("assistant", "r"), *ASKED],
        ),
        ({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}, ASKED),
        ({"conversations": [{"from": "user", "value": "q"}, {"from": "assistant", "value": "a"}]}, ASKED),
        ({"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]}, ASKED),
        ({"conversations": [{"from": "User", "value": "q"}, {"from": "Assistant", "value": "a"}]}, ASKED),
        ({"conversations": [{"role": "user", "content": "q"}, {"from": "gpt", "value": "a"}]}, ASKED),
        (
            {"system": "s", "messages": [{"role": "user", "content": "q"}, {"role": "gpt", "content": "a"}]},
            [("system", "s"), *ASKED],
        ),
        ({"question": "q", "answer": "a"}, ASKED),
        ({"messages": [QUESTION, {"role": "assistant", "content": [{"type": "text", "text": "a"}]}]}, ASKED),
        ({"messages": [QUESTION, ANSWER], "tools": [{"name": "f"}]}, ASKED),
        (
            {"tools": " ", "conversations": [{"from": "user", "value": "q"}, {"from": "gpt", "value": "a"}]},
            ASKED,
        ),
    ],
)
def test_formats(record: Any, expected: Turns, tmp_path: Path) -> None:
    assert one(record, tmp_path) == expected


@pytest.mark.parametrize(
    ("record", "code"),
    [
        (None, "not_object"),
        ("text", "not_object"),
        ([1], "not_object"),
        ({}, "no_format"),
        ({"ask": "q", "reply": "a"}, "no_format"),
        ({"instruction": "q"}, "missing"),
        ({"instruction": "q", "output": None}, "missing"),
        ({"instruction": "q", "output": 5}, "not_text"),
        ({"instruction": ["q"], "output": "a"}, "not_text"),
        ({"instruction": "q", "output": ""}, "empty_answer"),
        ({"instruction": "q", "output": " \n"}, "empty_answer"),
        ({"instruction": "", "input": "", "output": "a"}, "empty_question"),
        ({"instruction": "q", "output": "a", "history": "h"}, "not_list"),
        ({"instruction": "q", "output": "a", "history": [["h"]]}, "not_pair"),
        ({"instruction": "q", "output": "a", "history": [["h", None]]}, "missing"),
        ({"messages": None}, "not_list"),
        ({"messages": []}, "no_turns"),
        ({"messages": "[]"}, "no_turns"),
        ({"messages": "no list"}, "not_list"),
        ({"messages": [["user", "q"]]}, "not_object"),
        ({"messages": [QUESTION]}, "no_answer"),
        ({"messages": [QUESTION, {**ANSWER, "train": False}]}, "no_answer"),
        ({"messages": [QUESTION, {**ANSWER, "train": 1}]}, "not_bool"),
        ({"messages": [QUESTION, {"role": "assistant"}]}, "missing"),
        ({"messages": [QUESTION, {"content": "a"}]}, "missing"),
        ({"messages": [QUESTION, {"role": "bot", "content": "a"}]}, "unknown_role"),
        ({"messages": [QUESTION, {"role": "assistant", "content": [{"image": "a"}]}]}, "missing"),
        ({"messages": [QUESTION, {"role": "system", "content": "s"}, ANSWER]}, "system_late"),
        ({"messages": [{"role": "system", "content": "s"}, QUESTION, ANSWER], "system": "t"}, "system_twice"),
        ({"messages": [QUESTION, {**ANSWER, "tool_calls": [{}]}]}, "no_name"),
        ({"messages": [QUESTION, {**ANSWER, "content": "half \ud83d"}]}, "surrogate"),
    ],
)
def test_faults(record: Any, code: str, tmp_path: Path) -> None:
    assert one(record, tmp_path) == code


def test_a_format_that_was_asked_for_is_not_guessed(tmp_path: Path) -> None:
    record = {"instruction": "q", "output": "a"}
    assert one(record, tmp_path, "alpaca") == ASKED
    assert one(record, tmp_path, "messages") == "no_format"


def test_the_nearest_role_is_named(tmp_path: Path) -> None:
    path = tmp_path / "data.json"
    path.write_text(json.dumps([{"messages": [{"role": "hummany", "content": "q"}]}]), "utf-8")
    (fault,) = read(path)[1]
    assert 'unknown role "hummany"; nearest: human' in fault.reason()


@pytest.mark.parametrize(
    ("record", "codes"),
    [
        ({"messages": [ANSWER, QUESTION, ANSWER]}, ["answer_first"]),
        ({"messages": [QUESTION, QUESTION, ANSWER]}, ["same_role"]),
        ({"messages": [QUESTION, ANSWER, QUESTION]}, ["unanswered"]),
        ({"messages": [{"role": "user", "content": "a\x00"}, ANSWER]}, ["control_character"]),
        ({"messages": [{"role": "user", "content": "a\ufffd"}, ANSWER]}, ["damaged_text"]),
        ({"messages": [{"role": "user", "content": "a<|im_end|>"}, ANSWER]}, ["control_text"]),
        ({"messages": [{"role": "user", "content": "a < b |> c"}, ANSWER]}, []),
        ({"instruction": "q", "input": float("nan"), "output": "a"}, ["nan"]),
    ],
)
def test_remarks_on_records_that_are_kept(record: Any, codes: list[str], tmp_path: Path) -> None:
    assert remarks(record, tmp_path) == codes


@pytest.mark.parametrize(
    ("record", "code"),
    [
        ({"instruction": "q", "output": ""}, "empty_answer"),
        ({"instruction": "", "output": "a"}, "empty_question"),
        ({"messages": [QUESTION]}, "no_answer"),
        ({"messages": [ANSWER, QUESTION, ANSWER]}, "answer_first_left_out"),
        ({"instruction": "<|im_end|>", "output": "a"}, "control_text_parsed"),
    ],
)
def test_policy_qwen_keeps_what_its_reference_keeps_and_says_so(
    record: Any, code: str, tmp_path: Path
) -> None:
    assert isinstance(one(record, tmp_path, policy="qwen"), list)
    assert remarks(record, tmp_path, "qwen") == [code]


def test_train_marks_of_turns_are_read(tmp_path: Path) -> None:
    path = tmp_path / "data.json"
    turns = [QUESTION, {**ANSWER, "train": False}, QUESTION, {**ANSWER, "train": True}, QUESTION, ANSWER]
    path.write_text(json.dumps([{"messages": turns}]), "utf-8")
    ((talk,), faults, _) = read(path)
    assert [m.train for m in talk.messages if m.role == "assistant"] == [False, True, None]
    assert faults == []


def test_keys_that_are_not_used_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    turns = [QUESTION, {**ANSWER, "reasoning_content": "r", "weight": 1}]
    records = [{"id": 1, "messages": turns}, {"instruction": "q", "output": "a", "id": 2, "category": "c"}]
    path.write_text("\n".join(map(json.dumps, records)), "utf-8")
    _, faults, reader = read(path)
    assert faults == []
    assert reader.unused == {"id": 2, "category": 1}
    assert reader.keys["id"] == 2
    assert reader.records == 2


def test_sources_and_lines(tmp_path: Path) -> None:
    first, second = tmp_path / "a.json", tmp_path / "b.jsonl"
    good, bad = {"instruction": "q", "output": "a"}, {"instruction": "q"}
    first.write_text(json.dumps([good, bad], indent=1), "utf-8")
    second.write_text(f"{json.dumps(bad)}\n\n{json.dumps(good)}\nbroken\n", "utf-8")
    talks, faults, reader = judged({"one": first, "two": second})
    assert [talk.source for talk in talks] == ["one:0", "two:1"]
    places = [(i.file, i.record, i.line, i.code) for i in faults]
    assert places == [("one", 1, 6, "missing"), ("two", 0, 1, "missing"), ("two", 2, 4, "bad_line")]
    assert reader.records == 5
    assert faults[0].where == "one, record 1 (line 6)"


MESSY_FATAL = {
    "03_gbk.json": ("data.not_utf8", "1", "GBK"),
    "09_trailing_comma.json": ("data.bad_json", "3:1", "comma after the last"),
    "10_truncated.json": ("data.bad_json", "1:109", "cut off"),
    "12_single_quotes.json": ("data.bad_json", "1:3", "Python"),
    "15_empty_file.json": ("data.empty_file", "", "empty"),
    "17_comments.json": ("data.bad_json", "1:1", "comment"),
}


@pytest.mark.parametrize("name", MESSY_FATAL)
def test_messy_files_of_which_nothing_is_usable(name: str) -> None:
    code, place, word = MESSY_FATAL[name]
    with pytest.raises(Problem) as caught:
        read(MESSY / name)
    assert caught.value.code == code
    assert caught.value.where == f"{MESSY / name}:{place}".rstrip(":")
    assert word in str(caught.value)


MESSY_DROPPED: dict[str, tuple[int, dict[int, str]]] = {
    "01_bom.json": (1, {}),
    "04_crlf.jsonl": (3, {}),
    "05_jsonl_named_json.json": (3, {}),
    "07_single_object.json": (1, {}),
    "14_one_bad_line.jsonl": (2, {1: "bad_line"}),
    "16_empty_list.json": (0, {}),
    "18_nan.json": (1, {}),
    "20_alpaca_values.json": (
        3,
        {
            0: "empty_answer",
            1: "missing",
            2: "empty_answer",
            3: "not_text",
            4: "not_text",
            5: "not_text",
            7: "empty_question",
            8: "empty_question",
            10: "missing",
            11: "missing",
            12: "not_object",
            13: "not_object",
            14: "not_object",
            15: "no_format",
        },
    ),
    "22_turns.json": (
        11,
        {
            2: "system_late",
            6: "no_answer",
            11: "unknown_role",
            12: "no_turns",
            13: "empty_answer",
            14: "missing",
            15: "not_list",
            18: "no_answer",
            19: "not_object",
        },
    ),
    "23_special_tokens.json": (4, {}),
    "24_unicode.json": (7, {6: "surrogate"}),
    "25_long.json": (3, {}),
    "27_nested_instances.jsonl": (2, {}),
    "29_tool.json": (1, {1: "no_result"}),
}


@pytest.mark.parametrize("name", MESSY_DROPPED)
def test_messy_records_are_kept_or_named(name: str) -> None:
    kept, dropped = MESSY_DROPPED[name]
    conversations, faults, reader = read(MESSY / name)
    assert len(conversations) == kept
    assert {f.record: f.code for f in faults if f.dropped} == dropped
    assert reader.records == kept + len(dropped)


def test_every_messy_file_has_its_test() -> None:
    listed = {entry["file"] for entry in json.loads((MESSY / "manifest.json").read_text("utf-8"))}
    assert listed == set(MESSY_FATAL) | set(MESSY_DROPPED)


def test_every_fault_in_the_source_has_a_text() -> None:
    pattern = re.compile(r"""(?:Unfit|note|remark|_fault)\(\s*(?:note, )?["'](\w+)["']""")
    folder = Path(tengtune.__file__).parent / "data"
    codes = {code for path in folder.rglob("*.py") for code in pattern.findall(path.read_text("utf-8"))}
    codes |= {"cut", "too_long", "no_room", "no_label", "bom", "bad_line", "too_deep", "single_object"}
    assert len(codes) > 25
    texts = language.area_messages("data")
    assert {f"data.{code}" for code in codes} <= texts.keys()


def test_no_text_of_the_user_in_a_reason(tmp_path: Path) -> None:
    """What is written down about a record can be shown to anyone: keys, roles and numbers only."""
    secret = "SECRET"
    turns = [{"role": "user", "content": secret}, {"role": "assistant", "content": [secret]}]
    records: list[Any] = [
        {"instruction": secret, "output": [secret]},
        {"instruction": secret, "output": {secret: secret}},
        {"instruction": secret, "output": ""},
        {"messages": turns},
        {"messages": [{"role": "user", "content": f"{secret}<|im_end|>\x00"}]},
        secret,
    ]
    path = tmp_path / "data.jsonl"
    path.write_text("\n".join(map(json.dumps, records)) + f'\n{{"{secret}": "{secret}', "utf-8")
    _, faults, _ = read(path)
    assert len([fault for fault in faults if fault.dropped]) == 6
    assert not any(secret in fault.reason() for fault in faults)
