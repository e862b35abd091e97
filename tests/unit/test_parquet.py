"""Parquet data files, written by pyarrow."""

from __future__ import annotations

from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from tests.data_lab import judged

from tengtune.data.read import Reader
from tengtune.text.conversation import Conversation
from tengtune.ui.problems import Problem

ROWS = [{"instruction": f"问 {n}?", "output": f"答 {n}"} for n in range(5)]


def test_rows_are_records_whatever_the_row_groups(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), path, row_group_size=2)
    talks, faults, reader = judged({"a.parquet": path})
    assert [[m.content for m in talk.messages] for talk in talks] == [
        [r["instruction"], r["output"]] for r in ROWS
    ]
    assert (faults, reader.records) == ([], 5)


def test_nested_messages(tmp_path: Path) -> None:
    path = tmp_path / "b.parquet"
    messages = [{"role": "user", "content": "a?"}, {"role": "assistant", "content": "b"}]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([{"messages": messages}]), path)
    (talk,), _, _ = judged({"b.parquet": path})
    assert isinstance(talk, Conversation)
    assert [(m.role, m.content) for m in talk.messages] == [("user", "a?"), ("assistant", "b")]


def test_a_cut_file_is_a_problem(tmp_path: Path) -> None:
    path = tmp_path / "c.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(Problem) as caught:
        list(Reader({"c.parquet": path}).read())
    assert caught.value.exit_code == 2
