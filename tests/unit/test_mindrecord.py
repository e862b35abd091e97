"""Reading MindRecord files: what becomes of a record, and the ways in which a file is not what it seems."""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from tests.mindrecord_lab import START, Records, compose, unpack

from tengtune.data.mindrecord import MindRecord, check_name, first_shard, is_mindrecord, parts
from tengtune.data.recorded import Recorded, Vocabulary
from tengtune.data.render import Rendered
from tengtune.recipe import TooLong
from tengtune.ui.problems import Problem

PAD, IGNORED = 379, -100
VOCABULARY = Vocabulary(384, PAD)
GOOD = {"input_ids": [5, 300, 7], "labels": [IGNORED, 300, 7], "attention_mask": [1, 1, 1]}


def only(records: Records, folder: Path, seq_len: int = 64, too_long: TooLong = "cut") -> Rendered:
    """The documents of a file with these records."""
    file = MindRecord(compose(folder / "x.mindrecord", records))
    (made,) = Recorded(file, VOCABULARY, seq_len, too_long).read("x")
    return made


def problem_of(call: Callable[[], object]) -> Problem:
    with pytest.raises(Problem) as caught:
        call()
    assert caught.value.texts("en")
    assert caught.value.texts("zh")
    return caught.value


def run(path: Path) -> Callable[[], object]:
    return lambda: list(Recorded(MindRecord(path), Vocabulary(151_851, 151_643), 64, "cut").read("x"))


def test_integers_of_all_sizes(tmp_path: Path) -> None:
    values = [0, -1, 127, -128, 128, 32767, -32769, 2**31 - 1, -(2**31), 2**31, 2**40, -(2**63)]
    path = compose(tmp_path / "x.mindrecord", [{"input_ids": values[:n], "labels": []} for n in range(13)])
    rows = list(MindRecord(path).rows(["labels", "input_ids"]))
    assert [row[1].tolist() for row in rows] == [values[:n] for n in range(13)]
    assert all(row[0].tolist() == [] for row in rows)


def test_padding_goes_and_endoftext_inside_a_text_stays(tmp_path: Path) -> None:
    ids, mask = [5, PAD, 6, 7, PAD, PAD], [1, 0, 1, 1, 0, 0]
    labels = [[5, PAD, IGNORED, 7, IGNORED, IGNORED], [IGNORED, IGNORED, 6, IGNORED, IGNORED, IGNORED]]
    made = only([{"input_ids": ids, "labels": each, "attention_mask": mask} for each in labels], tmp_path)
    assert made.ids.tolist() == [5, PAD, 6, 7, 5, PAD, 6]  # after the last label nothing is learned
    assert made.train.tolist() == [False, True, False, True, False, False, True]
    assert made.lengths.tolist() == [4, 3]
    assert made.tokens.tolist() == [4, 4]
    assert made.hashes[0] == made.hashes[1]
    assert made.faults == []


def test_an_endoftext_that_closes_a_text_is_learned_as_stored(tmp_path: Path) -> None:
    made = only([{"input_ids": [5, 6, PAD, PAD], "labels": [5, 6, PAD, IGNORED]}], tmp_path)
    assert made.ids.tolist() == [5, 6, PAD]
    assert made.train.tolist() == [False, True, True]
    assert made.faults == []


@pytest.mark.parametrize("column", ["labels", "target_ids"])
def test_labels_on_padding_are_left_out_and_said(tmp_path: Path, column: str) -> None:
    """As mindformers' scripts for Qwen2 and 2.5 leave them there; the loss there has a mask."""
    made = only([{"input_ids": [5, 6, PAD, PAD], column: [5, 6, PAD, PAD]}], tmp_path)
    assert made.ids.tolist() == [5, 6]
    assert [(f.code, f.values, f.dropped) for f in made.faults] == [("padding_labels", {"count": 2}, False)]


@pytest.mark.parametrize(
    ("too_long", "ids", "code", "dropped"),
    [("cut", [5, 300], "cut", False), ("split", [5, 300], "cut", False), ("drop", [], "too_long", True)],
)
def test_longer_records_are_cut_or_dropped_and_counted(
    tmp_path: Path, too_long: TooLong, ids: list[int], code: str, dropped: bool
) -> None:
    made = only([GOOD], tmp_path, 2, too_long)
    assert made.ids.tolist() == ids
    (fault,) = made.faults
    assert (fault.code, fault.record, fault.dropped) == (code, 0, dropped)
    assert fault.values == {"tokens": 3, "seq_len": 2}


def test_a_record_without_a_label_is_dropped(tmp_path: Path) -> None:
    made = only([GOOD, {**GOOD, "labels": [5, IGNORED, IGNORED]}, GOOD], tmp_path)
    assert made.records.tolist() == [0, 2]
    assert [(f.code, f.record, f.dropped) for f in made.faults] == [("no_label", 1, True)]


