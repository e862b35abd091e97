"""`tengtune data check` and `tengtune data convert`, as a user types them."""

from __future__ import annotations

import fcntl
import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests import tiny
from tests.cli.test_data_cli import events, tengtune
from tests.mindrecord_lab import compose
from tests.unit.test_data_step import CONFIG
from tokenizers import Tokenizer

from tengtune.data.check import check
from tengtune.data.fault import Fault
from tengtune.data.judge import Judge
from tengtune.data.read import Reader
from tengtune.data.scripts import language_of
from tengtune.text.conversation import Conversation
from tengtune.ui import language

ROOT = Path(__file__).resolve().parents[2]
MESSY = ROOT / "tests" / "data" / "messy"
CASES: list[dict[str, Any]] = json.loads(
    (ROOT / "tests" / "golden" / "alpaca_converter" / "cases.json").read_text("utf-8")
)
CONVERTED = [
    case
    for case in CASES
    if "output" in case["expected"]
    # What its own next script ends on, and where it loses keys without a word.
    and case["tag"]
    not in {
        "output_number",
        "output_null",
        "output_list",
        "nan_value",
        "instruction_null_no_input",
        "extra_keys_dropped",
        "duplicate_key",
    }
]
Capture = pytest.CaptureFixture[str]


def write(folder: Path, records: Any, name: str = "data.json") -> str:
    (folder / name).write_text(json.dumps(records, ensure_ascii=False), "utf-8")
    return name


@pytest.fixture(autouse=True)
def in_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_every_fault_with_place_reason_and_fix(tmp_path: Path, capsys: Capture) -> None:
    good = {"instruction": "a", "output": "b"}
    lines = [json.dumps(good), '{"instruction": "a", "output"', json.dumps({"instruction": "c", "output": 3})]
    (tmp_path / "data.jsonl").write_text("\n".join(lines), "utf-8")
    code, out, _ = tengtune(capsys, "data", "check", "data.jsonl")
    assert code == 2
    assert "records: 3; can be used: 1, cannot: 2" in out
    assert re.search(
        r"data.jsonl, record 1 \(line 2\): the line is not valid JSON.*\n +what to do: mend", out
    )
    assert re.search(
        r"data.jsonl, record 2 \(line 3\): output is of type number.*\n +what to do: write it as a text", out
    )
    code, out, _ = tengtune(capsys, "data", "check", "data.jsonl", "--json")
    faults = [e for e in events(out) if e["event"] == "fault"]
    assert [(f["record"], f["line"], f["code"], bool(f["fix"])) for f in faults] == [
        (1, 2, "bad_line", True),
        (2, 3, "not_text", True),
    ]
    account = events(out)[-1]
    assert (code, account["records"], account["usable"], account["dropped"]) == (2, 3, 1, 2)
    assert account["kinds"] == {"bad_line": 1, "not_text": 1}


def test_a_clean_file_ends_with_zero(tmp_path: Path, capsys: Capture) -> None:
    code, out, _ = tengtune(capsys, "data", "check", write(tmp_path, [{"instruction": "a", "output": "b"}]))
    assert code == 0
    assert "Nothing to complain about." in out
    code, out, _ = tengtune(capsys, "--lang", "zh", "data", "check", "data.json")
    assert code == 0
    assert "没有发现问题" in out


def test_one_unreadable_file_does_not_hide_the_others(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "empty.json").write_text("", "utf-8")
    good = write(tmp_path, [{"instruction": "a", "output": "b"}])
    code, out, err = tengtune(capsys, "data", "check", "empty.json", "nosuch.json", good)
    assert code == 2
    assert "data.empty_file" in err
    assert "io.not_found" in err
    assert "can be used: 1" in out
    assert "Nothing to complain about" not in tengtune(capsys, "data", "check", "empty.json")[1]


