"""Tables with rows that are none: each costs itself, and no part of one becomes a record."""

from __future__ import annotations

from pathlib import Path

import pytest

from tengtune.data.fault import Fault
from tengtune.data.json_value import Record
from tengtune.data.records import read_records

ROWS = "".join(f'"q{n}","a{n}"\n' for n in range(2, 30))
"""Rows on lines 4 to 31 of a table with two lines of rows before them."""


def found_in(path: Path, text: str) -> tuple[list[tuple[list[str], int, int | None]], list[Fault]]:
    """The cells of each record with its number and line, and the faults."""
    path.write_text(text, "utf-8")
    items = list(read_records(path, "x", is_record=lambda value: "output" in value, lenient=True))
    records = [(list(i.value.values()), i.number, i.line) for i in items if isinstance(i, Record)]
    return records, [item for item in items if isinstance(item, Fault)]


@pytest.mark.parametrize("bad", ['"q1","a1', '"q1,"a1"', '"q1"x,"a1"', '"q1,a1', '"q1","a "1" b"'])
@pytest.mark.parametrize("behind", [1, 28])
def test_a_lost_quotation_mark_costs_its_row(tmp_path: Path, bad: str, behind: int) -> None:
    rows = "".join(ROWS.splitlines(keepends=True)[:behind])
    records, faults = found_in(tmp_path / "a.csv", f'instruction,output\n"q0","a0"\n{bad}\n{rows}')
    kept = [0, *range(2, 2 + behind)]
    assert records == [([f"q{n}", f"a{n}"], n, n + 2) for n in kept]
    assert [(fault.code, fault.record, fault.line, fault.raw) for fault in faults] == [("bad_row", 1, 3, bad)]


@pytest.mark.parametrize(
    "bad",
    [
        'q,"line "one" x\nmiddle, cell\nlast, one",b',
        'q,"line one\nline "two" here\nlast, line",b',
        'q,"one\ntwo, "three" four, five",b',
        '"one "two" three\nfour, five, six",i,b',
    ],
)
def test_no_part_of_a_row_becomes_a_record(tmp_path: Path, bad: str) -> None:
    text = f"instruction,input,output\n{bad}\nq,w,e\n"
    records, faults = found_in(tmp_path / "a.csv", text)
    assert [cells for cells, _, _ in records] == [["q", "w", "e"]]
    assert records[0][2] == text.count("\n")
    assert "\n".join(fault.raw or "" for fault in faults) == bad


def test_rows_of_several_lines_behind_a_bad_row_are_whole(tmp_path: Path) -> None:
    text = 'instruction,input,output\nQ,in,"out\n"Q6 two\nlines",b,c\nq,w,e\n'
    records, faults = found_in(tmp_path / "a.csv", text)
    assert records == [(["Q6 two\nlines", "b", "c"], 1, 3), (["q", "w", "e"], 2, 5)]
    assert [(fault.record, fault.line, fault.raw) for fault in faults] == [(0, 2, 'Q,in,"out')]
