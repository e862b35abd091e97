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


def test_several_ranks_are_not_ignored(place: Path) -> None:
    assert "parallel.ranks: 2" in refused(place, "backend.one_rank", "-s", "parallel.ranks=2").stderr


def test_a_type_the_back_end_lacks(place: Path) -> None:
    refused(place, "mindspore.not_there", "-s", "backend=mindspore", "-s", "model.dtype=float16")


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
    refused(place, "engine.dir_no_folder")


@pytest.mark.slow
def test_a_whole_run_on_mindspore_says_that_it_does_not_answer(place: Path) -> None:
    done = tengtune("run", "-s", "backend=mindspore", cwd=place)
    assert done.returncode == 0, done.stderr
    assert "MindSpore back end does not answer yet" in done.stderr
    assert (place / "runs" / "run" / "merged" / "model.safetensors").exists()
    assert json.loads((place / "runs" / "run" / "predict.json").read_text())["figures"] == {"questions": 0}