def test_a_file_that_cannot_be_read_brings_no_sums(tmp_path: Path, capsys: Capture) -> None:
    code, out, err = tengtune(capsys, "data", "check", "nosuch.json")
    assert (code, out.strip(), "io.not_found" in err) == (2, "", True)
    tiny.tiny_tokenizer(tmp_path / "model")
    (tmp_path / "model" / "config.json").write_text(json.dumps(CONFIG), "utf-8")
    compose(tmp_path / "x.mindrecord", [{"input_ids": [1, 2], "labels": [1, 2]}])
    for name in ("nosuch.json", "x.mindrecord"):
        code, out, err = tengtune(capsys, "data", "check", name, "--model", "model")
        assert (code, out.strip(), "%" in err) == (2, "", False)


def test_a_file_without_records_is_named(tmp_path: Path, capsys: Capture) -> None:
    code, out, _ = tengtune(capsys, "data", "check", write(tmp_path, [], "nil.json"))
    assert code == 2
    assert "nil.json: the file holds no record" in out
    good = write(tmp_path, [{"instruction": "a", "output": "b"}])
    code, out, _ = tengtune(capsys, "--lang", "zh", "data", "check", good, "nil.json")
    assert code == 0
    assert "nil.json：文件里一条记录也没有" in out


def account_of(out: str) -> dict[str, Any]:
    """The account of --json."""
    return next(event for event in events(out) if event["event"] == "account")


def assert_sums_add_up(out: str) -> None:
    """Each record that is dropped has a fault, and each is counted once."""
    told, account = events(out), account_of(out)
    against = {(e["file"], e["record"]) for e in told if e["event"] == "fault" and e["dropped"]}
    assert account["dropped"] == len(against) == sum(account["kinds"].values())
    assert None not in {record for _, record in against}


@pytest.mark.parametrize("name", sorted(p.name for p in MESSY.iterdir() if p.suffix != ".md"))
def test_the_sums_add_up(name: str, capsys: Capture) -> None:
    out = tengtune(capsys, "data", "check", str(MESSY / name), "--json")[1]
    assert_sums_add_up(out)
    account = account_of(out)
    assert account["records"] == account["usable"] + account["dropped"]


def test_a_fault_of_the_file_is_no_record(tmp_path: Path, capsys: Capture) -> None:
    good = [json.dumps({"instruction": str(i), "output": "b"}) for i in range(3)]
    (tmp_path / "data.json").write_text(f"[{good[0]}\n{good[1]},\n{good[2]},\n]", "utf-8")
    code, out, _ = tengtune(capsys, "data", "check", "data.json")
    assert code == 2
    assert "records: 3; can be used: 3, cannot: 0" in out
    assert "The file:\n  broken: 2" in out
    assert "Cannot be used" not in out
    code, out, _ = tengtune(capsys, "data", "check", "data.json", "--json")
    assert_sums_add_up(out)
    assert (code, account_of(out)["file_faults"]) == (2, {"broken": 2})


def test_one_empty_answer_costs_a_record_of_several_conversations_once(
    tmp_path: Path, capsys: Capture
) -> None:
    instances = [{"input": str(i), "output": "" if i == 600 else "b"} for i in range(1200)]
    bad = {"instruction": "a", "instances": instances}
    write(tmp_path, [bad, {"instruction": "c", "instances": instances[:599]}])
    code, out, _ = tengtune(capsys, "data", "check", "data.json", "--json")
    assert_sums_add_up(out)
    account = account_of(out)
    assert (code, account["records"], account["kinds"]) == (2, 2, {"empty_answer": 1})


def test_copies_and_contradictions_are_counted_and_named(tmp_path: Path, capsys: Capture) -> None:
    pairs = [("a", "1"), ("b", "2"), ("a", "1"), ("a", "3"), ("b", "2"), ("a", "1")]
    name = write(tmp_path, [{"instruction": q, "output": a} for q, a in pairs])
    code, out, _ = tengtune(capsys, "data", "check", name)
    assert code == 0
    assert (
        "Copies of an earlier conversation, word for word: 3 (data.json, record 2 / data.json, record 0; "
        in out
    )
    assert "data.json, record 4 / data.json, record 1; data.json, record 5 / data.json, record 0)" in out
    assert "Questions with different answers: 1 (data.json, record 3 / data.json, record 2)" in out


