"""`tengtune data` and `tengtune data show`, as a user types them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests import tiny
from tests.unit.test_data_step import CONFIG

from tengtune.cli.main import main
from tengtune.ui import language

RECORDS = [
    {"instruction": "Say yes", "output": "yes"},
    {"instruction": "Say no", "output": "no<|im_end|>"},
    {"instruction": "Nothing"},
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    tiny.tiny_tokenizer(tmp_path / "model")
    (tmp_path / "model" / "config.json").write_text(json.dumps(CONFIG), "utf-8")
    (tmp_path / "data.json").write_text(json.dumps(RECORDS), "utf-8")
    (tmp_path / "run.yaml").write_text(
        "model: model\ndata: {files: [data.json], seq_len: 64, heldout: 0}\n", "utf-8"
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


def tengtune(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout, stderr; each call as in a process of its own."""
    language.choose(None)
    with pytest.raises(SystemExit) as caught:
        main(list(arguments))
    language.choose(None)
    captured = capsys.readouterr()
    return int(caught.value.code or 0), captured.out, captured.err


def events(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_data_makes_the_rows_and_says_what_it_dropped(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = tengtune(capsys, "data", "run.yaml")
    assert code == 0
    assert "1 x missing: data.json, record 2 (line 1): output is missing or null" in err
    assert "trained tokens" in out
    assert (folder / "runs" / "run" / "data" / "train" / "store.json").exists()
    code, out, err = tengtune(capsys, "data")
    assert "up to date" in err
    code, out, err = tengtune(capsys, "data", "--force")
    assert "up to date" not in err


def test_data_speaks_chinese(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = tengtune(capsys, "--lang", "zh", "data")
    assert code == 0
    assert "注意：丢弃 1 处：data.json 记录 2（第 1 行）：缺少 output，或其值为 null（代码 missing）" in err
    assert not re.search("[\u4e00-\u9fff）][:;,(]", err)
    assert "参与训练的 token 数" in out
    code, out, err = tengtune(capsys, "--lang", "zh", "data", "show", "0")
    assert "第 0 个文档，共 2 个（训练集），来自 data.json 记录 0" in out


def test_data_as_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = tengtune(capsys, "data", "--json")
    assert (code, err) == (0, "")
    (result,) = (event for event in events(out) if event["event"] == "result")
    assert result["records"] == 3
    assert result["dropped"] == {"missing": 1}
    code, out, err = tengtune(capsys, "data", "show", "--json", "1")
    (shown,) = events(out)
    assert shown["source"] == "data.json:1"
    assert len(shown["ids"]) == len(shown["trained"])
    assert sum(shown["trained"]) > 1


def test_show_marks_what_is_trained(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tengtune(capsys, "data")
    code, out, _ = tengtune(capsys, "data", "show", "run.yaml", "1")
    assert code == 0
    assert "document 1 of 2 (train), from data.json, record 1" in out
    assert "{im_start}user\nSay no{im_end}\n{im_start}assistant\n[[no<|im_end|>]]{+im_end}" in out
    assert "\033" not in out


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("show", "2"), "view.no_document", "from 0 to 1"),
        (("show", "0", "--heldout"), "view.no_store", "heldout"),
        (("show", "run.yaml", "one"), "view.no_number", "run.yaml one"),
        (("show", "a", "b", "0"), "view.no_number", "a b 0"),
        (("show", "-1"), "ui.no_such_option", "-1"),
        (("show", "other.yaml", "0"), "io.not_found", "other.yaml"),
        (("nowhere.yaml",), "io.not_found", "nowhere.yaml"),
    ],
)
def test_wrong_questions_are_answered(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], code: str, words: str
) -> None:
    tengtune(capsys, "data")
    status, out, err = tengtune(capsys, "data", *arguments)
    assert (status, out) == (2, "")
    assert code in err
    assert words in err


def test_show_before_there_is_anything(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = tengtune(capsys, "data", "show", "0")
    assert status == 2
    assert "tengtune data run.yaml" in err


def test_show_notices_another_tokenizer(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tengtune(capsys, "data")
    path = folder / "model" / "tokenizer.json"
    path.write_text(path.read_text("utf-8") + "\n", "utf-8")
    status, _, err = tengtune(capsys, "data", "show", "0")
    assert status == 2
    assert "view.other_tokenizer" in err


def test_help_names_both_commands() -> None:
    from tengtune.cli.data import command

    text = CliRunner().invoke(command, ["--help"]).output
    assert "tengtune data show [RUN] N" in text
    assert "make" in text