@pytest.mark.parametrize(
    ("record", "code", "words"),
    [
        ({"input_ids": [5, 384, 7]}, "mindrecord.beyond_vocabulary", "Token 1 of this record is 384"),
        ({"input_ids": [5, 300, -7]}, "mindrecord.beyond_vocabulary", "Token 2 of this record is -7"),
        ({"labels": [IGNORED, 5, 7]}, "mindrecord.labels", "Label 1 of this record is 5; the token"),
        ({"labels": [IGNORED, -1, 7]}, "mindrecord.labels", "Label 1 of this record is -1"),
        ({"labels": [300, 7, IGNORED]}, "mindrecord.labels_shifted", "label 0 is 300, the next token"),
        ({"labels": [IGNORED, 300]}, "mindrecord.lengths", "input_ids 3, labels 2"),
        ({"attention_mask": [1]}, "mindrecord.lengths", "attention_mask 1"),
    ],
)  # fmt: skip
def test_a_record_that_cannot_be_meant(
    tmp_path: Path, record: dict[str, list[int]], code: str, words: str
) -> None:
    problem = problem_of(lambda: only([GOOD, {**GOOD, **record}], tmp_path))
    assert problem.code == code
    assert problem.where == "x, record 1"
    assert words in str(problem)


def test_columns_that_are_not_there(tmp_path: Path) -> None:
    path = compose(tmp_path / "x.mindrecord", [{"input_ids": [1], "data": [2]}])
    problem = problem_of(run(path))
    assert (problem.code, problem.values["missing"]) == ("mindrecord.no_column", "labels")
    assert "data, input_ids" in str(problem)
    text = {"schema": [{"blob_fields": ["input_ids"], "schema": {"input_ids": {"type": "string"}}}]}
    path = compose(tmp_path / "y.mindrecord", [{"input_ids": [1]}], **text)
    assert problem_of(run(path)).values["missing"] == "input_ids, labels"


def test_without_its_index(tmp_path: Path) -> None:
    path = unpack("qwen.mindrecord.tar.xz", tmp_path)
    index = tmp_path / "qwen.mindrecord.db"
    problem = problem_of(run(index))
    assert (problem.code, problem.values["file"]) == ("mindrecord.index_given", "qwen.mindrecord")
    index.unlink()
    assert problem_of(run(path)).code == "mindrecord.no_index"


def test_a_renamed_copy_is_told_whichever_of_its_names_was_changed(tmp_path: Path) -> None:
    path = unpack("qwen.mindrecord.tar.xz", tmp_path)
    copy = path.with_name("other.mindrecord")
    os.link(path, copy)
    os.link(f"{path}.db", f"{copy}.db")
    problem = problem_of(run(copy))
    assert problem.code == "mindrecord.renamed"
    assert problem.values == {"name": "other.mindrecord", "inside": "qwen.mindrecord"}
    run(path)()  # the original beside it is as it was
    with closing(sqlite3.connect(f"{path}.db")) as database:  # the index of a renamed file
        database.execute("UPDATE SHARD_NAME SET NAME = 'first.mindrecord'")
        database.commit()
    assert problem_of(run(path)).values == {"name": "qwen.mindrecord", "inside": "first.mindrecord"}


def test_shards(tmp_path: Path) -> None:
    first = unpack("two_shards.tar.xz", tmp_path)
    assert first.name == "two.mindrecord0"
    second = tmp_path / "two.mindrecord1"
    assert first_shard(tmp_path / "two.mindrecord") == first
    assert first_shard(tmp_path / "tw.mindrecord") == tmp_path / "tw.mindrecord"
    files = [first, Path(f"{first}.db"), second, Path(f"{second}.db")]
    assert parts(second) == parts(first) == files
    second.rename(tmp_path / "kept")
    problem = problem_of(run(first))
    assert (problem.code, problem.values["missing"]) == ("mindrecord.shard_missing", "two.mindrecord1")
    os.link(first, second)  # a copy of the first shard under the second's name
    assert problem_of(run(first)).code == "mindrecord.renamed"


@pytest.mark.parametrize("size", [0, 5, 100, 16_777_216, 50_331_959])
def test_a_file_that_is_cut_off(tmp_path: Path, size: int) -> None:
    path = unpack("qwen.mindrecord.tar.xz", tmp_path)
    os.truncate(path, size)
    assert is_mindrecord(path)
    assert problem_of(run(path)).code == "mindrecord.broken"


def test_a_file_whose_end_was_lost_and_filled_with_zeros(tmp_path: Path) -> None:
    """As a copy that was cut short by a crash looks: the size is right."""
    path = unpack("qwen.mindrecord.tar.xz", tmp_path)
    size = path.stat().st_size
    os.truncate(path, 16_777_216 + 5000)
    os.truncate(path, size)
    problem = problem_of(run(path))
    assert problem.code == "mindrecord.broken"
    assert "record 11" in str(problem)  # the first whose bytes go beyond 5000


