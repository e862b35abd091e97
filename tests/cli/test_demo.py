"""`make demo` from end to end, with a tiny model and few steps: the driver, its table, its exam."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.examples import EXAMPLES
from tests.tiny import tiny_model, tiny_tokenizer


def run_demo(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(EXAMPLES / "demo.py"), *arguments],
        capture_output=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONIOENCODING": "utf-8", **environment},
        check=False,
    )


@pytest.mark.slow
def test_the_demo_ends_with_one_table(tmp_path: Path) -> None:
    model = tiny_tokenizer(tiny_model(tmp_path / "tiny", max_position_embeddings=1024))
    few = ["train.max_steps=4", "output.max_new_tokens=4", f"output.dir={tmp_path / 'runs'}"]
    done = run_demo("--model", str(model), *(part for s in few for part in ("--set", s)))
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "runs" / "demo-tiny"
    assert done.stdout.count("┏") == 1  # one table
    joined = "".join(line.strip("│ ") for line in done.stdout.splitlines())
    for part in ("before", "after", "held-out loss", "/10", "/20", "trained tokens/s", "GB"):
        assert part in joined, part
    evaluate = json.loads((folder / "evaluate.json").read_text())["figures"]
    train = json.loads((folder / "train.json").read_text())["figures"]
    assert f"{evaluate['loss_before']:.3f}" in joined
    assert f"{evaluate['loss_after']:.3f}" in joined
    assert f"{train['tokens_per_s']} trained tokens/s" in joined
    exam = evaluate["sets"][0]
    assert f"{exam['loss'][1]:.3f}" in joined
    asked = [json.loads(line) for line in (folder / "evaluation.jsonl").read_text().splitlines()]
    asked = [line for line in asked if line["set"].endswith("ascend-exam.en.json")]
    assert len(asked) == exam["questions"] == 10
    assert f"{sum(line['after']['loss'] < line['before']['loss'] for line in asked)}/10" in joined
    flat = "".join(done.stdout.split()).replace("│", "")
    for name in ("merged", "adapter", "report.html", "metrics.jsonl", "samples.jsonl", "evaluation.jsonl"):
        assert (folder / name).exists()
        assert name in flat
    assert "tengtuneinit" in flat
    samples = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    assert len(samples) == 3
    assert all(sample["prompt"].split()[0] in joined for sample in samples)


def test_a_folder_that_is_no_model_is_a_screen(tmp_path: Path) -> None:
    done = run_demo("--model", str(tmp_path))
    assert done.returncode == 2
    assert "model.no_config" in done.stderr
    assert "Traceback" not in done.stderr
    chinese = run_demo("--model", str(tmp_path), TENGTUNE_LANG="zh")
    assert "出错了" in chinese.stderr
