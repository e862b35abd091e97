"""What people and machines have done to the command line: a screen and the right exit code, each time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.test_start import tengtune
from tests.tiny import tiny_model, tiny_tokenizer


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a small model, one record and a run file."""
    (tmp_path / "model").mkdir()
    tiny_tokenizer(tiny_model(tmp_path / "model"))
    (tmp_path / "a.json").write_text(
        '[{"instruction": "a?", "output": "b"}, {"instruction": "c?", "output": "d"}]'
    )
    (tmp_path / "run.yaml").write_text("model: model\ndata: {files: a.json, seq_len: 64}\n")
    return tmp_path


def refused(place: Path, code: str, *arguments: str, **environment: str) -> str:
    done = tengtune("data", *arguments, cwd=place, **environment)
    assert f"code {code}, exit 2" in done.stderr, done.stderr
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    return done.stderr


@pytest.mark.parametrize("name", [".", "..", "-x", "a/b", "a\\b", "a\u202eb", "测" * 100])
def test_names_no_folder_of_its_own_can_have(place: Path, name: str) -> None:
    before = (place / "run.yaml").read_text()
    (place / "run.yaml").write_text(before + f"name: {json.dumps(name)}\n")
    refused(place, "recipe.bad_value", "--fresh")
    assert sorted(p.name for p in place.iterdir()) == ["a.json", "model", "run.yaml"]


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        ('name: "a\\nb"', "recipe.bad_value"),
        ('output: {dir: "a\\0b"}', "recipe.control_character"),
        ("output: {prompts: &a [*a]}", "recipe.too_large"),
        ("train: {epochs: 1e300}", "recipe.bad_value"),
    ],
)
def test_values_no_run_can_have(place: Path, lines: str, code: str) -> None:
    (place / "run.yaml").write_text((place / "run.yaml").read_text() + lines + "\n")
    assert "run.yaml" in refused(place, code)


def test_a_key_below_a_value_is_unknown(place: Path) -> None:
    assert "data.seq_len.x" in refused(place, "recipe.unknown_key", "-s", "data.seq_len.x=5")


def test_a_pipe_is_no_data_file(place: Path) -> None:
    os.mkfifo(place / "pipe.json")
    assert "pipe.json" in refused(place, "io.not_plain", "-s", "data.files=pipe.json")


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"rope_scaling": [1]}, "model.bad_key"),
        ({"rope_parameters": [1]}, "model.bad_key"),
        ({"architectures": "LlamaForCausalLM"}, "model.unknown_architecture"),
        ({"num_hidden_layers": 10**9}, "model.bad_key"),
    ],
)
def test_configs_that_cannot_be(place: Path, change: dict[str, object], code: str) -> None:
    config = place / "model" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | change))
    assert "config.json" in refused(place, code)


def test_a_link_to_itself(place: Path) -> None:
    (place / "model" / "config.json").unlink()
    (place / "model" / "config.json").symlink_to("config.json")
    done = tengtune("data", cwd=place)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_a_lone_surrogate_in_a_key_is_a_dropped_record(place: Path) -> None:
    records = '[{"instruction": "a?", "output": "b"}, {"\\ud800": "a"}, {"messages": [{"role": "\\ud800"}]}]'
    (place / "a.json").write_text(records)
    done = tengtune("data", "--json", cwd=place)
    assert done.returncode == 0, done.stderr
    log = [json.loads(line) for line in (place / "runs/run/data/dropped.jsonl").read_text().splitlines()]
    assert {entry["record"] for entry in log if entry["dropped"]} == {1, 2}


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "gbk"])
def test_tables_fit_the_terminals_encoding(place: Path, encoding: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tengtune", "--lang", "zh", "data"],
        capture_output=True,
        cwd=place,
        env={**os.environ, "PYTHONIOENCODING": encoding},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode(encoding).count("\n") > 5


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full on this system")
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_an_output_that_takes_nothing_keeps_the_exit_code(place: Path, stream: str) -> None:
    with open("/dev/full", "wb") as full:
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, stream: full}
        line = [
            sys.executable,
            "-m",
            "tengtune",
            "data",
            "none.yaml",
            *(["--json"] if stream == "stdout" else []),
        ]
        done = subprocess.run(line, cwd=place, check=False, **streams)  # type: ignore[call-overload]
    assert done.returncode == 2


def test_a_run_folder_deleted_under_way_is_no_success(place: Path) -> None:
    code = (
        "import shutil, sys\n"
        "from tengtune.steps import data\n"
        "inner = data.run\n"
        "def run(recipe, console):\n"
        "    result = inner(recipe, console)\n"
        "    shutil.rmtree(recipe.folder)\n"
        "    return result\n"
        "data.run = run\n"
        "from tengtune.cli.main import main\n"
        "main(['data'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=place, capture_output=True, text=True, check=False
    )
    assert "code engine.folder_gone, exit 4" in done.stderr
    assert done.returncode == 4


def test_a_run_folder_of_an_earlier_version_is_known_again(place: Path) -> None:
    assert tengtune("data", cwd=place).returncode == 0
    snapshot = place / "runs" / "run" / "run.yaml"
    lines = [line for line in snapshot.read_text().splitlines() if "early_stop" not in line]
    snapshot.write_text("\n".join(lines) + "\n")
    assert tengtune("data", cwd=place).returncode == 0
