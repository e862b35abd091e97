"""Reading JSON in pieces: the same values as the json module, exact places, every break named."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tengtune.data import window
from tengtune.data.detect import foreign
from tengtune.data.fault import Fault
from tengtune.data.json_value import Record, RepeatedKey
from tengtune.data.records import read_records
from tengtune.ui import language
from tengtune.ui.problems import Problem

VALUE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
KEY = st.text(max_size=5).map(lambda text: f"k{text}")  # never one under which a file's records stand
OBJECTS = st.lists(st.dictionaries(KEY, VALUE, max_size=3), min_size=1, max_size=5)
SETTINGS = settings(
    max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture(params=[3, 64, 1 << 20])
def small_chunks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows so small that every value is cut somewhere."""
    monkeypatch.setattr(window, "CHUNK", request.param)


def values(path: Path) -> list[Any]:
    return [r.value for r in read_records(path, "x") if isinstance(r, Record)]


def faults(path: Path) -> list[Fault]:
    return [r for r in read_records(path, "x") if isinstance(r, Fault)]


def problem(path: Path) -> Problem:
    with pytest.raises(Problem) as caught:
        list(read_records(path, "x"))
    return caught.value


@pytest.mark.usefixtures("small_chunks")
@given(data=st.lists(VALUE, max_size=5), ascii_only=st.booleans(), indent=st.sampled_from([None, 0, 2]))
@SETTINGS
def test_an_array_is_read_as_the_json_module_reads_it(
    tmp_path: Path, data: list[Any], ascii_only: bool, indent: int | None
) -> None:
    path = tmp_path / "a.json"
    text = json.dumps(data, ensure_ascii=ascii_only, indent=indent)
    path.write_bytes(text.encode("utf-8", "surrogatepass" if ascii_only else "strict"))
    assert values(path) == data


@pytest.mark.usefixtures("small_chunks")
@given(data=OBJECTS, end=st.sampled_from(["\n", "\r\n", "\n\n"]), bom=st.booleans())
@SETTINGS
def test_lines_are_read_one_by_one(tmp_path: Path, data: list[Any], end: str, bom: bool) -> None:
    path = tmp_path / "a.jsonl"
    text = end.join(json.dumps(value, ensure_ascii=False) for value in data)
    path.write_bytes(("\ufeff" * bom + text).encode())
    assert values(path) == data
    assert [fault.code for fault in faults(path)] == ["bom"] * bom
    lines = [r.line for r in read_records(path, "x") if isinstance(r, Record)]
    step = 2 if end == "\n\n" else 1
    assert lines == [1 + step * i for i in range(len(data))]


@pytest.mark.usefixtures("small_chunks")
@given(data=OBJECTS)
@SETTINGS
def test_objects_laid_out_over_lines_follow_each_other(tmp_path: Path, data: list[dict[str, Any]]) -> None:
    path = tmp_path / "a.jsonl"
    data = [{"k": 1, **value} for value in data]
    path.write_text("\n".join(json.dumps(value, indent=1) for value in data), "utf-8")
    assert values(path) == data


@pytest.mark.usefixtures("small_chunks")
@given(data=st.lists(st.fixed_dictionaries({"a": st.text(max_size=6), "b": VALUE}), min_size=1, max_size=4))
@settings(SETTINGS, max_examples=6)
def test_every_cut_of_an_array_is_told_with_its_record(tmp_path: Path, data: list[Any]) -> None:
    """Cut after each byte in turn: whole records before the cut come, then a Problem at the cut's end."""
    path = tmp_path / "a.json"
    raw = json.dumps(data, indent=1).encode()  # ASCII: a byte is a character
    for cut in range(1, len(raw)):
        path.write_bytes(raw[:cut])
        seen: list[Record | Fault] = []
        with pytest.raises(Problem) as caught:
            seen.extend(read_records(path, "x"))
        found = caught.value
        assert found.code == "data.bad_json"
        assert "cut off" in found.texts()["why"], raw[:cut]
        assert found.values["byte"] == cut


