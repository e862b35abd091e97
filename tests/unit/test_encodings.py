"""Files of other encodings, and of two: every record is as it was written, or is named as bad."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tengtune.data import window
from tengtune.data.detect import foreign
from tengtune.data.fault import Fault
from tengtune.data.json_value import Record
from tengtune.data.records import read_records

WORDS = {
    "gbk": ("请先关闭电源，然后打开盖子。", "一", "好", "联", "大一新生"),
    "big5": ("請先關閉電源，然後打開蓋子。", "一", "中", "好"),
    "cp932": ("まず電源を切ってください。それから蓋を開けます", "あ", "ﾃｽﾄ", "ﾃｽ"),
    "euc_kr": ("먼저 전원을 끄고 덮개를 여십시오.", "가", "예"),
}
UTF8 = {"gbk": "您好", "big5": "您好，請問", "cp932": "こんにちは", "euc_kr": "안녕하세요"}
CASES = [(codec, short) for codec, words in WORDS.items() for short in words[1:]]


def laid_out(records: list[dict[str, Any]], layout: str) -> list[str]:
    """The text of the records, in lines that end as they do."""
    if layout == "table":
        return ["q,a\n", *(f"{record['q']},{record['a']}\n" for record in records)]
    texts = [json.dumps(record, ensure_ascii=False) for record in records]
    return [f"{text}\n" for text in texts] if layout == "lines" else ["[", ",\n".join(texts), "]"]


def found_in(path: Path) -> tuple[list[Any], list[Fault]]:
    items = list(read_records(path, "x", is_record=lambda value: "q" in value, lenient=True))
    faults = [item for item in items if isinstance(item, Fault)]
    return [item.value for item in items if isinstance(item, Record)], faults


@pytest.mark.parametrize("layout", ["lines", "list", "table"])
@pytest.mark.parametrize(("codec", "short"), CASES)
def test_a_single_wide_text_in_the_last_window_is_of_the_files_encoding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codec: str, short: str, layout: str
) -> None:
    wide = [{"q": f"q{n}", "a": WORDS[codec][0]} for n in range(50)]
    plain = [{"q": f"p{n}", "a": "plain answer"} for n in range(150)]
    records = [*wide, *plain, {"q": "r", "a": short}, {"q": "s", "a": "end"}]
    monkeypatch.setattr(window, "CHUNK", 600)
    path = tmp_path / ("a.csv" if layout == "table" else "a.json")
    path.write_bytes("".join(laid_out(records, layout)).encode(codec))
    found, faults = found_in(path)
    assert found == records
    assert {fault.code for fault in faults} <= {"wrong_encoding", "lines_in_json"}


@pytest.mark.parametrize("place", [0, 3, 30, 199])
@pytest.mark.parametrize("codec", UTF8)
def test_a_line_of_utf8_in_a_file_of_another_encoding_is_read_as_such(
    tmp_path: Path, codec: str, place: int
) -> None:
    words = WORDS[codec]
    records = [{"q": f"q{n}", "a": words[n % len(words)] if n % 3 else "plain"} for n in range(200)]
    records[place]["a"] = UTF8[codec]
    lines = laid_out(records, "lines")
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"".join(line.encode("utf-8" if n == place else codec) for n, line in enumerate(lines)))
    found, faults = found_in(path)
    assert found == records
    assert [fault.code for fault in faults] == ["two_encodings"]


@pytest.mark.parametrize("layout", ["lines", "list"])
@pytest.mark.parametrize("codec", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_a_unit_that_is_none_costs_its_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codec: str, layout: str
) -> None:
    records = [{"q": f"q{n}", "a": f"中文 answer {n}."} for n in range(300)]
    text = (
        "".join(laid_out(records, layout))
        .replace("answer 150.", "answer \ud800 x")
        .encode(codec, "surrogatepass")
    )
    monkeypatch.setattr(window, "CHUNK", 1001)
    path = tmp_path / "a.json"
    path.write_bytes(text)
    found, faults = found_in(path)
    assert found == records[:150] + records[151:]
    (lost,) = (fault for fault in faults if fault.record is not None)
    assert (lost.code, lost.record) == ("line_encoding", 150)
    assert "not UTF-16" in lost.reason() or "not UTF-32" in lost.reason()


def test_a_bad_byte_costs_its_record_and_the_encoding_is_named(tmp_path: Path) -> None:
    records = [{"q": f"q{n}", "a": f"请先关闭电源 {n}."} for n in range(9)]
    path = tmp_path / "a.jsonl"
    path.write_bytes("".join(laid_out(records, "lines")).encode("gbk").replace(b" 4.", b" \xff."))
    found, faults = found_in(path)
    assert found == records[:4] + records[5:]
    (lost,) = (fault for fault in faults if fault.record is not None)
    assert (lost.code, lost.record) == ("line_encoding", 4)
    assert "not GBK" in lost.reason()


@pytest.mark.parametrize("word", ["一", "开", "、plain", "Ā", "一一"])
@pytest.mark.parametrize("codec", ["utf-16-le", "utf-16-be"])
def test_utf16_without_a_mark_is_known_whatever_its_characters(tmp_path: Path, codec: str, word: str) -> None:
    records = [{"q": "Q", "a": word}, {"q": "Q2", "a": "x"}]
    path = tmp_path / "a.jsonl"
    path.write_bytes("".join(laid_out(records, "lines")).encode(codec))
    assert found_in(path)[0] == records


def test_bytes_with_nuls_are_not_taken_for_utf16() -> None:
    assert foreign(bytes([5, 0, 9, 0, 0, 1, 7, 0, 3, 0, 1, 0, 2, 0, 6, 0]) * 20) == ("binary", "?")