def test_lengths_and_rows_in_the_models_tokens(tmp_path: Path, capsys: Capture) -> None:
    tokenizer = Tokenizer.from_file(str(tiny.tiny_tokenizer(tmp_path / "model") / "tokenizer.json"))
    (tmp_path / "model" / "config.json").write_text(json.dumps(CONFIG), "utf-8")
    texts = ["x" * count for count in (1, 5, 40)]
    name = write(tmp_path, [{"system": "s", "instruction": "q", "output": text} for text in texts])
    code, out, _ = tengtune(capsys, "data", "check", name, "--model", "model", "--seq-len", "16", "--json")
    account = events(out)[-1]
    before = "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n"
    lengths = [len(tokenizer.encode(f"{before}{text}<|im_end|>\n").ids) for text in texts]
    assert (code, account["unit"], account["total"]) == (2, "tokens", sum(lengths))
    assert account["lengths"]["p100"] == max(lengths)
    row = next(row for row in account["rows"] if row["seq_len"] == 16)
    assert row["longer"] == sum(n > 16 for n in lengths)
    assert row["beyond"] == sum(max(n - 16, 0) for n in lengths)
    assert row["rows"] >= -(-sum(min(n, 16) for n in lengths) // 16)


@pytest.mark.parametrize("policy", ["cut", "split", "drop"])
def test_the_verdict_on_a_row_length_is_trainings(policy: str, tmp_path: Path, capsys: Capture) -> None:
    """Short ones, a long answer, a long question, an exchange too long in a conversation: what the data step
    drops and remarks on is what the check says before."""
    tiny.tiny_tokenizer(tmp_path / "model")
    (tmp_path / "model" / "config.json").write_text(json.dumps(CONFIG), "utf-8")
    long = {"role": "user", "content": "x" * 300}, {"role": "assistant", "content": "y"}
    short = {"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}
    talks = [short, (short[0], {"role": "assistant", "content": "y" * 300}), long, (*short, *long), short]
    name = write(tmp_path, [{"messages": talk} for talk in talks])
    lines = f"model: model\ndata: {{files: {name}, seq_len: 64, too_long: {policy}, heldout: 0.0}}\n"
    (tmp_path / "again.yaml").write_text(lines, "utf-8")
    assert tengtune(capsys, "data", "again.yaml", "--json")[0] == 0
    made = json.loads((tmp_path / "runs" / "again" / "data.json").read_text("utf-8"))["figures"]
    arguments = ("--model", "model", "--seq-len", "64", "--too-long", policy, "--json")
    code, out, _ = tengtune(capsys, "data", "check", name, *arguments)
    account = events(out)[-1]
    assert (account["records"], account["usable"]) == (made["records"], made["kept"])
    assert account["kinds"] == made["dropped"]
    assert account["remarks"] == made["remarks"]
    assert (code, account["dropped"] > 0) == (2, True)
    faults = [each for each in events(out) if each["event"] == "fault"]
    assert all(each["fix"] for each in faults if each["code"] != "split")
    code, out, _ = tengtune(capsys, "data", "check", name, *arguments, "--fix", "fixed.jsonl")
    assert code == 2


def test_what_becomes_of_long_ones_needs_a_length(tmp_path: Path, capsys: Capture) -> None:
    name = write(tmp_path, [{"instruction": "a", "output": "b"}])
    code, _, err = tengtune(capsys, "data", "check", name, "--too-long", "drop")
    assert (code, "check.too_long_without_seq_len" in err) == (2, True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("What is it?", "latin"),
        ("这是什么？", "zh"),
        ("これは何ですか", "ja"),
        ("이것은 무엇입니까", "ko"),
        ("Что это такое?", "cyrillic"),
        ("ما هذا", "arabic"),
        ("请把 please translate this whole sentence 翻译", "mixed"),
        ("用 MindSpore 训练大模型需要哪些步骤", "zh"),
        ("1 + 1 = 2", "none"),
        ("\U00020000\U00020001\U00020002", "zh"),
    ],
)
def test_languages_by_their_letters(text: str, expected: str) -> None:
    assert language_of(text) == expected


def test_every_reason_against_a_record_has_a_fix() -> None:
    raised: set[str] = set()
    for path in (ROOT / "src" / "tengtune" / "data").rglob("*.py"):
        text = path.read_text("utf-8")
        raised |= set(re.findall(r'(?:Unfit\(|_fault\(notes, )"(\w+)"', text))
    told_when_rows_are_made = {"copy", "too_long"}
    fixes = language.area_messages("check")
    assert len(raised) > 25
    assert {code for code in raised if f"check.fix_{code}" not in fixes} <= told_when_rows_are_made


def test_fix_writes_every_record_somewhere(tmp_path: Path, capsys: Capture) -> None:
    lines = [
        '{"instruction": "a", "output": "b"}',
        '{"instruction": "a", "output": "b"}',
        '{"instruction": "c", "output": "d",}',
        "{'instruction': 'e', 'output': 'f'}",
        '{"instruction": "g", "output": 7}',
        '{"instruction": "h", "output": ""}',
        "{broken",
    ]
    (tmp_path / "in.jsonl").write_text("\n".join(lines), "utf-8")
    code, _, err = tengtune(capsys, "data", "check", "in.jsonl", "--fix", "out.jsonl")
    assert code == 0
    assert "out.jsonl: 4 records, 3 of them mended" in err
    out = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text("utf-8").splitlines()]
    assert out == [{"instruction": q, "output": a} for q, a in ("ab", "cd", "ef", "g7")]
    rejected = [
        json.loads(line) for line in (tmp_path / "out.jsonl.rejected.jsonl").read_text("utf-8").splitlines()
    ]
    assert [(r["record"], r["line"], r["reasons"][0]["code"]) for r in rejected] == [
        (1, 2, "copy"),
        (5, 6, "empty_answer"),
        (6, 7, "bad_line"),
    ]
    assert rejected[2]["raw"].strip() == "{broken"
    changes = [
        json.loads(line) for line in (tmp_path / "out.jsonl.changes.jsonl").read_text("utf-8").splitlines()
    ]
    assert [change["record"] for change in changes] == [2, 3, 4]
    assert tengtune(capsys, "data", "check", "out.jsonl")[0] == 0