def test_memory_holds_one_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The text in memory does not grow with the file."""
    monkeypatch.setattr(window, "CHUNK", 256)
    path = tmp_path / "a.json"
    path.write_text(json.dumps([{"k": "x" * 50}] * 2000), "utf-8")
    longest = 0
    original = window.Text.fill

    def watched(self: window.Text) -> bool:
        nonlocal longest
        result = original(self)
        longest = max(longest, len(self.text))
        return result

    monkeypatch.setattr(window.Text, "fill", watched)
    assert len(values(path)) == 2000
    assert longest <= 1024


def test_bytes_read_are_told(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"a": 1}\n' * 10)
    told: list[int] = []
    list(read_records(path, "x", told.append))
    assert sum(told) == path.stat().st_size


@pytest.mark.parametrize(
    ("text", "place", "byte", "record", "word"),
    [
        ('[{"a": 1},\n {"a": 2},\n]', "3:1", 22, 1, "comma after the last"),
        ('[{"a": 1,}]', "1:", None, 0, "comma after the last"),
        ('[{"a": [1, 2,]}]', "1:", None, 0, "comma after the last"),
        ('[{"a": 1}\n {"a": 2}]', "2:2", 11, 0, "comma between"),
        ('[{"a": 1 "b": 2}]', "1:10", 9, 0, "comma between"),
        ("[{'a': 1}]", "1:3", 2, 0, "Python"),
        ('[{"a": None}]', "1:8", 7, 0, "Python"),
        ('// note\n[{"a": 1}]', "1:1", 0, 0, "comment"),
        ('[\n// note\n{"a": 1}]', "2:1", 2, 0, "comment"),
        ('[{"a": 1}] x', "1:12", 11, 0, "goes on"),
        ('[{"a": 1}', "1:10", 9, 0, "cut off"),
        ('[{"a": "x', "1:10", 9, 0, "cut off"),
        ("[", "1:2", 1, 0, "cut off"),
        ('[{"a": 1}, ', "1:12", 11, 1, "cut off"),
        ("a,b\n1,2\n", "1:1", 0, 0, "begins with"),
        ('"text"', "1:1", 0, 0, "begins with"),
        ('["' + "é" * 10 + '", oops]', "1:16", 25, 1, "syntax"),
    ],
)
def test_a_break_is_named_with_its_place(
    tmp_path: Path, text: str, place: str, byte: int | None, record: int, word: str
) -> None:
    path = tmp_path / "a.json"
    path.write_text(text, "utf-8")
    found = problem(path)
    assert found.code == "data.bad_json"
    assert str(found.where).startswith(f"{path}:{place}")
    assert word in found.texts()["why"]
    assert found.values["record"] == record
    if byte is not None:
        assert found.values["byte"] == byte


def test_a_broken_line_costs_only_itself(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1}\n{"a": \n\n{"a": 3}\n{"a": 4\n{"a": 5}', "utf-8")
    assert values(path) == [{"a": 1}, {"a": 3}, {"a": 5}]
    assert [(f.record, f.line, f.code) for f in faults(path)] == [(1, 2, "bad_line"), (3, 5, "bad_line")]


def test_a_file_whose_first_line_is_broken_is_still_read_by_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": "x\n{"a": 2}\n', "utf-8")
    assert values(path) == [{"a": 2}]
    assert [(f.record, f.line) for f in faults(path)] == [(0, 1)]


@pytest.mark.parametrize(
    ("raw", "byte", "line", "guess"),
    [
        ('[{"a": "你好，世界"}]'.encode("gbk"), 8, 1, "GBK"),
        ('[{"a": 1},\n{"a": "你好"}]'.encode("gbk"), 18, 2, "GBK"),
        ('[{"a": 1}]'.encode("utf-16-le"), 0, 1, "UTF-16LE"),
        ('[{"a": "你好"}]'.encode("utf-16-be"), 0, 1, "UTF-16BE"),
        ('[{"a": "這是一個測試，請回答問題"}]'.encode("big5"), 8, 1, "BIG5"),
        ('[{"a": "caf\xe9 au lait"}]'.encode("cp1252"), 11, 1, "WINDOWS-1252"),
        (b'{"a": "\xe4\xbd"}', 7, 1, None),
        (b'[{"a": "\xe4\xbd', 8, 1, None),
    ],
)
def test_other_encodings_are_named(
    tmp_path: Path, raw: bytes, byte: int, line: int, guess: str | None
) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(raw)
    found = problem(path)
    code = "data.not_utf8" if guess else "data.encoding_unclear"
    assert (found.code, found.values["byte"], found.where) == (code, byte, f"{path}:{line}")
    assert found.values.get("guess") == guess


@pytest.mark.usefixtures("small_chunks")
def test_the_byte_of_a_late_bad_byte_is_exact(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    before = json.dumps([{"a": "你好" * 50}] * 20, ensure_ascii=False).encode()[:-1] + b', "'
    path.write_bytes(before + b"\xff" + b'"]')
    assert problem(path).values["byte"] == len(before)


@pytest.mark.parametrize("raw", [b"", b"  \n\t", b"\xef\xbb\xbf", b"\xef\xbb\xbf \n"])
def test_an_empty_file(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(raw)
    assert problem(path).code == "data.empty_file"


def test_remarks_on_the_layout(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"a": 1}\n{"a": 2}\n', "utf-8")
    assert [(f.code, f.record, f.dropped) for f in faults(path)] == [("lines_in_json", None, False)]
    path.write_text('{\n "a": 1\n}\n', "utf-8")
    assert [f.code for f in faults(path)] == ["single_object"]
    path.write_text("[]", "utf-8")
    assert faults(path) == []
    assert values(path) == []


@pytest.mark.parametrize(
    "text", ['{"data": [[]]}', '{"data": [[1]]}', '{"data": [[[]]]}', '{"data": [[], []]}']
)
def test_lists_in_lists_are_no_records_under_a_key(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(text, "utf-8")
    assert values(path) == [json.loads(text)]


def test_numbers_at_the_end_of_a_window_are_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window, "CHUNK", 1)
    path = tmp_path / "a.json"
    path.write_text("[123456, 1.5e10, true, null]", "utf-8")
    assert values(path) == [123456, 1.5e10, True, None]


def test_oddities_of_json_do_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('[{"a": ' + "9" * 5000 + ', "b": NaN}]', "utf-8")
    (value,) = values(path)
    assert value["a"] == float("inf")
    assert value["b"] != value["b"]
    path.write_text("[" * 100_000, "utf-8")
    assert problem(path).code == "data.bad_json"
    lines = tmp_path / "b.jsonl"
    lines.write_text('{"a": ' + "[" * 100_000 + "1\n" + '{"a": 1}', "utf-8")
    assert values(lines) == [{"a": 1}]


def test_a_key_that_stands_twice_is_marked(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('[{"a": 1, "b": 2, "a": 3}]', "utf-8")
    (value,) = values(path)
    assert isinstance(value, RepeatedKey)
    assert value.key == "a"


@given(
    base=st.binary(max_size=30) | OBJECTS.map(lambda data: json.dumps(data).encode()),
    edits=st.lists(st.tuples(st.integers(0, 60), st.sampled_from(b'[]{}",:\n\\ e-\xff\x00')), max_size=4),
    lines=st.booleans(),
)
@settings(SETTINGS, max_examples=300)
def test_whatever_the_bytes_there_are_records_faults_or_a_problem(
    tmp_path: Path, base: bytes, edits: list[tuple[int, int]], lines: bool
) -> None:
    raw = bytearray(base.strip(b"[]") if lines else base)
    for place, byte in edits:
        raw[place % (len(raw) + 1) : place % (len(raw) + 1)] = bytes([byte])
    path = tmp_path / "a.json"
    path.write_bytes(raw)
    try:
        items = list(read_records(path, "x"))
    except Problem as found:
        assert found.code in language.area_messages("data")
        assert str(found.where).startswith(str(path))
    else:
        numbers = [item.number if isinstance(item, Record) else item.record for item in items]
        numbered = [number for number in numbers if number is not None]
        assert numbered == list(range(len(numbered)))


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    assert problem(tmp_path / "none.json").code == "io.not_found"
    assert problem(tmp_path).code == "io.is_folder"


def test_a_key_without_quotation_marks_is_not_told_as_a_file_cut_off(tmp_path: Path) -> None:
    line = '{"instruction": "a", "output": "b"}'
    path = tmp_path / "d.jsonl"
    path.write_text(f"{line}\n{{broken\n{line}\n")
    found = list(read_records(path, "x"))
    assert [type(each) for each in found] == [Record, Fault, Record]
    fault = found[1]
    assert isinstance(fault, Fault)
    assert (fault.record, fault.line) == (1, 2)
    assert "A key without quotation marks" in fault.reason()


@pytest.mark.parametrize(
    ("line", "mended"),
    [
        (r'{"q": "$\alpha + \frac{1}{2}$"}', None),
        (r'{"q": "C:\Users\new\temp"}', None),
        (r'{"q": "a \% b \_ c", "a": "one\ntwo"}', {"q": r"a \% b \_ c", "a": "one\ntwo"}),
        ('{"q": "He said ""hi"" to me"}', None),
        ("{'q': 'It''s', 'a': 'b'}", None),
        ("{'q': 'x', 'q': 'y'}", None),
        ("{'q': 'x', 'a': None, 'b': True}", {"q": "x", "a": None, "b": True}),
        ('{"q": "x", "a": "y",}', {"q": "x", "a": "y"}),
    ],
)
def test_only_what_is_beyond_doubt_is_mended(tmp_path: Path, line: str, mended: Any) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"q": "first"}}\n{line}\n', "utf-8")
    found = list(read_records(path, "x", lenient=True))
    assert [r.value for r in found if isinstance(r, Record)][1:] == ([] if mended is None else [mended])
    if mended is None:
        (fault,) = (r for r in found if isinstance(r, Fault) and r.dropped)
        assert (fault.record, fault.raw) == (1, line)


def test_a_line_of_quotation_marks_takes_no_time(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"q": "first"}\n{"q":"' + r"\"" * 200_000 + "\n", "utf-8")  # minutes, if each were tried
    assert [r.dropped for r in read_records(path, "x", lenient=True) if isinstance(r, Fault)] == [True]


TURNS = [[{"role": "user", "content": f"q{n}"}, {"role": "assistant", "content": "a" * 50}] for n in range(9)]
WRAPPED = [{"examples": [{"x": "z" * 30}], "instruction": f"i{n}", "output": "a" * 30} for n in range(9)]


@pytest.mark.parametrize("chunk", [64, 100, 177, 1 << 20])
@pytest.mark.parametrize("records", [TURNS, WRAPPED], ids=["turns", "lists inside"])
@pytest.mark.parametrize("indent", [None, 1])
def test_records_are_the_same_wherever_the_window_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int, records: list[Any], indent: int | None
) -> None:
    monkeypatch.setattr(window, "CHUNK", chunk)
    path = tmp_path / "a.json"
    path.write_text("\n".join(json.dumps(record, indent=indent) for record in records), "utf-8")
    is_record = {"instruction", "output"}.issubset
    found = read_records(path, "x", is_record=lambda value: isinstance(value, dict) and is_record(value))
    assert [r.value for r in found if isinstance(r, Record)] == records


@pytest.mark.parametrize("other", ["gb18030", "cp1252"])
@pytest.mark.parametrize("before", [1, 3])
def test_a_line_of_another_encoding_costs_that_line(tmp_path: Path, other: str, before: int) -> None:
    odd = json.dumps({"q": "odd café" if other == "cp1252" else "写一句话"}, ensure_ascii=False).encode(other)
    plain = [json.dumps({"q": f"plain {n}"}).encode() for n in range(before)]
    wide = [json.dumps({"q": f"后面的中文 {n}"}, ensure_ascii=False).encode() for n in range(3)]
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\n".join([*plain, odd, *plain, *wide]))
    found = list(read_records(path, "x", lenient=True))
    expected = [json.loads(line) for line in [*plain, *plain, *wide]]
    assert [r.value for r in found if isinstance(r, Record)] == expected
    assert [(r.record, r.code) for r in found if isinstance(r, Fault)] == [(before, "line_encoding")]


@pytest.mark.parametrize("indent", ["", "  ", "\t"])
def test_a_broken_element_costs_itself_whatever_its_keys(tmp_path: Path, indent: str) -> None:
    good = [{"q": f"{n}", "inner": [{"id": n}, {"id": 0}]} for n in range(50)]
    lines = [json.dumps(record) for record in good]
    lines.insert(1, '{"id": 1 "q": "broken", "inner": [{"id": 7}, {"id": 8}]}')
    path = tmp_path / "a.json"
    path.write_text("[\n" + ",\n".join(indent + line for line in lines) + "\n]", "utf-8")
    found = list(read_records(path, "x", lenient=True))
    assert [r.value for r in found if isinstance(r, Record)] == good
    assert [(r.code, r.record) for r in found if isinstance(r, Fault)] == [("broken", 1)]


def test_a_fault_in_every_element_takes_no_time(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    count = 20_000  # half a minute, if every place were counted from the window's begin
    path.write_text("[" + ",\n".join(['{"q": "x" "a": "好"}'] * count) + "]", "utf-8")
    found = [
        r for r in read_records(path, "x", lenient=True) if isinstance(r, Fault) and r.record is not None
    ]
    assert [(r.record, r.line) for r in found] == [(n, n + 1) for n in range(count)]
    size = len('{"q": "x" "a": "好"},\n'.encode())
    assert [r.values["byte"] for r in found] == [1 + size * n + len('{"q": "x" ') for n in range(count)]


def test_lists_beside_the_records_are_none(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"version": "1", "data": [{"q": "x"}], "authors": ["Ann", "Bob"], "tags": []}', "utf-8")
    assert values(path) == [{"q": "x"}]


GOOD = '{"instruction": "g", "output": "a"}'


@pytest.mark.parametrize(
    "broken",
    [
        '{"id": 1 "instruction": "q", "output": "a"}',
        '{"id": 1, "instruction": "write {instruction} here" "output": "a"}',
        '{"id": 1, "instruction": "q", "output": "a"',
        '{"id": 1, "instruction": "q, "output": "a"}',
        '{"id": 1, "instruction": "q "x" y", "messages": [{"role": "user"}]}',
        '{"id": 1, "messages": [{"instruction": "q"}, {"instruction": "r"}] "x": 1}',
    ],
)
@pytest.mark.parametrize("between", [",", ", ", ",\n", ",\n  "])
@pytest.mark.parametrize("chunk", [7, 64, 1 << 20])
def test_a_broken_element_costs_itself_wherever_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str, between: str, chunk: int
) -> None:
    monkeypatch.setattr(window, "CHUNK", chunk)
    path = tmp_path / "a.json"
    for place in (0, 1, 20):
        path.write_text(f"[{between.join([*[GOOD] * place, broken, *[GOOD] * 20])}]", "utf-8")
        found = list(read_records(path, "x", lenient=True))
        assert [r.value for r in found if isinstance(r, Record)] == [json.loads(GOOD)] * (place + 20)
        assert [(r.code, r.record, r.raw) for r in found if isinstance(r, Fault)] == [
            ("broken", place, broken)
        ]


def test_a_bracket_too_many_is_told_as_such(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(f"{GOOD}\n{GOOD}]\n{GOOD}\n", "utf-8")
    (fault,) = faults(path)
    assert (fault.record, fault.line) == (1, 2)
    assert "bracket too many" in fault.reason()


@pytest.mark.parametrize("end", [",", '"messages": [', "{"])
def test_a_first_line_that_is_broken_off_costs_itself(tmp_path: Path, end: str) -> None:
    path = tmp_path / "a.jsonl"
    first = '{"instruction": "q",'.removesuffix("," if end == "{" else "") + end.removeprefix(",")
    path.write_text(f"{first}\n{GOOD}\n{GOOD}\n", "utf-8")
    assert values(path) == [json.loads(GOOD)] * 2
    assert [(f.code, f.record, f.line) for f in faults(path)] == [("bad_line", 0, 1)]


@pytest.mark.parametrize("packed", ["gz", "bz2", "xz"])
def test_what_can_be_unpacked_is_read_leniently(tmp_path: Path, packed: str) -> None:
    packs: dict[str, Callable[[bytes], bytes]] = {
        "gz": gzip.compress,
        "bz2": bz2.compress,
        "xz": lzma.compress,
    }
    pack = packs[packed]
    whole = pack(f"{GOOD}\n".encode() * 5000)
    path = tmp_path / f"a.jsonl.{packed}"
    damaged = [whole[:-6]] + [whole + b"behind"] * (
        packed == "gz"
    )  # behind the others, Python passes it over
    for raw in damaged:
        path.write_bytes(raw)
        assert problem(path).code == "data.damaged_archive"
        found = list(read_records(path, "x", lenient=True))
        # only the check sum is missing in a .gz; the others' ends are part of their last block
        records = [r for r in found if isinstance(r, Record)]
        assert len(records) == 5000 or (packed == "bz2" and not records)
        assert [r.code for r in found if isinstance(r, Fault)] == ["archive_cut"]


JAPANESE = "これは日本語のテストです。カタカナもあります"
KOREAN = "한국어 문장입니다. 질문에 답해 주세요"


@pytest.mark.parametrize(
    ("codec", "name", "content"),
    [
        ("cp932", "SHIFT_JIS", JAPANESE),
        ("euc_jp", "EUC-JP", JAPANESE),
        ("euc_kr", "EUC-KR", KOREAN),
        ("gbk", "GBK", "请把下面这句话翻译成英文，谢谢"),
    ],
)
def test_a_file_of_one_other_encoding_is_read_leniently(
    tmp_path: Path, codec: str, name: str, content: str
) -> None:
    path = tmp_path / "a.json"
    records = [{"q": f"{content} {n}"} for n in range(20)]
    path.write_bytes(json.dumps(records, ensure_ascii=False, indent=1).encode(codec))
    found = list(read_records(path, "x", lenient=True))
    assert [r.value for r in found if isinstance(r, Record)] == records
    assert [(r.code, r.values["guess"]) for r in found if isinstance(r, Fault)] == [("wrong_encoding", name)]


def test_no_encoding_is_named_for_a_file_that_has_none(tmp_path: Path) -> None:
    """Bad bytes in a list cost their record, and no command to convert the whole file is told."""
    path = tmp_path / "a.json"
    records = [{"q": f"中文的问题 {n}"} for n in range(5)]
    raw = json.dumps(records, ensure_ascii=False, indent=1).encode()
    path.write_bytes(raw.replace("题 3".encode(), b"\xff\xfe 3"))
    assert "iconv" not in str(problem(path).texts())
    assert problem(path).code == "data.encoding_unclear"
    found = list(read_records(path, "x", lenient=True))
    assert [r.value for r in found if isinstance(r, Record)] == records[:3] + records[4:]
    assert [(r.code, r.record) for r in found if isinstance(r, Fault)] == [
        ("line_encoding", 3),
        ("unclear_encoding", None),
    ]


def test_lines_after_a_window_of_another_encoding_are_not_read_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.jsonl"
    other = [{"q": f"请翻译下面的句子 {n}"} for n in range(40)]
    wide = [{"q": f"后面的中文是对的 {n}"} for n in range(40)]
    lines = [json.dumps(value, ensure_ascii=False) for value in (*other, *wide)]
    path.write_bytes("\n".join(lines[:40]).encode("gbk") + b"\n" + "\n".join(lines[40:]).encode())
    monkeypatch.setattr(window, "CHUNK", 600)
    found = [r.value for r in read_records(path, "x", lenient=True) if isinstance(r, Record)]
    assert all(value in other + wide for value in found)
    assert found[-20:] == wide[-20:]


def test_the_first_line_of_a_plain_text_keeps_its_indentation(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("\n    first\n  second\n", "utf-8")
    assert values(path) == [{"text": "    first\n  second"}]


def test_comments_before_a_web_page_take_no_time() -> None:
    assert foreign(b"<!---->" * 500 + b"<p>") is None  # no end, if comments could be parted in many ways
    assert foreign(b"<!-- a --> <!-- b -->\n<html>") == ("web_page", "HTML")


@pytest.mark.parametrize("between", [", ", ",\n", ",\n  "])
@pytest.mark.parametrize("place", [0, 1, 4])
def test_a_record_broken_off_costs_no_other_where_several_formats_are_mixed(
    tmp_path: Path, between: str, place: int
) -> None:
    turns = [{"role": "user", "content": "q {x}"}, {"role": "assistant", "content": "a, {b}"}]
    good = [{"instruction": "q", "output": "a"}, {"messages": turns}, {"id": 1, "messages": turns}] * 3
    path = tmp_path / "a.json"
    whole = json.dumps({"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]})
    for cut in range(10, len(whole)):
        texts = [json.dumps(value) for value in good]
        texts.insert(place, whole[:cut])
        path.write_text(f"[{between.join(texts)}]", "utf-8")
        found = [r.value for r in read_records(path, "x", lenient=True) if isinstance(r, Record)]
        assert [value for value in found if value in good] == good
