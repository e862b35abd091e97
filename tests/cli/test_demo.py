"""`make demo` from end to end, with a tiny model and few steps: the driver, its table, its exam."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.examples import EXAMPLES, script
from tests.tiny import tiny_model, tiny_tokenizer

demo = script("demo")


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
    for part in ("before", "after", "held-out loss", "of 10", "of 8", "trained tokens/s", "GB"):
        assert part in joined, part
    evaluate = json.loads((folder / "evaluate.json").read_text())["figures"]
    train = json.loads((folder / "train.json").read_text())["figures"]
    assert f"{evaluate['loss_before']:.3f}" in joined
    assert f"{evaluate['loss_after']:.3f}" in joined
    assert f"{train['tokens_per_s']} trained tokens/s" in joined
    flat = "".join(done.stdout.split()).replace("│", "")
    for name in ("merged", "adapter", "metrics.jsonl", "samples.jsonl", "exam.json"):
        assert (folder / name).exists()
        assert name in flat
    assert "tengtuneinit" in flat
    samples = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    assert len(samples) == 3
    assert all(sample["prompt"].split()[0] in joined for sample in samples)


@pytest.mark.slow
def test_the_exam_scores_the_right_answer_by_its_own_tokens(tmp_path: Path) -> None:
    """The loss of a right answer against the same sum over softmax of transformers' logits."""
    import torch
    from transformers import PreTrainedTokenizerFast, Qwen2ForCausalLM

    from tengtune import recipe as recipes
    from tengtune.backends.base import open_backend
    from tengtune.text.tokenizer import open_tokenizer

    model = tiny_tokenizer(tiny_model(tmp_path / "tiny", seed=4))
    (tmp_path / "run.yaml").write_text(f"model: {model}\ndata: none.json\n")
    backend = open_backend(recipes.load(tmp_path / "run.yaml"), model, trainable=False)
    question = demo.Question("What is the answer?", "There are things.", [["things"]])
    answer = demo.ask(backend, open_tokenizer(model), question, "", 5)

    theirs = PreTrainedTokenizerFast(tokenizer_file=str(model / "tokenizer.json"))
    asked = theirs.encode("<|im_start|>user\nWhat is the answer?<|im_end|>\n<|im_start|>assistant\n")
    wanted = theirs.encode("There are things.<|im_end|>")
    with torch.no_grad():
        logits = Qwen2ForCausalLM.from_pretrained(model)(torch.tensor([asked + wanted])).logits[0]
    probabilities = logits[len(asked) - 1 : -1].double().log_softmax(-1)
    expected = -probabilities[torch.arange(len(wanted)), torch.tensor(wanted)].mean()
    assert answer.loss == pytest.approx(expected.item(), abs=1e-4)
    assert answer.right == ("things" in answer.text)


def test_a_folder_that_is_no_model_is_a_screen(tmp_path: Path) -> None:
    done = run_demo("--model", str(tmp_path))
    assert done.returncode == 2
    assert "model.no_config" in done.stderr
    assert "Traceback" not in done.stderr
    chinese = run_demo("--model", str(tmp_path), TENGTUNE_LANG="zh")
    assert "出错了" in chinese.stderr