def fixed_table(folder: Path, text: str, capsys: Capture) -> tuple[list[str], list[dict[str, Any]]]:
    """Of a table what --fix writes: the instructions of what can be used, and what was rejected."""
    (folder / "in.csv").write_text(text, "utf-8", newline="")
    tengtune(capsys, "data", "check", "in.csv", "--fix", "out.jsonl", "--force")
    used, rejected = (
        [json.loads(line) for line in (folder / name).read_text("utf-8").splitlines()]
        for name in ("out.jsonl", "out.jsonl.rejected.jsonl")
    )
    return [record["instruction"] for record in used], rejected


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_the_text_of_every_rejected_row_is_kept(newline: str, tmp_path: Path, capsys: Capture) -> None:
    rows = ["instruction,output", "a,1", "b,2,3", 'c,"4" 5', "d", 'e,"6', "f,7"]
    used, rejected = fixed_table(tmp_path, newline.join(rows) + newline, capsys)
    assert used == ["a"]
    assert [(each["record"], each["line"], each["reasons"][0]["code"], each["raw"]) for each in rejected] == [
        (1, 3, "row_length", "b,2,3"),
        (2, 4, "bad_row", 'c,"4" 5'),
        (3, 5, "row_length", "d"),
        (4, 6, "open_quote_from", f'e,"6{newline}f,7'),
    ]


