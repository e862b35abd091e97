"""One rank's file of a model that was cut: every command says that it is a part."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.tiny import tiny_model

from tengtune.cli.main import _guarded
from tengtune.ui import language


def anything(*arguments: object) -> subprocess.CompletedProcess[str]:
    """The whole command line in this process: two dozen commands are run here."""
    out, err = io.StringIO(), io.StringIO()
    line = ["--lang", "en", *map(str, arguments)]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = _guarded(line)
    finally:
        language.choose(None)
    return subprocess.CompletedProcess(line, code, out.getvalue(), err.getvalue())


@pytest.fixture
def ranks(tmp_path: Path) -> Path:
    """A model for MindSpore, cut for two ranks."""
    tiny_model(tmp_path / "model")
    for line in (
        ["convert", tmp_path / "model", tmp_path / "ms", "--to", "mindspore"],
        ["merge", "--split", tmp_path / "ms", "--ranks", 2, "--out", tmp_path / "ranks"],
    ):
        done = anything(*line, "-q")
        assert done.returncode == 0, done.stderr
    return tmp_path / "ranks"


@pytest.mark.parametrize("name", ["rank_1/checkpoint_1.ckpt", "rank_0", "flat"])
def test_a_part_is_not_taken_for_the_model(tmp_path: Path, ranks: Path, name: str) -> None:
    part, folder, rank = ranks / name, ranks, 1 if name.startswith("rank_1") else 0
    if name == "flat":
        for number in (0, 1):
            shutil.move(ranks / f"rank_{number}/checkpoint_{number}.ckpt", ranks)
            (ranks / f"rank_{number}").rmdir()
        part = ranks / "checkpoint_0.ckpt"
    for line in (
        ["convert", part, tmp_path / "hf", "--to", "hf", "--config", tmp_path / "model"],
        ["convert", part, tmp_path / "hf", "--to", "hf"],
        ["merge", "--split", part, "--ranks", 2, "--out", tmp_path / "hf"],
    ):
        done = anything(*line)
        assert done.returncode == 2
        assert f"This is the part of rank {rank} of 2, not the model" in done.stderr
        assert f"tengtune merge --shards {folder} --out" in done.stderr
    shown = anything("weights", "show", part)
    assert f"rank {rank} of 2: all sizes here are of its part" in shown.stdout
    told = json.loads(anything("weights", "show", part, "--json").stdout.splitlines()[-1])
    assert (told["rank"], told["ranks"], told["part"]) == (rank, 2, True)
    checked = anything("weights", "verify", part)
    assert checked.returncode == 0, checked.stderr
    assert f"This is the part of rank {rank} of 2" in checked.stderr
    assert "index" not in checked.stdout


@pytest.mark.parametrize("alone", [True, False])
def test_without_a_strategy_it_may_be_a_part(tmp_path: Path, ranks: Path, alone: bool) -> None:
    """A part that is alone is known by the config only, and by its shapes."""
    shutil.rmtree(ranks / "strategy")
    if alone:
        shutil.rmtree(ranks / "rank_0")
    part = ranks / "rank_1/checkpoint_1.ckpt"
    shown = anything("weights", "show", part)
    assert shown.returncode == 0
    assert ("rank 1 of 2: perhaps not the whole model" in shown.stdout) is not alone
    done = anything("convert", part, tmp_path / "hf", "--to", "hf", "--config", tmp_path / "model")
    assert done.returncode == 2
    assert "weights.mismatch_part" in done.stderr
    assert "`tengtune merge --shards`" in done.stderr


def test_a_whole_model_in_a_folder_of_a_rank_is_one(tmp_path: Path, ranks: Path) -> None:
    """Where nothing is cut each rank has it all; where tools merge, they leave it as rank 0's."""
    line = ["merge", "--split", tmp_path / "ms", "--ranks", 5, "--out", tmp_path / "copies", "-q"]
    assert anything(*line).returncode == 0
    (tmp_path / "joined/rank_0").mkdir(parents=True)
    shutil.copytree(ranks / "strategy", tmp_path / "joined/strategy")
    shutil.copy(tmp_path / "ms/model.ckpt", tmp_path / "joined/rank_0/full.ckpt")
    for number, whole in enumerate(
        [tmp_path / "copies/rank_1/checkpoint_1.ckpt", tmp_path / "joined/rank_0/full.ckpt"]
    ):
        out = tmp_path / f"hf{number}"
        done = anything("convert", whole, out, "--to", "hf", "--config", tmp_path / "model", "-q")
        assert done.returncode == 0, done.stderr
        assert anything("weights", "diff", out, tmp_path / "model").returncode == 0


def test_shapes_of_another_model_are_not_called_a_part(tmp_path: Path) -> None:
    model, other = tiny_model(tmp_path / "m"), tiny_model(tmp_path / "n", intermediate_size=100)
    shutil.copy(other / "config.json", model / "config.json")
    done = anything("convert", model, tmp_path / "out", "--to", "mindspore")
    assert done.returncode == 2
    assert "weights.mismatch," in done.stderr
    assert "fraction" not in done.stderr


@pytest.mark.parametrize("source", ["ranks", "nowhere"])
def test_a_merge_that_fails_leaves_no_folder(tmp_path: Path, ranks: Path, source: str) -> None:
    shutil.rmtree(ranks / "rank_1")
    out = tmp_path / "p2" / "deep" / "whole.ckpt"
    done = anything("merge", "--shards", tmp_path / source, "--out", out)
    assert done.returncode == 2
    assert not (tmp_path / "p2").exists()
    (tmp_path / "p2").mkdir()
    assert anything("merge", "--shards", tmp_path / source, "--out", out).returncode == 2
    assert list((tmp_path / "p2").iterdir()) == []  # what was there before stays
