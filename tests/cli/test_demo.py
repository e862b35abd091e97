"""`make demo` from end to end, with a tiny model and few steps: the driver, its table, its exam."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from tests.examples import EXAMPLES, script
from tests.report_lab import make_recipe, write_run
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


def test_the_time_holds_what_was_done_before_an_interruption(tmp_path: Path) -> None:
    """The record of a training that went on has its last part only; its 300 steps took 18 s each."""
    recipe = make_recipe(tmp_path)
    folder = write_run(recipe)
    record = json.loads((folder / "train.json").read_text())
    (folder / "train.json").write_text(json.dumps({**record, "seconds": 100.0}))
    others = 4.2 + 31.5 + 62.0 + 340.0
    assert script("demo").whole_seconds(recipe) == pytest.approx(300 * 18.0 + others)
    (folder / "train.json").write_text(json.dumps({**record, "seconds": 5410.0}))  # with loading and saving
    assert script("demo").whole_seconds(recipe) == pytest.approx(5410.0 + others)


def start_demo(model: Path, out: Path) -> subprocess.Popen[str]:
    """The demo in a process group of its own, as a terminal starts it, with a training that is long."""
    settings = ("train.max_steps=100000", f"output.dir={out}")
    return subprocess.Popen(
        [sys.executable, str(EXAMPLES / "demo.py"), "--model", str(model)]
        + [part for setting in settings for part in ("--set", setting)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
        start_new_session=True,
        # A suite in the background of a shell ignores Ctrl-C, and would hand that down.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def stopped_while_training(
    demo: subprocess.Popen[str], metrics: Path, stop: Callable[[], None]
) -> tuple[int, str]:
    """Stop it once it has trained on; its exit code, and all that it said."""
    before = metrics.read_text().count('"loss"') if metrics.exists() else 0
    while demo.poll() is None and (not metrics.exists() or metrics.read_text().count('"loss"') <= before):
        with suppress(subprocess.TimeoutExpired):
            demo.wait(0.05)
    stop()
    said = demo.communicate(timeout=120)[1]
    return demo.returncode, said


@pytest.mark.slow
def test_an_interrupted_demo_loses_nothing(tmp_path: Path) -> None:
    model = tiny_tokenizer(tiny_model(tmp_path / "tiny", max_position_embeddings=1024))
    folder = tmp_path / "runs" / "demo-tiny"
    metrics = folder / "metrics.jsonl"

    # Ctrl-C: the terminal sends SIGINT to the whole group.
    demo = start_demo(model, tmp_path / "runs")
    code, said = stopped_while_training(demo, metrics, lambda: os.killpg(demo.pid, signal.SIGINT))
    assert code == 130, said
    assert "and saved" in said
    assert "The same command goes on where it stopped" in said
    assert "Traceback" not in said
    assert "Stopped by Ctrl-C" not in said
    events = [line for line in map(json.loads, metrics.read_text().splitlines()) if "event" in line]
    assert [event["event"] for event in events] == ["stopped"]
    reached = events[0]["step"]

    # SIGTERM to the demo alone: what it started saves and ends before it does.
    demo = start_demo(model, tmp_path / "runs")
    code, said = stopped_while_training(demo, metrics, demo.terminate)
    assert code == 143, said
    assert "An earlier demo was not finished; this one goes on" in said
    events = [line for line in map(json.loads, metrics.read_text().splitlines()) if "event" in line]
    assert [event["event"] for event in events] == ["stopped", "resumed", "stopped"]
    assert events[1]["step"] == reached < events[2]["step"]
    with pytest.raises(ProcessLookupError):  # nobody is left in its group
        os.killpg(demo.pid, 0)