@pytest.mark.parametrize("later", [(), ('z,"x, y"',), ('z,"x', 'y"')])
def test_an_open_quotation_mark_costs_its_own_row(
    later: tuple[str, ...], tmp_path: Path, capsys: Capture
) -> None:
    good = [f"q{i},{i}" for i in range(20)]
    rows = ["instruction,output", "a,1", 'b,"2', *good, *later, "c,3", ""]
    used, rejected = fixed_table(tmp_path, "\n".join(rows), capsys)
    assert used == ["a", *(f"q{i}" for i in range(20)), *("z" for _ in later[:1]), "c"]
    assert [(each["line"], each["raw"]) for each in rejected] == [(3, 'b,"2')]


def test_the_lines_of_a_cell_that_was_cut_off_become_no_rows(tmp_path: Path, capsys: Capture) -> None:
    lines = [f"First {i}, then {i + 1}" if i != 15 else "Well" for i in range(20)]
    text = "\n".join(["instruction,output", "a,1", 'b,"So:', *lines])
    used, rejected = fixed_table(tmp_path, text, capsys)
    assert used == ["a"]
    assert [each["raw"] for each in rejected] == ["\n".join(['b,"So:', *lines])]


NULLED = "numbers JSON does not know (NaN, infinite) or too long ones became null"


def changes_of(folder: Path, capsys: Capture, content: bytes, name: str) -> tuple[int, list[dict[str, Any]]]:
    """How many records --fix says it mended, and what OUT.changes.jsonl says."""
    (folder / name).write_bytes(content)
    code, out, _ = tengtune(capsys, "data", "check", name, "--fix", "out.jsonl", "--json")
    assert code == 0
    lines = (folder / "out.jsonl.changes.jsonl").read_text("utf-8").splitlines()
    return events(out)[-1]["mended"], [json.loads(line) for line in lines]


@pytest.mark.parametrize(
    ("line", "change"),
    [
        ('{"instruction": "a", "output": "b",}', "comma removed"),
        ('{"instruction": "a", "output": "b"} // c', "comment removed"),
        ("{'instruction': 'a', 'output': 'b'}", "Python literal written as JSON"),
        ('{"instruction": "a", "output": "b\tc"}', "tab or line break in a text written as an escape"),
        ('{"instruction": "a", "output": 7}', "the number output became a text"),
        ('{"instruction": "a", "output": "50\\%"}', "backslash doubled"),
        *(
            (f'{{"instruction": "a", "output": "b", "score": {number}}}', NULLED)
            for number in ("NaN", "-Infinity", "1e999", "9" * 1000)
        ),
    ],
)
def test_a_change_says_what_was_done(line: str, change: str, tmp_path: Path, capsys: Capture) -> None:
    good = '{"instruction": "q", "output": "x"}'
    mended, changes = changes_of(tmp_path, capsys, f"{good}\n{line}\n".encode(), "in.jsonl")
    assert (mended, [(each["record"], each["change"]) for each in changes]) == (1, [(1, change)])


@pytest.mark.parametrize(("encoding", "name"), [("gbk", "GBK"), ("big5", "BIG5"), ("utf-16", "UTF-16")])
def test_a_file_of_another_encoding_is_mended_and_said(
    encoding: str, name: str, tmp_path: Path, capsys: Capture
) -> None:
    text = (
        "今天天氣很好，我們一起去公園走走。" if encoding == "big5" else "今天天气很好，我们一起去公园走走。"
    )
    records = [{"instruction": f"{i}", "output": text} for i in range(3)]
    content = "\n".join(json.dumps(record, ensure_ascii=False) for record in records).encode(encoding)
    mended, changes = changes_of(tmp_path, capsys, content, "in.jsonl")
    assert mended == 3
    assert [each["change"] for each in changes] == [f"read as {name}, written as UTF-8"]
    written = (tmp_path / "out.jsonl").read_text("utf-8").splitlines()
    assert [json.loads(line) for line in written] == records


