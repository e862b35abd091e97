"""Two commands at one run folder, or at one output: the second is told of the first, and harms nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.cli.test_start import tengtune
from tests.training_lab import DISTURBED, STEP_CALLS, project

RUN = """
model: model
data: {files: data.json, seq_len: 64, heldout: 0.1}
train: {max_steps: 2, global_batch: 2}
lora: {targets: [q_proj], rank: 4}
output: {max_new_tokens: 4}
"""

WAIT = """
def {name}(*ignored):
    print("ready", flush=True)
    sys.stdin.read()
"""


@contextmanager
def first(place: Path, disturbance: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A command that says "ready" in the midst of its work and waits there until its stdin is closed."""
    line = [sys.executable, "-c", DISTURBED.format(disturbance=disturbance), *arguments]
    with subprocess.Popen(
        line, cwd=place, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as command:
        assert command.stdout is not None
        assert "ready\n" in iter(command.stdout.readline, "")
        yield command


@pytest.fixture
def place(tmp_path: Path) -> Path:
    project(tmp_path, RUN)
    return tmp_path


def test_a_second_train_is_refused_and_the_first_ends_whole(place: Path) -> None:
    waiting = WAIT.format(name="before") + STEP_CALLS
    with first(place, waiting, "train", "run.yaml") as command:
        for second in (["train"], ["run"], ["merge"], ["data", "--force"], ["train", "--fresh"]):
            refused = tengtune(*second, cwd=place)
            assert refused.returncode == 5, refused.stderr
            for part in ("code lock.busy, exit 5", f"Process {command.pid} on", "tengtune train run.yaml"):
                assert part in refused.stderr, second
        assert sorted(os.listdir(place / "runs")) == [".run.lock", "run"]
        report = tengtune("report", cwd=place)  # reads what lies there
        assert report.returncode == 0, report.stderr
        assert (place / "runs" / "run" / "report.html").exists()
        elsewhere = tengtune("data", "-s", "name=other", cwd=place)
        assert elsewhere.returncode == 0, elsewhere.stderr
        command.communicate()
        assert command.returncode == 0
    assert sorted(os.listdir(place / "runs")) == ["other", "run"]
    again = tengtune("train", cwd=place)
    assert (again.returncode, "train: up to date" in again.stderr) == (0, True)


def test_what_only_reads_is_not_refused(place: Path) -> None:
    waiting = WAIT.format(name="before") + STEP_CALLS
    with first(place, waiting, "train", "run.yaml") as command:
        for reading in (["data", "show", "run.yaml", "0"], ["weights", "show", "model"]):
            done = tengtune(*reading, cwd=place)
            assert done.returncode == 0, done.stderr
        command.communicate()


def test_two_conversions_into_one_folder(place: Path) -> None:
    waiting = "from tengtune.steps import convert\n" + WAIT.format(name="wait")
    waiting += "real = convert.write_conversion\n"
    waiting += "convert.write_conversion = lambda *a: (wait(), real(*a))[1]\n"
    line = ["convert", "model", "out", "--to", "mindspore"]
    with first(place, waiting, *line) as command:
        refused = tengtune(*line, cwd=place)
        assert refused.returncode == 5, refused.stderr
        assert f"Process {command.pid} on" in refused.stderr
        command.communicate()
        assert command.returncode == 0
    assert "convert.out_exists" in tengtune(*line, cwd=place).stderr
    assert not (place / "out.lock").exists()


def test_two_files_of_answers_at_one_out(place: Path) -> None:
    (place / "q.jsonl").write_text("".join(f'{{"prompt": "question {n}?"}}\n' for n in range(3)))
    waiting = "from tengtune.answer import batch\n" + WAIT.format(name="wait")
    waiting += "real = batch._read\n"
    waiting += "batch._read = lambda *a: (wait() if a[2] == 1 else None, real(*a))[1]\n"
    asked = ["predict", "--model", "model", "--file", "q.jsonl", "--out", "a.jsonl", "--max-new-tokens", "4"]
    with first(place, waiting, *asked) as command:
        refused = tengtune(*asked, cwd=place)
        assert refused.returncode == 5, refused.stderr
        assert f"Process {command.pid} on" in refused.stderr
        command.communicate()
        assert command.returncode == 0
    answers = [json.loads(line) for line in (place / "a.jsonl").read_text().splitlines()]
    assert [each["prompt"] for each in answers] == [f"question {n}?" for n in range(3)]
    assert not (place / "a.jsonl.lock").exists()