@pytest.mark.parametrize(
    "spoil",
    [
        "DELETE FROM INDEXES WHERE ROW_ID = 3",
        "DELETE FROM INDEXES WHERE ROW_ID = 23",
        "DROP TABLE INDEXES",
        "UPDATE INDEXES SET PAGE_OFFSET_BLOB = PAGE_OFFSET_BLOB + 1 WHERE ROW_ID = 3",
        "UPDATE INDEXES SET PAGE_OFFSET_BLOB = -100000000 WHERE ROW_ID = 3",
        "UPDATE INDEXES SET PAGE_OFFSET_BLOB_END = 1000000000000 WHERE ROW_ID = 3",
        "UPDATE INDEXES SET PAGE_OFFSET_BLOB_END = PAGE_OFFSET_BLOB - 1 WHERE ROW_ID = 3",
        "UPDATE INDEXES SET PAGE_ID_BLOB = 9223372036854775807 WHERE ROW_ID = 3",
        "UPDATE INDEXES SET PAGE_ID_BLOB = 'x' WHERE ROW_ID = 3",
        "UPDATE INDEXES SET PAGE_ID_BLOB = 1.5 WHERE ROW_ID = 3",
    ],
)
def test_an_index_that_does_not_fit(tmp_path: Path, spoil: str) -> None:
    path = unpack("qwen.mindrecord.tar.xz", tmp_path)
    with closing(sqlite3.connect(f"{path}.db")) as database:
        database.execute(spoil)
        database.commit()
    assert problem_of(run(path)).code == "mindrecord.broken"


def test_an_index_that_is_none(tmp_path: Path) -> None:
    path = unpack("qwen.mindrecord.tar.xz", tmp_path)
    Path(f"{path}.db").write_bytes(b"no database at all" * 100)
    problem = problem_of(run(path))
    assert problem.code == "mindrecord.broken"
    assert "not a database" in str(problem)


def test_headers_that_are_none(tmp_path: Path) -> None:
    path = tmp_path / "x.mindrecord"
    for text in (b"{}", b"[1]", b'{"schema": 3}', b'{"page": [{}]}', b"{" * 9, b"\xff\xfe"):
        path.write_bytes(len(text).to_bytes(8, "little") + text)
        assert problem_of(run(path)).code == "mindrecord.broken"
    path.write_text('[{"instruction": "a", "output": "b"}]')
    assert problem_of(run(path)).code == "mindrecord.broken"
    assert problem_of(run(compose(path, [GOOD], version="2.0"))).code == "mindrecord.version"
    assert problem_of(run(compose(path, [GOOD], shard_id=7))).code == "mindrecord.renamed"
    names = ({"shard_addresses": name} for name in ("x.mindrecord", [], {"x.mindrecord": 1}, None))
    for change in ({"header_size": -9}, {"header_size": 1e999}, {"page": "x"}, *names):
        assert problem_of(run(compose(path, [GOOD], **change))).code == "mindrecord.broken", change


def test_a_flipped_byte_is_a_problem_or_another_number(tmp_path: Path) -> None:
    """Whatever stands in a record, it is read as ids or told; nothing else happens."""
    path = compose(tmp_path / "x.mindrecord", [GOOD, GOOD])
    sound = path.read_bytes()
    for place in range(START, len(sound)):
        for flip in (0x01, 0x80, 0xFF):
            spoilt = bytearray(sound)
            spoilt[place] ^= flip
            path.write_bytes(spoilt)
            try:
                run(path)()
            except Problem as problem:
                assert problem.code.startswith("mindrecord."), place


@pytest.mark.parametrize(
    ("name", "proposed"),
    [
        ("x.bin", "x.mindrecord"),
        ("x.mindrecord1", "x.mindrecord"),
        ("x.mindrecord.db", "x.mindrecord"),
        ("x.MindRecord", "x.mindrecord"),
        ("what?.mindrecord", "what_.mindrecord"),
        ("records", "records.mindrecord"),
    ],
)
def test_a_name_that_would_be_passed_over_is_refused_with_a_better_one(name: str, proposed: str) -> None:
    problem = problem_of(lambda: check_name(Path("out") / name))
    assert problem.code == "mindrecord.name"
    assert problem.values["proposed"] == Path("out") / proposed
    check_name(Path("out") / proposed)


def test_names_that_are_loaded() -> None:
    for name in (
        "mindrecord",
        "x.mindrecord",
        "x.mindrecord0",
        "x.mindrecord00",
        "my_mindrecord",
        "数据.mindrecord",
    ):
        assert re.search(r"mindrecord0*$", name)  # mindformers' own expression
        check_name(Path(name))


def test_what_a_mindrecord_is_told_by(tmp_path: Path) -> None:
    path = compose(tmp_path / "data", [GOOD])
    assert is_mindrecord(path)
    for content in (b"", b"{}", b'[{"a": 1}]', b'{"instruction": "a"}', np.arange(64).tobytes()):
        (tmp_path / "other").write_bytes(content)
        assert not is_mindrecord(tmp_path / "other")
    assert not is_mindrecord(tmp_path / "nowhere")
    assert not is_mindrecord(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    assert not is_mindrecord(tmp_path / "pipe")