def test_a_broken_file_leads_to_fix(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "my data.json").write_text('[{"instruction": "a", "output": "b"},]', "utf-8")
    convert = ("data", "convert", "my data.json", "--to", "alpaca", "--out", "out.json")
    code, _, err = tengtune(capsys, *convert)
    assert code == 2
    assert "tengtune data check 'my data.json' --fix clean.jsonl" in " ".join(err.split())
    code, out, _ = tengtune(capsys, "data", "check", "my data.json", "--fix", "clean.jsonl")
    assert code == 0
    assert "what to do: let --fix mend it" in out
    assert (tmp_path / "clean.jsonl").exists()


@pytest.mark.parametrize(
    ("record", "key", "near"),
    [
        ({"instuction": "a"}, "instuction", "instruction"),
        ({"Instuction": "a", "output": "b"}, "Instuction", "instruction"),
        ({"mesages": []}, "mesages", "messages"),
        ({"promt": "a", "completion": "b"}, "promt", "prompt"),
        ({"questoin": "a", "anwser": "b"}, "questoin", "question"),
    ],
)
def test_a_misspelt_key_alone_is_told(
    record: dict[str, Any], key: str, near: str, tmp_path: Path, capsys: Capture
) -> None:
    _, out, _ = tengtune(capsys, "data", "check", write(tmp_path, [record]), "--json")
    (fault,) = [e for e in events(out) if e["event"] == "fault" and e["dropped"]]
    assert fault["code"] == "misspelt"
    assert f'"{key}"' in fault["reason"]
    assert near in fault["reason"]


def test_keys_that_are_like_none_are_not_guessed_at(tmp_path: Path, capsys: Capture) -> None:
    records = [{"title": "a", "body": "b"}, {"query": "a"}, {"inputs": "a"}]
    _, out, _ = tengtune(capsys, "data", "check", write(tmp_path, records), "--json")
    assert events(out)[-1]["kinds"] == {"no_format": 3}


def test_chinese_texts_name_kinds_in_chinese(tmp_path: Path, capsys: Capture) -> None:
    write(tmp_path, [{"instruction": "a", "output": value} for value in (1, [1], {"a": 1}, True)])
    out = tengtune(capsys, "--lang", "zh", "data", "check", "data.json")[1]
    for kind in ("数字", "列表", "对象", "布尔值"):
        assert f"output 是{kind}" in out


@pytest.mark.parametrize("name", sorted(p.name for p in MESSY.iterdir() if p.name != "manifest.json"))
def test_what_fix_writes_is_clean_and_nothing_is_lost(name: str, tmp_path: Path, capsys: Capture) -> None:
    code, out, _ = tengtune(capsys, "data", "check", str(MESSY / name), "--fix", "out.jsonl", "--json")
    account = next(event for event in events(out) if event["event"] == "account")
    if not account["usable"]:
        assert code == 2
        assert not (tmp_path / "out.jsonl").exists()
        return
    fixed = events(out)[-1]
    assert fixed["written"] + fixed["rejected"] == account["records"]
    assert fixed["written"] >= account["usable"] - account["copies"]
    assert tengtune(capsys, "data", "check", "out.jsonl")[0] == 0


def test_the_output_never_overwrites_an_input(tmp_path: Path, capsys: Capture) -> None:
    name = write(tmp_path, [{"instruction": "a", "output": "b"}])
    before = (tmp_path / name).read_bytes()
    for arguments in (
        ("check", name, "--fix", name),
        ("convert", name, "--to", "alpaca", "--out", f"./{name}"),
    ):
        code, _, err = tengtune(capsys, "data", *arguments, "--force")
        assert (code, (tmp_path / name).read_bytes()) == (2, before)
        assert "check.onto_itself" in err


