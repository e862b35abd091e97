"""`output.layout: mindformers`: `tengtune merge` and MindSpore itself join the trees that trainings leave to
what was trained, under mindformers' names."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from tests.cli.test_export_import import tengtune
from tests.mindformers_lab import (
    Weights,
    adapter_in_mindformers,
    in_layout,
    mindspore_joins,
    qwen1_in_mindformers,
    same,
    wide,
)
from tests.qwen1 import to_qwen1
from tests.tiny import tiny_model, tiny_tokenizer

pytestmark = pytest.mark.slow

RUN = """
model: {{path: {model}, dtype: float32}}
data: {{files: a.json, seq_len: 64, heldout: 0, pack: false}}
train: {{max_steps: 3, global_batch: 8, lr: 0.01, method: {method}}}
lora: {{rank: 4}}
parallel: {{ranks: 2}}
output: {{layout: mindformers}}
"""
# 20 rows, 8 a step: the third step ends the first epoch.
TREES = {"full": ("qwen2", "full"), "qwen1": ("qwen1", "lora")}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two runs of two ranks each: full tuning of a bfloat16 model, LoRA of a Qwen1."""
    folder = tmp_path_factory.mktemp("runs")
    tiny_tokenizer(tiny_model(folder / "qwen2", dtype="bfloat16"))
    to_qwen1(tiny_tokenizer(tiny_model(folder / "plain")), folder / "qwen1")
    records = [{"instruction": f"question {n}?", "output": f"answer number {n}."} for n in range(20)]
    (folder / "a.json").write_text(json.dumps(records))
    for name, (model, method) in TREES.items():
        (folder / f"{name}.yaml").write_text(RUN.format(model=model, method=method))
        code, _, err = tengtune(folder, "train", f"{name}.yaml")
        assert code == 0, err
    mindspore_joins(*(folder / "runs" / name for name in TREES))
    return folder


def renamed(place: Path, model: str, weights: Weights) -> Weights:
    """Hugging Face's names -> mindformers', by hand."""
    if model == "qwen1":
        return qwen1_in_mindformers(weights)
    config = json.loads((place / model / "config.json").read_text())
    return in_layout(weights, "mindformers", config)


def expected(place: Path, name: str) -> Weights:
    """The whole model as it was trained."""
    model, method = TREES[name]
    if method == "full":
        return renamed(place, model, load_file(place / f"runs/{name}/full/model.safetensors"))
    adapter = load_file(place / f"runs/{name}/adapter/adapter_model.safetensors")
    base = renamed(place, model, load_file(place / model / "model.safetensors"))
    return {**base, **adapter_in_mindformers(adapter, qwen1=model == "qwen1")}


def states(place: Path, name: str) -> dict[str, Weights]:
    """What our own last checkpoint keeps: kind -> canonical name -> values."""
    found: dict[str, Weights] = {}
    for file in (place / f"runs/{name}/checkpoints/step_3").glob("*.safetensors"):
        for key, array in load_file(file).items():
            kind, _, tensor = key.partition("/")
            found.setdefault(kind, {})[tensor] = array
    return found


@pytest.mark.parametrize("name", TREES)
def test_both_join_the_ranks_to_what_was_trained(name: str, place: Path) -> None:
    tree, wanted = place / "runs" / name / "output", expected(place, name)
    assert [p.name for p in sorted((tree / "checkpoint_network").iterdir())] == [
        f"rank_{n}" for n in range(2)
    ]
    code, _, err = tengtune(place, "merge", "--shards", str(tree), "--out", f"{name}.safetensors")
    assert code == 0, err
    same(load_file(place / f"{name}.safetensors"), wanted)
    same(dict(np.load(tree.parent / "theirs_checkpoint_network.npz")), wide(wanted))


def test_the_checkpoint_has_masters_moments_and_counters(place: Path) -> None:
    tree = place / "runs/full/output"
    theirs = dict(np.load(tree.parent / "theirs_checkpoint.npz"))
    kept = {kind: renamed(place, "qwen2", weights) for kind, weights in states(place, "full").items()}
    wanted = {**kept["param"]}
    for kind, before in (("exp_avg", "adam_m"), ("exp_avg_sq", "adam_v")):
        wanted |= {f"{before}.{name}": array for name, array in kept[kind].items()}
    same({name: theirs[name] for name in wanted}, wanted)
    counters = {name: theirs[name].tolist() for name in theirs.keys() - wanted.keys()}
    assert counters == {"loss_scale": 1.0, "epoch_num": 1, "step_num": 3, "global_step": [3]}
    for rank in (0, 1):
        folder = tree / f"checkpoint/rank_{rank}"
        last = f"qwen_rank_{rank}-1_3.ckpt"
        assert json.loads((folder / "meta.json").read_text()) == {
            "last_epoch": 1, "last_step": 3, "last_ckpt_file": last,
        }  # fmt: skip
        assert (folder / last).is_file()


def test_the_tree_follows_the_run_file_and_the_training(place: Path, tmp_path: Path) -> None:
    """Switched off it goes; switched on again, nothing is trained, and of two ranks one is left. A training
    that is refused touches neither."""
    here = shutil.copytree(place, tmp_path / "copy")
    run = here / "runs/full"
    before, losses = (run / "full/model.safetensors").read_bytes(), logged(run)
    alone = ["train", "full.yaml", "-s", "parallel.ranks=1", "-s"]
    for layout, found in (("tengtune", []), ("mindformers", ["rank_0"])):
        code, _, err = tengtune(here, *alone, f"output.layout={layout}")
        assert code == 0, err
        assert (f"leaves a training in: {run / 'output'}" in err) == bool(found)
        assert [p.name for p in run.glob("output/checkpoint_network/*")] == found
        assert [p.name for p in run.glob("output/strategy/*")] == [
            f"ckpt_strategy_{rank}.ckpt" for rank in found
        ]
    assert (run / "full/model.safetensors").read_bytes() == before
    assert logged(run) == losses
    (here / "a.json").write_text(json.dumps([{"instruction": "other", "output": "rows"}] * 9))
    code, _, err = tengtune(here, *alone, "output.layout=mindformers")
    assert (code, "checkpoint.other_run" in err) == (2, True), err
    assert (run / "output/checkpoint_network/rank_0/qwen_rank_0-network.ckpt").is_file()


def logged(run: Path) -> list[float]:
    """The losses of the steps."""
    records = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [record["loss"] for record in records if "loss" in record]
