"""`tengtune rehearse`: the whole run on a narrow twin, and what it catches."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.qwen1 import qwen1_config
from tests.tiny import tiny_config, tiny_model, tiny_tokenizer

from tengtune.lock import beside, held
from tengtune.models.spec import from_config
from tengtune.rehearsal.twin import narrow_config

RUN = """
model: model
data: {files: data.json, seq_len: 64, heldout: 0.1}
train: {global_batch: 4, epochs: 5}
lora: {rank: 4}
"""


def project(folder: Path, run: str = RUN) -> Path:
    tiny_tokenizer(tiny_model(folder / "model"))
    records = [{"instruction": f"question {n}?", "output": f"answer number {n}."} for n in range(40)]
    (folder / "data.json").write_text(json.dumps(records), "utf-8")
    (folder / "run.yaml").write_text(run, "utf-8")
    return folder / "run.yaml"


def rehearse(run: Path, *options: str) -> tuple[int, str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TENGTUNE_LANG": "en"}
    command = [sys.executable, "-m", "tengtune", "rehearse", str(run), *options]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400, check=False)
    return done.returncode, done.stdout + done.stderr


def stages(said: str) -> dict[str, dict[str, Any]]:
    events = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    (found,) = (event for event in events if event["event"] == "rehearsal")
    return {stage["name"]: stage for stage in found["stages"]}


@pytest.mark.slow
@pytest.mark.parametrize(("method", "ranks"), [("lora", 2), ("full", 1)])
def test_every_stage_is_done_and_the_run_itself_is_untouched(method: str, ranks: int, tmp_path: Path) -> None:
    run = project(tmp_path)
    options = ("-s", f"train.method={method}", "-s", f"parallel.ranks={ranks}", "--json")
    code, said = rehearse(run, *options)
    assert code == 0, said
    found = stages(said)
    assert list(found) == ["twin", "data", "train", "resume", "merge", "predict", "report"]
    # 40 records, 4 held out, in rows of 64, 4 rows a step, 5 epochs
    rows = int(found["data"]["showed"].split()[0])
    assert (
        f"the real run: {-(-rows // 4)} steps an epoch, {5 * -(-rows // 4)} in all" in found["data"]["showed"]
    )
    assert found["resume"]["showed"].startswith("6 steps done")
    folder = tmp_path / "runs" / "run.rehearsal"
    assert (folder / "REHEARSAL").exists()
    assert (folder / "run" / "report.html").exists()
    assert not (tmp_path / "runs" / "run").exists()
    assert rehearse(run, *options)[0] == 0  # the folder of the first is replaced


def spoil(folder: Path, fault: str) -> tuple[str, ...]:
    """Plant a fault; options for the command."""
    if fault == "records":
        (folder / "data.json").write_text('[{"question": "no answer"}]', "utf-8")
    elif fault == "vocabulary":
        config = json.loads((folder / "model" / "config.json").read_text("utf-8"))
        weights = load_file(folder / "model" / "model.safetensors")
        for name in ("model.embed_tokens.weight", "lm_head.weight"):
            weights[name] = np.ascontiguousarray(weights[name][:300])
        save_file(weights, folder / "model" / "model.safetensors")
        (folder / "model" / "config.json").write_text(json.dumps({**config, "vocab_size": 300}), "utf-8")
    elif fault == "output":
        (folder / "runs").write_text("a file where the run folders should be", "utf-8")
    elif fault == "shard":
        weights = folder / "model" / "model.safetensors"
        names = list(load_file(weights))
        weights.rename(folder / "model" / "model-00001-of-00002.safetensors")
        shards = {name: f"model-0000{1 + (i > 3)}-of-00002.safetensors" for i, name in enumerate(names)}
        (folder / "model" / "model.safetensors.index.json").write_text(
            json.dumps({"weight_map": shards}), "utf-8"
        )
    elif fault == "ranks":
        return ("-s", "parallel.ranks=3")
    elif fault == "template":
        (folder / "model" / "chat_template.jinja").write_text("[INST] {{ messages[0].content }} [/INST]")
    elif fault == "target":
        return ("-s", "lora.targets=q_projj")
    return ()


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        ("records", "data.nothing_left"),
        ("vocabulary", "tokenizer.too_large"),
        ("output", "io.not_folder"),
        ("shard", "weights."),
        ("ranks", "recipe.batch"),
        ("target", "lora."),
        ("template", "tokenizer.template_foreign"),
    ],
)
def test_a_planted_fault_is_caught(fault: str, code: str, tmp_path: Path) -> None:
    run = project(tmp_path)
    status, said = rehearse(run, *spoil(tmp_path, fault))
    assert status in (2, 3), said
    assert f"code {code}" in said


def test_a_folder_that_is_no_rehearsal_is_left_alone(tmp_path: Path) -> None:
    run = project(tmp_path)
    (tmp_path / "runs" / "run.rehearsal").mkdir(parents=True)
    (tmp_path / "runs" / "run.rehearsal" / "mine.txt").write_text("mine", "utf-8")
    code, said = rehearse(run)
    assert (code, "rehearse.not_ours" in said) == (2, True)
    assert (tmp_path / "runs" / "run.rehearsal" / "mine.txt").read_text("utf-8") == "mine"


QWEN3 = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 128}
CONFIGS = [
    tiny_config(hidden_size=3584, num_attention_heads=28, num_key_value_heads=4, intermediate_size=18944),
    tiny_config(hidden_size=5120, num_attention_heads=40, num_key_value_heads=40, intermediate_size=13696),
    tiny_config(
        **QWEN3, hidden_size=2560, num_attention_heads=32, num_key_value_heads=8, intermediate_size=9728
    ),
    qwen1_config(tiny_config(hidden_size=4096, num_attention_heads=32, intermediate_size=5504)),
]


@pytest.mark.parametrize("config", CONFIGS, ids=["qwen2.5-7b", "qwen1.5-14b", "qwen3-4b", "qwen-7b"])
def test_the_twin_is_of_the_same_kind(config: dict[str, Any]) -> None:
    real, twin = from_config(config), from_config(narrow_config(config))
    for same in (
        "family",
        "vocab",
        "tie",
        "qkv_bias",
        "qk_norm",
        "rope_theta",
        "rms_eps",
        "max_positions",
        "stretch",
    ):
        assert getattr(twin, same) == getattr(real, same)
    assert twin.heads / twin.kv_heads == real.heads / real.kv_heads
    assert (twin.q_width == twin.hidden) == (real.q_width == real.hidden)
    assert twin.layers == 2
    assert twin.hidden <= 256


def test_one_rehearsal_of_a_run_at_a_time(tmp_path: Path) -> None:
    run = project(tmp_path)
    with held(beside(tmp_path / "runs" / "run.rehearsal")):
        code, said = rehearse(run)
    assert (code, "lock.busy" in said) == (5, True)
    assert not (tmp_path / "runs" / "run.rehearsal").exists()