@pytest.mark.parametrize("added", [".rejected.jsonl", ".changes.jsonl", ".partial", ".lock"])
def test_nor_does_what_stands_beside_it(added: str, tmp_path: Path, capsys: Capture) -> None:
    name = write(tmp_path, [{"instruction": "a", "output": "b"}], f"out.jsonl{added}")
    before = (tmp_path / name).read_bytes()
    code, _, err = tengtune(capsys, "data", "check", name, "--fix", "out.jsonl", "--force")
    assert (code, (tmp_path / name).read_bytes()) == (2, before)
    assert "check.onto_itself" in err
    assert not (tmp_path / "out.jsonl").exists()


@pytest.mark.parametrize("there", ["out.jsonl", "out.jsonl.rejected.jsonl", "out.jsonl.changes.jsonl"])
def test_what_is_there_is_overwritten_only_on_demand(there: str, tmp_path: Path, capsys: Capture) -> None:
    name = write(tmp_path, [{"instruction": "a", "output": "b"}])
    (tmp_path / there).write_text("mine", "utf-8")
    code, _, err = tengtune(capsys, "data", "check", name, "--fix", "out.jsonl")
    assert (code, (tmp_path / there).read_text("utf-8")) == (2, "mine")
    assert "check.out_exists" in err
    assert there in err
    assert tengtune(capsys, "data", "check", name, "--fix", "out.jsonl", "--force")[0] == 0
    assert (tmp_path / there).read_text("utf-8") != "mine"


def test_convert_overwrites_only_on_demand(tmp_path: Path, capsys: Capture) -> None:
    name = write(tmp_path, [{"instruction": "a", "output": "b"}])
    (tmp_path / "out.json").write_text("mine", "utf-8")
    arguments = ("data", "convert", name, "--to", "alpaca", "--out", "out.json")
    code, _, err = tengtune(capsys, *arguments)
    assert (code, "check.out_exists" in err, (tmp_path / "out.json").read_text("utf-8")) == (2, True, "mine")
    assert tengtune(capsys, *arguments, "--force")[0] == 0
    assert json.loads((tmp_path / "out.json").read_text("utf-8"))[0]["output"] == "b"


@pytest.mark.parametrize(
    "arguments",
    [
        ("convert", "data.json", "--to", "alpaca", "--out", "al.csv"),
        ("convert", "data.json", "--to", "alpaca", "--out", "al.json.gz"),
        ("convert", "data.json", "--to", "alpaca", "--out", "al"),
        ("check", "data.json", "--fix", "al.csv"),
        ("check", "data.json", "--fix", "al.json"),
    ],
)
def test_a_name_that_promises_something_else_is_refused(
    arguments: tuple[str, ...], tmp_path: Path, capsys: Capture
) -> None:
    write(tmp_path, [{"instruction": "a", "output": "b"}])
    code, _, err = tengtune(capsys, "data", *arguments)
    assert code == 2
    assert "check.out_suffix" in err
    assert ".jsonl" in err
    assert not (tmp_path / arguments[-1]).exists()


@pytest.mark.parametrize("arguments", [("check", "--fix"), ("convert", "--to", "alpaca", "--out")])
def test_two_commands_do_not_write_to_one_output(
    arguments: tuple[str, ...], tmp_path: Path, capsys: Capture
) -> None:
    name = write(tmp_path, [{"instruction": "a", "output": "b"}])
    with open(tmp_path / "out.jsonl.lock", "w", encoding="utf-8") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        command, *options = arguments
        code, _, err = tengtune(capsys, "data", command, name, *options, "out.jsonl")
        assert (code, "lock.busy" in err, (tmp_path / "out.jsonl").exists()) == (5, True, False)


def test_other_names_are_mapped(tmp_path: Path, capsys: Capture) -> None:
    name = write(tmp_path, [{"ask": "a", "reply": "b"}])
    assert tengtune(capsys, "data", "check", name)[0] == 2
    mapped = ("--map", "instruction=ask", "--map", "output=reply")
    assert tengtune(capsys, "data", "check", name, *mapped)[0] == 0
    tengtune(capsys, "data", "convert", name, *mapped, "--to", "messages", "--out", "m.jsonl")
    assert json.loads((tmp_path / "m.jsonl").read_text("utf-8"))["messages"][1]["content"] == "b"
    code, _, err = tengtune(capsys, "data", "check", name, "--map", "output")
    assert (code, "check.bad_map" in err) == (2, True)
    code, _, err = tengtune(capsys, "data", "check", name, "--map", "outputs=reply")
    assert (code, "data.map_unknown" in err) == (2, True)


