"""What stands between records, or is broken beside them: it costs itself, and nothing else is lost."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from tengtune.data import window
from tengtune.data.fault import Fault
from tengtune.data.fix import Fixer
from tengtune.data.json_value import Record
from tengtune.data.judge import Judge
from tengtune.data.read import Reader
from tengtune.data.records import read_records

A = [f'{{"instruction": "q{n}", "output": "a{n}"}}' for n in range(4)]
GOOD = [json.loads(text) for text in A]


def found_in(path: Path) -> tuple[list[Record], list[Fault]]:
    items = list(read_records(path, "x", lenient=True))
    return [i for i in items if isinstance(i, Record)], [i for i in items if isinstance(i, Fault)]


@pytest.mark.parametrize("chunk", [5, 64, 1 << 20])
@pytest.mark.parametrize(
    ("text", "raw"),
    [
        ("[{0}],\n{1}],\n{2},\n{3}]", None),
        ("[{0}]]\n{1}\n{2},,{3}", None),
        ("[\n{0}, // first\n{1},\n{2},{3}\n]", None),
        ('[\n{0}, # it\'s "first"\n{1},\n{2},{3} # last\n]\n# end\n', None),
        ("[\n// begin\n{0}, /* a\nb */ {1},\n/* c */{2}/* d */,{3}\n]", None),
        ("[{0}, // a {1}, # b {2},{3}]", None),
        ("[\n{0},\n// {{old}}\n{1},\n{2},{3}\n]", "// {old}"),
        ("[{0},\n{1} xx,\n{2},\n{3}]", "xx"),
        ("[{0},\n{1},\nxx yy {2},\n{3}]", "xx yy"),
        ("[{0},\n{1};\n{2},\n{3}]", None),
        ("[{0}}}, {1}, {2}}}, {3}]", None),
        ("[{0},,{1},\n,\n{2},{3},]", None),
    ],
)
def test_what_is_no_record_costs_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int, text: str, raw: str | None
) -> None:
    monkeypatch.setattr(window, "CHUNK", chunk)
    path = tmp_path / "a.json"
    path.write_text(text.format(*A), "utf-8")
    records, faults = found_in(path)
    assert [record.value for record in records] == GOOD
    assert [record.number for record in records] == [0, 1, 2, 3]
    assert [fault.raw for fault in faults if fault.raw] == ([raw] if raw else [])
    assert "broken" in {fault.code for fault in faults}


def test_a_bracket_too_many_among_several_formats(tmp_path: Path) -> None:
    texts = [f'{{"query": "q{n}", "response": "a"}}' for n in range(5)]
    path = tmp_path / "a.json"
    path.write_text(f"[{A[0]}}}, {', '.join(texts)}, {A[1]}]", "utf-8")
    assert [record.value for record in found_in(path)[0]] == [GOOD[0], *map(json.loads, texts), GOOD[1]]


@pytest.mark.parametrize(
    "output", ['"Use "#pump" here."', '"Use "#pump"', '"it is "//server/share"', '"a " # b"']
)
@pytest.mark.parametrize("end", ["\n}", "}"])
def test_the_rest_of_a_text_is_not_taken_for_a_comment(tmp_path: Path, output: str, end: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(f'[{{"instruction": "Which tag?", "output": {output}{end},\n{A[1]}]', "utf-8")
    records, faults = found_in(path)
    assert [record.value for record in records] == GOOD[1:2]
    assert [(fault.code, fault.record) for fault in faults] == [("broken", 0)]


@pytest.mark.parametrize("comment", ["// b", "# b", '# "b" c', "// it's"])
def test_a_comment_in_a_record_is_removed(tmp_path: Path, comment: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(f'[{{"instruction": "q0", {comment}\n "output": "a0" {comment}\n}},\n{A[1]}]', "utf-8")
    assert [record.value for record in found_in(path)[0]] == GOOD[:2]


@pytest.mark.parametrize("first", ["xx", "null", '"abc"', A[0][1:], "// note"])
@pytest.mark.parametrize("suffix", [".json", ".jsonl"])
def test_a_first_line_that_is_none_costs_itself(tmp_path: Path, first: str, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    good = json.dumps({"instruction": "q", "output": "a" * 5000})
    path.write_text(f"{first}\n{A[1]}\n{good}\n{A[2]}\n", "utf-8")
    reader = Reader({"x": path})
    assert [bool(getattr(item, "conversations", None)) for item in reader.read()][:4] == [
        False,
        True,
        True,
        True,
    ]


def test_numbers_json_does_not_know_are_texts_among_the_rejected(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('[{"instruction": "q", "output": 1e400}, {"instruction": "q", "output": [NaN]}]', "utf-8")
    reader, streams = Reader({"x": path}, lenient=True), [io.StringIO() for _ in range(3)]
    fixer = Fixer(reader, Judge("assistant", ()), *streams)
    for item in reader.read():
        fixer.take(item)

    def refuse(name: str) -> Any:
        raise AssertionError(name)

    rejected = [json.loads(line, parse_constant=refuse) for line in streams[1].getvalue().splitlines()]
    assert [entry["value"]["output"] for entry in rejected] == ["inf", ["nan"]]


def test_what_is_no_record_is_among_the_rejected(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(f"[{A[0]} xx, {A[1]}]", "utf-8")
    reader, streams = Reader({"x": path}, lenient=True), [io.StringIO() for _ in range(3)]
    fixer = Fixer(reader, Judge("assistant", ()), *streams)
    for item in reader.read():
        fixer.take(item)
    (entry,) = map(json.loads, streams[1].getvalue().splitlines())
    assert (entry["record"], entry["line"], entry["raw"]) == (None, 1, "xx")
