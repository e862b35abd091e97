"""`tengtune weights show` of adapters; of whole models it runs in the guide's commands."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.cli.test_start import tengtune
from tests.tiny import tiny_model

from tengtune.weights.adapter import write_adapter

UP, DOWN = "model.layers.1.mlp.up_proj", "model.layers.1.mlp.down_proj"


def show(path: Path, *options: str, lang: str = "en") -> str:
    done = subprocess.run(
        [sys.executable, "-m", "tengtune", "--lang", lang, "weights", "show", str(path), *options],
        capture_output=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    """Rank 8 for a linear of 64 -> 96, rank 4 for one of 96 -> 64: 8 x 160 + 4 x 160 parameters."""
    shapes = {UP: (8, 64, 96), DOWN: (4, 96, 64)}
    tensors = {}
    for linear, (rank, inner, out) in shapes.items():
        tensors[f"{linear}.lora_A.weight"] = np.ones((rank, inner), "f4")
        tensors[f"{linear}.lora_B.weight"] = np.ones((out, rank), "f4")
    write_adapter(tmp_path / "a", tensors, rank=8, alpha=16, targets=["up_proj", "down_proj"], base="x")
    change(tmp_path / "a", rank_pattern={"down_proj": 4})
    return tmp_path / "a"


def change(adapter: Path, **keys: object) -> None:
    """Other values in adapter_config.json."""
    path = adapter / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | keys))


def test_an_adapter_tells_its_parameters_rank_alpha_and_targets(adapter: Path) -> None:
    told = json.loads(show(adapter, "--json").splitlines()[-1])
    assert told["parameters"] == told["lora_parameters"] == 1920
    assert (told["lora"], told["lora_rank"], told["lora_alpha"]) == (2, [4, 8], 16)
    assert told["lora_targets"] == ["up_proj", "down_proj"]
    assert (told["lora_scale"], told["use_rslora"]) == ([2.0, 4.0], False)
    rows = [[cell.strip() for cell in line.split("│")[1:3]] for line in show(adapter).splitlines()]
    for row in (
        ["parameters", "1,920"],
        ["adapter parameters", "1,920"],
        ["rank", "4, 8"],
        ["alpha", "16"],
        ["scale", "2, 4"],
        ["target modules", "up_proj, down_proj"],
    ):
        assert row in rows
    assert "目标模块" in show(adapter, lang="zh")


def test_an_adapter_without_its_config_is_told_by_its_tensors(adapter: Path) -> None:
    (adapter / "adapter_config.json").unlink()
    told = json.loads(show(adapter / "adapter_model.safetensors", "--json").splitlines()[-1])
    assert (told["lora_parameters"], told["lora_rank"], told["lora_alpha"]) == (1920, [4, 8], None)
    assert sorted(told["lora_targets"]) == ["down_proj", "up_proj"]


def test_a_model_has_no_rows_of_an_adapter(tmp_path: Path) -> None:
    text = show(tiny_model(tmp_path / "m"))
    assert "LoRA linears" in text
    assert "adapter parameters" not in text


def test_a_run_folder_leads_to_what_lies_in_it(adapter: Path, tmp_path: Path) -> None:
    run = tmp_path / "runs" / "zh2"
    run.mkdir(parents=True)
    (run / "run.yaml").write_text("model: m\n")
    adapter.rename(run / "adapter")
    tiny_model(run / "merged")
    for words in (
        ["weights", "show", run],
        ["weights", "verify", run],
        ["weights", "diff", run, run / "merged"],
        ["predict", "--model", run, "-p", "hi"],
        ["merge", "--base", run / "merged", "--adapter", run, "--out", tmp_path / "out"],
    ):
        done = tengtune(*map(str, words))
        assert done.returncode == 2, done.stderr
        assert f"{run / 'merged'}, {run / 'adapter'}" in done.stderr, words


def test_a_model_and_an_adapter_are_not_compared(adapter: Path, tmp_path: Path) -> None:
    model = tiny_model(tmp_path / "m")
    for pair in ((model, adapter), (adapter, model)):
        done = tengtune("weights", "diff", *map(str, pair))
        assert (done.returncode, done.stdout) == (2, "")
        assert "compare.model_and_adapter" in done.stderr
        assert str(adapter) in done.stderr
    assert tengtune("weights", "diff", str(adapter), str(adapter)).returncode == 0


def test_rslora_is_told_with_the_scale_it_makes(adapter: Path) -> None:
    change(adapter, use_rslora=True, rank_pattern={"down_proj": 4}, alpha_pattern={"down_proj": 12})
    told = json.loads(show(adapter, "--json").splitlines()[-1])
    assert told["lora_scale"] == pytest.approx([16 / 8**0.5, 12 / 2])  # alpha over the root of the rank
    assert "5.65685, 6 (rslora: alpha / √rank)" in show(adapter)
    assert "5.65685、6（rslora：alpha / √秩）" in show(adapter, lang="zh")


@pytest.mark.parametrize("layout", ["slora", "mindformers"])
def test_the_two_kinds_of_mindformers_names_are_told_apart(
    adapter: Path, tmp_path: Path, layout: str
) -> None:
    (same_rank := tmp_path / "b").mkdir()
    ones = {f"{UP}.lora_A.weight": np.ones((8, 64), "f4"), f"{UP}.lora_B.weight": np.ones((96, 8), "f4")}
    write_adapter(same_rank / "a", ones, rank=8, alpha=24, targets=["up_proj"], base="x")
    line = ["convert", same_rank / "a", tmp_path / "ms", "--to", "mindspore", "--layout", layout]
    assert tengtune(*map(str, line)).returncode == 0
    told = json.loads(show(tmp_path / "ms", "--json").splitlines()[-1])
    assert (told["layout"], told["lora_alpha"], told["lora_scale"]) == (layout, 24, [3.0])
    done = tengtune("convert", str(tmp_path / "ms"), str(tmp_path / "back"), "--to", "hf")
    assert f"layout {layout} -> hf" in done.stderr
    done = tengtune("weights", "diff", str(tmp_path / "ms"), str(same_rank / "a"))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"lora_alpha": 24}, "for 2 linears: 2 / 3, 4 / 6 (first / second)"),
        ({"use_rslora": True}, "for 2 linears: 2 / 5.65685, 4 / 8 (first / second)"),
        ({"alpha_pattern": {"down_proj": 12}}, "for 1 linear: 4 / 3 (first / second)"),
    ],
)
def test_equal_tensors_of_another_scale_are_another_adapter(
    adapter: Path, tmp_path: Path, keys: dict[str, object], said: str
) -> None:
    other = shutil.copytree(adapter, tmp_path / "other")
    change(other, **keys)
    done = tengtune("weights", "diff", str(adapter), str(other))
    assert done.returncode == 1
    assert done.stdout.startswith("4 tensors have the same values, 0 differ, 0 are in one only\n")
    assert f"The scale differs {said}" in done.stdout
    as_json = json.loads(
        tengtune("weights", "diff", str(adapter), str(other), "--json").stdout.splitlines()[-1]
    )
    assert DOWN in as_json["other_scale"]


def test_a_scale_that_nothing_tells_is_said_to_be_unknown(adapter: Path, tmp_path: Path) -> None:
    other = shutil.copytree(adapter, tmp_path / "other")
    (other / "adapter_config.json").unlink()
    done = tengtune("weights", "diff", str(adapter), str(other))
    assert done.returncode == 0
    assert f"only the tensors are compared: {other}" in done.stderr