@pytest.mark.parametrize("case", CONVERTED, ids=lambda case: case["tag"])
def test_conversation_is_the_reference_converters_bytes(
    case: dict[str, Any], tmp_path: Path, capsys: Capture
) -> None:
    (tmp_path / "in.json").write_bytes(case["input"].encode("utf-8"))
    code, _, err = tengtune(
        capsys,
        "data",
        "convert",
        "in.json",
        "--format",
        "alpaca",
        "--to",
        "conversation",
        "--out",
        "out.json",
    )
    expected = case["expected"]["output"].encode("ascii")
    if expected == b"[]":
        assert (code, "data.no_records" in err) == (2, True)
        return
    assert code == 0, err
    assert (tmp_path / "out.json").read_bytes() == expected


TALKS = [
    {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]},
    {
        "messages": [
            {"role": "system", "content": "s"},
            {"role": "user", "content": "q1"},
            {"role": "assistant", "content": "a1", "train": False},
            {"role": "user", "content": "q2"},
            {"role": "assistant", "content": "", "tool_calls": [{"name": "f", "arguments": {"x": 1}}]},
            {"role": "tool", "content": "7"},
            {"role": "assistant", "content": "a2"},
        ],
        "tools": [{"name": "f", "parameters": {}}],
    },
]


@pytest.mark.parametrize("form", ["messages", "conversation"])
@pytest.mark.parametrize("out", ["out.json", "out.jsonl"])
def test_what_is_written_is_read_as_it_was(form: str, out: str, tmp_path: Path, capsys: Capture) -> None:
    write(tmp_path, TALKS)
    assert tengtune(capsys, "data", "convert", "data.json", "--to", form, "--out", out)[0] == 0
    assert talks(tmp_path / out) == talks(tmp_path / "data.json")


def test_alpaca_says_what_it_has_no_place_for(tmp_path: Path, capsys: Capture) -> None:
    plain = {"messages": [{"role": r, "content": c} for r, c in (("user", "q"), ("assistant", "a")) * 2]}
    write(tmp_path, [*TALKS, plain])
    code, _, err = tengtune(capsys, "data", "convert", "data.json", "--to", "alpaca", "--out", "out.json")
    assert code == 0
    assert "1 x no_place: data.json, record 1" in err
    assert json.loads((tmp_path / "out.json").read_text("utf-8")) == [
        {"instruction": "q", "input": "", "output": "a"},
        {"instruction": "q", "input": "", "output": "a", "history": [["q", "a"]]},
    ]
    write(tmp_path, TALKS[1:])
    code, _, err = tengtune(capsys, "data", "convert", "data.json", "--to", "alpaca", "--out", "none.json")
    assert (code, "check.nothing_written" in err, (tmp_path / "none.json").exists()) == (2, True, False)


def talks(path: Path) -> list[Conversation]:
    reader = Reader({"x": path})
    return [talk for item in reader.read() if not isinstance(item, Fault) for talk in item.conversations]


def test_a_repeated_record_counts_by_content_not_by_format(tmp_path: Path) -> None:
    write(tmp_path, [TALKS[0], {"instruction": "q", "output": "a"}, {"instruction": "q", "output": "b"}])
    reader = Reader({"data.json": tmp_path / "data.json"}, lenient=True)
    account = check(reader, Judge("assistant", ()), None, lambda fault: None, lambda problem: None)
    assert account.copies() == (1, [(("data.json", 1), ("data.json", 0))])
    assert account.contradictions() == (1, [(("data.json", 2), ("data.json", 1))])
