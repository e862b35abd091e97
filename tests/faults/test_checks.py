"""What can be told before any work is done is told before any work is done."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from tests.cli.test_start import tengtune
from tests.tiny import tiny_model, tiny_tokenizer

RECORDS = [{"instruction": f"What is {n} + 1?", "output": f"It is {n + 1}."} for n in range(12)]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a small model, a data file and a run file of two steps."""
    (tmp_path / "model").mkdir()
    tiny_tokenizer(tiny_model(tmp_path / "model"))
    (tmp_path / "a.json").write_text(json.dumps(RECORDS))
    settings = "train: {max_steps: 2, global_batch: 2}\noutput: {max_new_tokens: 4}\n"
    (tmp_path / "run.yaml").write_text("model: model\ndata: {files: a.json, seq_len: 64}\n" + settings)
    return tmp_path


Done = subprocess.CompletedProcess[str]


def refused(place: Path, code: str, *arguments: str, exit_code: int = 2) -> Done:
    """`tengtune run` ends as the Problem `code`, before the data step has made anything."""
    done = tengtune("run", *arguments, cwd=place)
    assert f"code {code}, exit {exit_code}" in done.stderr
    assert done.returncode == exit_code
    assert "Traceback" not in done.stderr
    assert not (place / "runs" / "run" / "data").exists()
    return done


def test_a_truncated_model_file(place: Path) -> None:
    weights = place / "model" / "model.safetensors"
    whole = weights.stat().st_size
    os.truncate(weights, whole - 1000)
    done = refused(place, "weights.truncated")
    assert str(weights) in done.stderr
    assert str(whole - 1000) in done.stderr.replace(",", "")


def test_weights_of_another_shape_than_the_config(place: Path) -> None:
    config = json.loads((place / "model" / "config.json").read_text())
    (place / "model" / "config.json").write_text(json.dumps(config | {"intermediate_size": 100}))
    assert "mlp.gate_proj" in refused(place, "weights.mismatch").stderr


def test_an_unknown_architecture(place: Path) -> None:
    config = json.loads((place / "model" / "config.json").read_text())
    (place / "model" / "config.json").write_text(json.dumps(config | {"architectures": ["LlamaForCausalLM"]}))
    assert "LlamaForCausalLM" in refused(place, "model.unknown_architecture").stderr


@pytest.mark.parametrize(
    ("setting", "code", "told"),
    [
        ("output.evaluate=exam.jsn", "io.not_found", 'Did you mean "{place}/exam.json"'),
        ("output.evaluate=model", "io.is_folder", "{place}/model"),
        ("output.evaluate=pipe", "io.not_plain", "{place}/pipe"),
        ("output.evaluate=empty.json", "evaluate.no_questions", "empty.json"),
        ("data.files=b.json", "io.not_found", 'Did you mean "{place}/a.json"'),
        ("lora.targets=x_proj", "lora.", "x_proj"),
        ("model.path=modle", "folder.missing", 'Did you mean "{place}/model"?'),
        ("model.path=a.json", "folder.is_file", "{place}/a.json"),
    ],
)
def test_what_a_later_step_needs(place: Path, setting: str, code: str, told: str) -> None:
    (place / "exam.json").write_text('[{"question": "1 + 1?", "answer": "2"}]')
    (place / "empty.json").write_text('[{"a": 1}]')
    os.mkfifo(place / "pipe")
    done = tengtune("run", "-s", setting, cwd=place)
    assert f"code {code}" in done.stderr, done.stderr
    assert (done.returncode, told.format(place=place) in done.stderr) == (2, True), done.stderr
    assert not (place / "runs" / "run" / "data").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["evaluate", "run.yaml", "--file", "none.json"],
        ["predict", "run.yaml", "--file", "none.json", "--out", "out.jsonl"],
    ],
)
def test_a_file_named_on_the_command_line_is_looked_for_before_training(
    place: Path, arguments: list[str]
) -> None:
    done = tengtune(*arguments, cwd=place)
    assert (done.returncode, "none.json" in done.stderr) == (2, True), done.stderr
    assert not (place / "runs" / "run" / "data").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["predict", "--model", "modle", "--prompt", "Hi"],
        ["chat", "--model", "modle"],
        ["init", "modle", "a.json", "-o", "new.yaml"],
        ["merge", "--base", "modle", "--adapter", "model", "--out", "out"],
        ["data", "-s", "model.path=modle"],
        ["train", "-s", "model.path=modle"],
    ],
)
def test_a_mistyped_model_folder_is_told_alike_by_every_command(place: Path, arguments: list[str]) -> None:
    done = tengtune(*arguments, cwd=place)
    assert "code folder.missing, exit 2" in done.stderr, done.stderr
    assert done.returncode == 2
    assert f'Did you mean "{place}/model"?' in done.stderr or 'Did you mean "model"?' in done.stderr
    assert "tengtune download Qwen/" in done.stderr


