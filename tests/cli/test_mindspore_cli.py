"""run, predict, chat and evaluate on the MindSpore back end, as commands; PyTorch answers the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from tests.mindformers_lab import adapter_in_mindformers, in_layout
from tests.tiny import tiny_model, tiny_tokenizer

pytestmark = pytest.mark.slow

RUN = """
model: model
backend: mindspore
data: {files: a.json, seq_len: 64, heldout: 0.2}
train: {max_steps: 3, global_batch: 2, lr: 0.01}
output: {max_new_tokens: 8, layout: mindformers}
"""


def tengtune(place: Path, *arguments: str, typed: str = "") -> str:
    """What the command prints."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TENGTUNE_LANG": "en"}
    done = subprocess.run(
        [sys.executable, "-m", "tengtune", *arguments],
        cwd=place, env=environment, input=typed, capture_output=True, text=True, timeout=170, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that is done."""
    folder = tmp_path_factory.mktemp("run")
    tiny_tokenizer(tiny_model(folder / "model"))
    records = [{"instruction": f"question {n}?", "output": f"answer number {n}."} for n in range(20)]
    (folder / "a.json").write_text(json.dumps(records))
    (folder / "run.yaml").write_text(RUN)
    tengtune(folder, "run")
    return folder


def record(place: Path, step: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((place / "runs" / "run" / f"{step}.json").read_text())["figures"]
    return found


def test_a_run_ends_with_answers_and_marks(place: Path) -> None:
    samples = (place / "runs" / "run" / "samples.jsonl").read_text("utf-8").splitlines()
    assert record(place, "predict")["questions"] == len(samples) == 3
    assert all(set(json.loads(line)) == {"prompt", "before", "after"} for line in samples)
    evaluated = record(place, "evaluate")
    assert evaluated["general"]["questions"] == 20


def test_predict_answers_as_on_pytorch(place: Path) -> None:
    asked = (
        "predict",
        "run.yaml",
        "--prompt",
        "question 3?",
        "--prompt",
        "What is new?",
        "--temperature",
        "0",
    )
    ours = tengtune(place, *asked)
    assert ours.strip()
    assert ours == tengtune(place, *asked, "-s", "backend=torch")


def test_chat_answers_as_on_pytorch(place: Path) -> None:
    drawn = ("chat", "run.yaml", "--temperature", "0.8", "--top-p", "0.9", "--seed", "3")
    typed = "question 3?\nand then?\n/quit\n"
    ours = tengtune(place, *drawn, typed=typed)
    assert ours.strip()
    assert ours == tengtune(place, *drawn, "-s", "backend=torch", typed=typed)


INTERRUPTED = """
import os, signal, sys
from tengtune.cli.main import main
from tengtune.backends.mindspore.generate import Texts

calls, take = [], Texts.take
def taken(self, ids):
    "A Ctrl-C before the third pass: by then MindSpore has its own handler in place."
    calls.append(ids)
    if len(calls) == 3:
        os.kill(os.getpid(), signal.SIGINT)
    return take(self, ids)

Texts.take = taken
main(sys.argv[1:])
"""


def interrupted(place: Path, *arguments: str, typed: str = "") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TENGTUNE_LANG": "en"}
    return subprocess.run(
        [sys.executable, "-c", INTERRUPTED, *arguments],
        cwd=place, env=environment, input=typed, capture_output=True, text=True, timeout=170, check=False,
    )  # fmt: skip


def test_a_ctrl_c_ends_an_answer_and_not_without_a_word(place: Path) -> None:
    """MindSpore's own handler makes SIGTERM of it, of which a process dies."""
    done = interrupted(place, "predict", "run.yaml", "--prompt", "question 3?")
    assert done.returncode == 130
    assert done.stderr.endswith("warning: Stopped by Ctrl-C.\n")
    (place / "q.jsonl").write_text('{"prompt": "question 3?"}\n')
    done = interrupted(place, "predict", "run.yaml", "--file", "q.jsonl", "--out", "answers.jsonl")
    assert done.returncode == 130
    assert "stopped after 0 of 1 record" in done.stderr
    assert not (place / "rank_0").exists()  # what MindSpore leaves of a graph that was cut short


def test_a_chat_goes_on_after_a_ctrl_c(place: Path) -> None:
    asked = ("chat", "run.yaml", "--temperature", "0")
    done = interrupted(place, *asked, typed="question 3?\n/clear\nquestion 3?\n/quit\n")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("(stopped)") == 1
    assert tengtune(place, *asked, typed="question 3?\n/quit\n") in done.stdout  # the second answer is whole


def test_evaluate_marks_as_on_pytorch(place: Path) -> None:
    file = place / "runs" / "run" / "evaluation.jsonl"
    ours = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    tengtune(place, "evaluate", "run.yaml", "--force", "-s", "backend=torch")
    torchs = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    assert len(ours) == 20
    for mine, theirs in zip(ours, torchs, strict=True):
        for model in ("before", "after"):
            assert mine[model].pop("loss") == pytest.approx(theirs[model].pop("loss"), rel=1e-4)
        assert mine == theirs


def test_mindformers_output_folder_holds_base_and_adapter(place: Path) -> None:
    """Of one rank, whose files hold the whole."""
    run = place / "runs" / "run"
    tengtune(place, "merge", "--shards", str(run / "output"), "--out", "whole.safetensors")
    base, adapter = (
        load_file(path)
        for path in (place / "model/model.safetensors", run / "adapter/adapter_model.safetensors")
    )
    wanted = {**in_layout(base, "mindformers", {}), **adapter_in_mindformers(adapter, qwen1=False)}
    found = load_file(place / "whole.safetensors")
    assert found.keys() == wanted.keys()
    assert all(np.array_equal(found[name], wanted[name]) for name in wanted)
    assert (run / "output/checkpoint/rank_0/qwen_rank_0-1_3.ckpt").is_file()
