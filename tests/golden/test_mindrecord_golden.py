"""MindRecord files against mindformers' own: read, and written from the same conversations."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cli.test_data_cli import events, tengtune
from tests.fetch import tokenizer_folder
from tests.mindrecord_lab import GOLDEN, unpack
from tests.qwen1 import qwen1_config
from tests.tiny import tiny_config

from tengtune.data.mindrecord import MindRecord

PREPROCESS = GOLDEN.parent / "preprocess"
COLUMNS = ("input_ids", "labels", "attention_mask")


def arrays(path: Path) -> dict[str, np.ndarray]:
    with np.load(path) as file:
        return dict(file)


@pytest.mark.parametrize("archive", ["qwen.mindrecord.tar.xz", "two_shards.tar.xz"])
def test_what_mindformers_wrote_is_read_to_the_last_id(tmp_path: Path, archive: str) -> None:
    expected = arrays(GOLDEN / "expected.npz")
    file = MindRecord(unpack(archive, tmp_path))
    order = np.arange(24) if "two" not in archive else expected["order_two_all"]
    assert file.records == 24
    rows = list(file.rows(COLUMNS))
    for place, name in enumerate(COLUMNS):
        found = np.stack([row[place] for row in rows])
        np.testing.assert_array_equal(found, expected[name][order], err_msg=name)


def qwen1_model(folder: Path) -> Path:
    """A folder with the first generation's vocabulary, and a config.json that goes with it."""
    folder.mkdir()
    shutil.copy(tokenizer_folder("qwen1") / "qwen.tiktoken", folder)
    config = qwen1_config(tiny_config(max_position_embeddings=8192), vocab_size=151_936)
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    return folder


def convert(
    capsys: pytest.CaptureFixture[str], data: Path, model: Path, seq_len: int, out: Path
) -> list[dict[str, Any]]:
    """`data convert` under policy qwen; its faults."""
    rows = ("--to", "mindrecord", "--policy", "qwen", "--seq-len", str(seq_len), "--model", str(model))
    code, stdout, _ = tengtune(capsys, "data", "convert", str(data), *rows, "--out", str(out), "--json")
    assert code == 0
    return [event for event in events(stdout) if event["event"] == "fault"]


def rows_of(path: Path) -> list[list[list[int]]]:
    return [[column.tolist() for column in row] for row in MindRecord(path).rows(COLUMNS)]


def test_under_policy_qwen_the_rows_are_the_references(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The two sets of goldens: 24 conversations that mindformers wrote as MindRecord, 200 as arrays."""
    model = qwen1_model(tmp_path / "model")
    convert(capsys, GOLDEN / "input.json", model, 64, tmp_path / "a.mindrecord")
    assert rows_of(tmp_path / "a.mindrecord") == rows_of(
        unpack("qwen.mindrecord.tar.xz", tmp_path / "theirs")
    )
    told = convert(capsys, PREPROCESS / "conversations.json", model, 256, tmp_path / "b.mindrecord")
    expected = arrays(PREPROCESS / "conversations.npz")
    # A lone surrogate cannot be stored as text, so that record is dropped; the reference makes U+FFFD of it.
    assert [(event["record"], event["code"]) for event in told if event.get("dropped")] == [
        (192, "surrogate")
    ]
    kept = [i for i in range(200) if i != 192]
    for place, name in enumerate(COLUMNS):
        found = [row[place].tolist() for row in MindRecord(tmp_path / "b.mindrecord").rows(COLUMNS)]
        np.testing.assert_array_equal(found, expected[name][kept], err_msg=name)


@pytest.mark.parametrize("page", ["README.md", "README.zh.md"])
def test_readme_s_command_in_the_reference_s_place_makes_its_rows(
    page: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The line as it stands there, but for the files and the length; what the table names is in it, and the
    run file beside it reads records to their last id."""
    text = (GOLDEN.parents[2] / page).read_text("utf-8")
    (line,) = re.findall(r"^tengtune (data convert .*--to mindrecord.*)$", text, re.MULTILINE)
    (named,) = re.findall(r"qwen_preprocess\.py .*`tengtune (data convert [^`]*)`", text)
    words = line.split()
    assert f" {' '.join(named.split()[2:])} " in line
    length = words[words.index("--seq-len") + 1]
    assert f"files: {words[-1]}, seq_len: {int(length) + 1}," in text
    out, model = tmp_path / "a.mindrecord", qwen1_model(tmp_path / "model")
    put = {
        "chats.json": GOLDEN / "input.json",
        "chat-model": model,
        length: 64,
        "chats.mindrecord": out,
    }
    code, *_ = tengtune(capsys, *(str(put.get(word, word)) for word in words))
    assert code == 0
    assert rows_of(out) == rows_of(unpack("qwen.mindrecord.tar.xz", tmp_path / "theirs"))