def test_the_hub_id_that_a_folder_may_stand_for(place: Path) -> None:
    for typed, model in (
        ("Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-7B-Instruct"),
        ("qwen2.5-7b-instrct", "Qwen/Qwen2.5-7B-Instruct"),
        ("somebody/model-7b", "somebody/model-7b"),
    ):
        done = tengtune("predict", "--model", typed, "--prompt", "Hi", cwd=place)
        folder = typed if typed.startswith("/") else f"{place}/{typed}"
        where = [typed, folder]
        assert any(f"`tengtune download {model} --to {to}`" in done.stderr for to in where), done.stderr


def test_a_placeholder_is_not_taken_for_a_name(place: Path) -> None:
    done = tengtune("train", "-s", "model.path=path/to/model", "--dry-run", cwd=place)
    assert ("code folder.placeholder, exit 2" in done.stderr, done.returncode) == (True, 2), done.stderr
    assert "to/model`" not in done.stderr


def test_a_rehearsal_says_where_the_model_goes(place: Path) -> None:
    done = tengtune("rehearse", "-s", "model.path=somebody/small-7b", cwd=place)
    assert ("code rehearse.no_model, exit 2" in done.stderr, done.returncode) == (True, 2), done.stderr
    assert f"tengtune download somebody/small-7b --to {place}/models/small-7b" in done.stderr
    assert "config.json" in done.stderr


def test_a_type_the_back_end_lacks(place: Path) -> None:
    done = refused(place, "capability.dtype", "-s", "backend=mindspore", "-s", "model.dtype=bfloat16")
    assert "model.dtype: bfloat16" in done.stderr


@pytest.mark.parametrize(
    ("chosen", "code", "told"),
    [
        ("runs", "engine.dir_no_folder", "runs"),
        ("runs/a/b", "engine.dir_no_folder", "runs"),
        ("/dev/null", "engine.dir_no_folder", "/dev/null"),
        ("circle", "engine.dir_no_folder", "circle"),
        ("/proc/x", "engine.dir_unfit", "No such file"),
        ("long/" + "x" * 300, "engine.dir_unfit", "File name too long"),
        ("~no-such-user/../a.json", "engine.dir_no_folder", "a.json"),
    ],
)
def test_places_where_no_run_folder_can_be(place: Path, chosen: str, code: str, told: str) -> None:
    (place / "runs").write_text("not a folder")
    (place / "circle").symlink_to("circle")
    done = tengtune("run", "-s", f"output.dir={chosen}", cwd=place)
    assert f"code {code}, exit 2" in done.stderr, done.stderr
    assert (done.returncode, told in done.stderr) == (2, True)
    assert "output.dir" in done.stderr.partition("fix")[2]


def test_a_file_in_place_of_the_run_folder_itself(place: Path) -> None:
    (place / "runs").mkdir()
    (place / "runs" / "run").write_text("not a folder")
    done = refused(place, "engine.dir_no_folder")
    assert str(place / "runs" / "run") in done.stderr
    assert (place / "runs" / "run").read_text() == "not a folder"
