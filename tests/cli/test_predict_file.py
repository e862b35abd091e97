"""predict --file as a command: what it may not replace, what it says of questions and of an earlier call."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.tiny import tiny_model, tiny_tokenizer

from tengtune.cli.main import main

torch.set_num_threads(1)  # tiny tensors: see tests/torch_lab.py

BATCH = ("predict", "--model", "model", "--file", "in.jsonl", "--out", "out.jsonl", "--max-new-tokens", "2")


@pytest.fixture(autouse=True)
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tiny_tokenizer(tiny_model(tmp_path / "model", num_hidden_layers=1, max_position_embeddings=128))


def predict(*options: str) -> int:
    with pytest.raises(SystemExit) as left:
        main([*BATCH, *options])
    return int(left.value.code or 0)


def ask(*records: dict[str, Any] | str) -> None:
    lines = [each if isinstance(each, str) else json.dumps(each) for each in records]
    Path("in.jsonl").write_text("".join(f"{line}\n" for line in lines), "utf-8")


def strict(line: str) -> dict[str, Any]:
    """The object in a line, which must be JSON as any program reads it."""

    def refuse(name: str) -> None:
        raise AssertionError(name)

    found: dict[str, Any] = json.loads(line, parse_constant=refuse)
    return found


def answers() -> list[dict[str, Any]]:
    return [strict(line) for line in Path("out.jsonl").read_text("utf-8").splitlines()]


def folder(path: Path) -> None:
    path.mkdir()
    (path / "precious").write_text("a life's work")


def link(path: Path) -> None:
    Path("elsewhere").write_text("a life's work")
    path.symlink_to("elsewhere")


@pytest.mark.parametrize("option", [(), ("--force",)])
@pytest.mark.parametrize("name", ["out.jsonl", "out.jsonl.partial", "out.jsonl.record.json"])
@pytest.mark.parametrize(
    ("make", "code"),
    [(folder, "io.is_folder"), (link, "io.link"), (os.mkfifo, "predict.out_not_plain")],
)
def test_only_a_plain_file_is_replaced(
    make: Callable[[Path], None],
    code: str,
    name: str,
    option: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
) -> None:
    ask({"prompt": "a"})
    make(Path(name))
    before = sorted(Path().rglob("*"))
    assert predict(*option) == 2
    assert f"code {code}" in capsys.readouterr().err
    assert sorted(Path().rglob("*")) == before


def test_names_of_the_questions_that_are_ours_are_kept_apart() -> None:
    ask(
        {"prompt": "a", "answer": "reference", "input_answer": 1, "error": None, "end": "length", "id": 7},
        {"answer": "reference", "record": "r7"},
    )
    assert predict() == 0
    first, second = answers()
    names = ["prompt", "input_input_answer", "input_answer", "input_error", "input_end", "id"]
    assert list(first) == [*names, "answer", "end"]
    assert [first[name] for name in names] == ["a", "reference", 1, None, "length", 7]
    assert second.pop("error").startswith("no question")
    assert second == {"input_answer": "reference", "input_record": "r7", "record": 1}


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999", "-1e999"])
def test_a_number_that_could_not_be_written_again_is_refused(number: str) -> None:
    ask(f'{{"prompt": "a", "score": [{number}]}}', '{"prompt": "b", "score": 1e30}')
    assert predict() == 0
    first, second = answers()
    assert number in first["error"] or number.removeprefix("-") in first["error"]
    assert (first["record"], second["score"]) == (0, 1e30)
    assert "answer" in second


@pytest.mark.parametrize("encoding", ["GBK", "BIG5", "UTF-16", "UTF-16LE"])
def test_questions_in_another_encoding_are_refused_with_its_name(
    encoding: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = '{"prompt": "請問紅燈亮了是什麼意思"}\n{"prompt": "lamp"}\n'
    text = text if encoding == "BIG5" else '{"prompt": "请问红灯亮了是什么意思"}\n{"prompt": "lamp"}\n'
    Path("in.jsonl").write_bytes(text.encode(encoding))
    assert predict() == 2
    said = capsys.readouterr().err
    assert f"looks like {encoding}." in said
    assert "in.jsonl:1" in said
    assert not Path("out.jsonl").exists()
    fix = f"iconv -f {encoding} -t UTF-8 in.jsonl > questions.jsonl"
    assert fix in said
    subprocess.run(fix, shell=True, check=True)
    assert Path("questions.jsonl").read_text("utf-8") == text


def test_bytes_of_no_known_encoding_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    Path("in.jsonl").write_bytes(b'{"prompt": "a"}\n{"prompt": "\xff\xfe\x80"}\n')
    assert predict() == 2
    said = capsys.readouterr().err
    assert "predict.encoding_unclear" in said
    assert "in.jsonl:2" in said


def test_a_line_that_is_not_utf8_has_its_own_error(capsys: pytest.CaptureFixture[str]) -> None:
    lines = ['{"prompt": "你好"}\n'.encode()] * 7
    lines[2:7:2] = ['{"prompt": "请问红灯亮了"}\n'.encode("gbk")] * 3
    Path("in.jsonl").write_bytes(b"".join(lines))
    assert predict() == 0
    found = answers()
    assert ["error" in row for row in found] == [False, False, True, False, True, False, True]
    assert "not UTF-8 (column 13)" in found[2]["error"]
    assert "looks like GBK" in found[2]["error"]
    assert "3 of 7 records could not be asked (counted from 0: 2, 4, 6)" in capsys.readouterr().err


def test_questions_without_room_for_an_answer_are_told_by_their_numbers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    ask({"prompt": "a"}, {"prompt": "x y " * 200, "id": "long"}, {"prompt": "b"}, {"prompt": "x " * 9000})
    assert predict("--json") == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    (warned,) = [event for event in events if event.get("code") == "predict.errors"]
    assert warned["records"] == "1, 3"
    assert [events[-1][name] for name in ("records", "errors")] == [4, 2]
    found = answers()
    assert [row["record"] for row in found if "error" in row] == [1, 3]
    assert found[1]["id"] == "long"
    assert "128 positions" in found[1]["error"]
    assert all("answer" in found[number] for number in (0, 2))


def test_the_summary_counts_what_an_earlier_call_answered(capsys: pytest.CaptureFixture[str]) -> None:
    ask({"prompt": "a"}, {"promt": "b"}, {"prompt": "c"}, {"prompt": 4}, {"prompt": "e"})
    script = (
        "import os, signal, sys\n"
        "from tengtune.answer import batch\n"
        "from tengtune.cli.main import main\n"
        "real = batch._in_order\n"
        "def dying(records, first):\n"
        "    for number, record in enumerate(real(records, first)):\n"
        "        if number == 3: os.kill(os.getpid(), signal.SIGKILL)\n"
        "        yield record\n"
        "batch._in_order = dying\n"
        "main(sys.argv[1:])\n"
    )
    done = subprocess.run([sys.executable, "-c", script, *BATCH], check=False)
    assert done.returncode == -signal.SIGKILL
    assert len(Path("out.jsonl.partial").read_bytes().splitlines()) == 3
    for told in ("record 4: ", "all by an earlier call"):  # going on, and with nothing left to do
        assert predict("--json") == 0
        events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert events[-1] == {
            "event": "result",
            "out": "out.jsonl",
            "records": 5,
            "errors": 2,
            "cut": sum(row.get("end") == "length" for row in answers()),
        }
        assert events[-1]["cut"] == 3
        warnings = [event["text"] for event in events if event["event"] == "warning"]
        assert "2 of 5 records could not be asked (counted from 0: 1, 3)" in warnings[0]
        assert warnings[1].startswith("3 of 5 answers were cut")
        assert told in warnings[1]
