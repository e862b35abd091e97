"""`tengtune merge` as a command, without a run file and inside a run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import save_file
from tests.tiny import tiny_model

from tengtune.cli.convert import command as convert
from tengtune.cli.merge import command as merge_command
from tengtune.ui.problems import Problem
from tengtune.weights.adapter import write_adapter
from tengtune.weights.layout import Layout
from tengtune.weights.strategy import Strategy, write_strategy


def tengtune(*arguments: object, lang: str = "en") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tengtune", "--lang", lang, "merge", *map(str, arguments)],
        capture_output=True,
        text=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
        check=False,
    )


@pytest.fixture
def folders(tmp_path: Path) -> list[object]:
    """The options for a merge that works, into tmp_path/out."""
    name = "model.layers.1.mlp.up_proj"
    tensors = {
        f"{name}.lora_A.weight": np.ones((2, 64), "f4"),
        f"{name}.lora_B.weight": np.ones((96, 2), "f4"),
    }
    write_adapter(tmp_path / "a", tensors, rank=2, alpha=1, targets=[name], base="x")
    tiny_model(tmp_path / "base")
    return ["--base", tmp_path / "base", "--adapter", tmp_path / "a", "--out", tmp_path / "out"]


def test_any_base_and_adapter_merge_without_a_run_file(tmp_path: Path, folders: list[object]) -> None:
    done = tengtune(*folders, "--shard-size", "200KB")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{tmp_path / 'out'}\n"  # results only
    assert "1 adapted linear (rank 2, scale 0.5)" in done.stderr
    assert sorted(f.name for f in (tmp_path / "out").iterdir()) == [
        "config.json",
        *(f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)),
        "model.safetensors.index.json",
    ]


def test_json_ends_with_the_figures(tmp_path: Path, folders: list[object]) -> None:
    done = tengtune(*folders, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result["event"], result["folder"], result["adapted"]) == ("result", str(tmp_path / "out"), 1)


def test_an_output_folder_with_something_in_it_is_kept(tmp_path: Path, folders: list[object]) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("precious")
    done = tengtune(*folders, lang="zh")
    assert done.returncode == 2
    assert "输出目录已存在且不为空" in done.stderr
    assert [f.name for f in (tmp_path / "out").iterdir()] == ["thesis.txt"]


def test_an_empty_output_folder_is_taken(tmp_path: Path, folders: list[object]) -> None:
    (tmp_path / "out").mkdir()
    assert tengtune(*folders).returncode == 0
    assert (tmp_path / "out" / "model.safetensors").exists()


@pytest.mark.parametrize("missing", [0, 2, 4])
def test_the_three_folders_go_together(folders: list[object], missing: int) -> None:
    done = tengtune(*folders[:missing], *folders[missing + 2 :])
    assert done.returncode == 2
    assert "merge.options" in done.stderr


@pytest.mark.parametrize("size", ["0", "5TB", "-1", "many", "1e9"])
def test_a_shard_size_must_be_a_size(tmp_path: Path, folders: list[object], size: str) -> None:
    done = tengtune(*folders, "--shard-size", size)
    assert done.returncode == 2
    assert "merge.bad_size" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("file", "code"),
    [("a/adapter_config.json", "adapter.no_config"), ("base/config.json", "model.no_config")],
)
def test_a_folder_that_lacks_its_config(tmp_path: Path, folders: list[object], file: str, code: str) -> None:
    (tmp_path / file).unlink()
    done = tengtune(*folders)
    assert done.returncode == 2
    assert code in done.stderr
    assert str(tmp_path / file.split("/")[0]) in done.stderr


def test_inside_a_run_a_typo_in_the_run_file_is_found_first(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("model: /m\ndata: a.json\ntrian: {}\n")
    done = tengtune(tmp_path / "run.yaml")
    assert done.returncode == 2
    assert "recipe.unknown_key" in done.stderr


@pytest.mark.parametrize("to", ["mindspore", "mindspore-safetensors"])
def test_mindspores_forms_are_named_with_the_command_that_helps(
    tmp_path: Path, folders: list[object], to: str
) -> None:
    for source in ("base", "a"):
        done = CliRunner().invoke(
            convert, [str(tmp_path / source), str(tmp_path / f"{source}-ms"), "--to", to, "-q"]
        )
        assert done.exit_code == 0, done.output
    for option, name, code in ((1, "base", "weights.mindspore"), (3, "a", "adapter.mindformers")):
        done = tengtune(*[tmp_path / f"{name}-ms" if i == option else each for i, each in enumerate(folders)])
        assert done.returncode == 2
        assert code in done.stderr
        assert "--to hf" in done.stderr
        assert "ownload" not in done.stderr
        assert not (tmp_path / "out").exists()
    checkpoint = next((tmp_path / "a-ms").glob("adapter_model.*"))
    folders[3] = checkpoint
    assert "adapter.mindformers" in tengtune(*folders).stderr


def test_an_adapter_is_one_file(tmp_path: Path, folders: list[object]) -> None:
    line = [str(tmp_path / "a"), str(tmp_path / "ms"), "--to", "mindspore-safetensors", "--shard-size", "1MB"]
    done = CliRunner().invoke(convert, line)
    assert isinstance(done.exception, Problem)
    assert done.exception.code == "convert.one_file"
    assert not (tmp_path / "ms").exists()


@pytest.mark.parametrize("name", ["out.partial", "out.old.partial", "out.lock"])
@pytest.mark.parametrize("option", ["--base", "--adapter", "--shards", "--split", "--strategy"])
def test_no_input_goes_where_the_output_is_made(
    tmp_path: Path, folders: list[object], name: str, option: str
) -> None:
    """The names that a merge uses on its way may be those of its input."""
    ways: dict[str, list[object]] = {
        "--base": folders[2:],
        "--adapter": [*folders[:2], *folders[4:]],
        "--shards": folders[4:],
        "--split": [*folders[4:], "--ranks", 2],
        "--strategy": [*folders[4:], "--split", tmp_path / "base"],
    }
    place = tmp_path / name
    (tmp_path / ("a" if option == "--adapter" else "base")).rename(place)
    (tmp_path / "base").mkdir(exist_ok=True)
    before = {file.name: file.read_bytes() for file in place.iterdir()}
    done = CliRunner().invoke(merge_command, [*map(str, ways[option]), option, str(place), "-q"])
    assert isinstance(done.exception, Problem)
    assert (done.exception.code, done.exception.where) == ("merge.out_is_input", str(place))
    assert {file.name: file.read_bytes() for file in place.iterdir()} == before
    assert not (tmp_path / "out").exists()


def test_ranks_that_are_linked_from_where_the_output_is_made_stay(tmp_path: Path) -> None:
    """A file of a rank may be a link, here to where the joined model is made."""
    (tmp_path / "out.partial").mkdir()
    for rank in (0, 1):
        file = tmp_path / "out.partial" / f"{rank}.safetensors"
        save_file({"w": np.full((2, 3), rank, "f4")}, file)
        (tmp_path / f"ranks/rank_{rank}").mkdir(parents=True)
        (tmp_path / f"ranks/rank_{rank}/a.safetensors").symlink_to(file)
    write_strategy(Strategy(({"w": Layout((2,), ((0,), ()))},), 2), tmp_path / "ranks/strategy")
    arguments = ["--shards", str(tmp_path / "ranks"), "--out", str(tmp_path / "out"), "-q"]
    done = CliRunner().invoke(merge_command, arguments)
    assert isinstance(done.exception, Problem)
    assert done.exception.code == "merge.out_is_input"
    assert sorted(os.listdir(tmp_path / "out.partial")) == ["0.safetensors", "1.safetensors"]
