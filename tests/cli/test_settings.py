"""Settings given with -s: what is said afterwards names the same run; what is done first is said first."""

from __future__ import annotations

import html
import shlex
from pathlib import Path

import pytest
from tests.cli.test_start import tengtune
from tests.report_lab import collected, make_recipe, write_run
from tests.training_lab import project

from tengtune.report.page import page

RUN = """
model: model
data: {files: data.json, seq_len: 64}
train: {max_steps: 1, global_batch: 2}
lora: {targets: [q_proj], rank: 4}
output: {max_new_tokens: 4}
"""
FIRST = "needs what is not done yet, or out of date; in this order:"


@pytest.mark.slow
def test_the_last_hint_names_the_run_with_its_settings(tmp_path: Path) -> None:
    project(tmp_path, RUN)
    settings = ["-s", "name=a b", "-s", "train.max_steps=2"]
    done = tengtune("run", "run.yaml", *settings, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    hint = done.stdout.splitlines()[-1].partition("tengtune ")[2]
    words = shlex.split(hint)
    assert words == ["predict", "run.yaml", *settings, "--prompt", "..."]
    asked = tengtune(*words, cwd=tmp_path)
    assert asked.returncode == 0, asked.stderr
    assert FIRST not in asked.stderr  # the very run that is trained
    none = tengtune("report", "-s", "name=c d", cwd=tmp_path)
    assert "tengtune run run.yaml -s 'name=c d'" in none.stderr
    shown = tengtune("data", "show", *words[1:-2], "0", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    lost = tengtune("data", "show", "-s", "name=e f", "0", cwd=tmp_path)
    assert "tengtune data run.yaml -s 'name=e f'" in lost.stderr


def test_the_reports_commands_name_the_run_with_its_settings(tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path).model_copy(update={"overrides": ("name=a b", "seed=7")})
    write_run(recipe)
    text = html.unescape(page(collected(recipe)))
    assert "tengtune predict run.yaml -s 'name=a b' -s seed=7 --prompt" in text


@pytest.mark.slow
def test_what_is_done_first_is_said_first(tmp_path: Path) -> None:
    project(tmp_path, RUN)
    made = tengtune("train", "--lang", "zh", cwd=tmp_path)
    assert made.stderr.splitlines()[0].endswith("data → train")
    assert "前置步骤" in made.stderr.splitlines()[0]
    (tmp_path / "data.json").write_text((tmp_path / "data.json").read_text() + "\n")
    again = tengtune("train", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert again.stderr.splitlines()[0] == f"train {FIRST} data → train"


@pytest.mark.slow
def test_who_asks_or_looks_trains_nothing(tmp_path: Path) -> None:
    project(tmp_path, RUN)
    assert tengtune("data", cwd=tmp_path).returncode == 0
    for words in (
        ["predict"],
        ["predict", "-p", "hi"],
        ["chat"],
        ["evaluate"],
        ["merge"],
        ["convert", "run.yaml"],
    ):
        refused = tengtune(*words, cwd=tmp_path)
        assert refused.returncode == 2, refused.stderr
        assert "code engine.not_trained" in refused.stderr
        assert "`tengtune run run.yaml`" in refused.stderr
        assert "tengtune chat --model" in refused.stderr
    assert not (tmp_path / "runs" / "run" / "train.json").exists()
    # Only data were made: a key may still change for one call.
    trained = tengtune("train", "-s", "train.max_steps=2", cwd=tmp_path)
    assert trained.returncode == 0, trained.stderr
    assert "with so few steps this is no measure" in trained.stderr
    record = tmp_path / "runs" / "run" / "train.json"
    before = record.read_bytes()
    (tmp_path / "data.json").write_text((tmp_path / "data.json").read_text() + "\n")
    asked = tengtune("predict", cwd=tmp_path)  # the run file says 1 step, the run folder 2
    assert asked.returncode == 0, asked.stderr
    assert "train.max_steps: 2" in asked.stderr
    assert "`tengtune run run.yaml` trains anew" in asked.stderr
    assert all(word in asked.stdout for word in ("question", "before", "after"))
    assert (tmp_path / "runs" / "run" / "data.json").exists()
    for words in (["report"], ["evaluate"], ["merge"], ["chat"]):
        done = tengtune(*words, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert "train.max_steps: 2" in done.stderr
        assert "--fresh" not in done.stderr
    assert record.read_bytes() == before
    for words in ("predict", "chat", "report", "evaluate", "merge", "convert"):
        assert "--fresh" not in tengtune(words, "--help", cwd=tmp_path).stdout
    refused = tengtune("train", "-s", "train.max_steps=3", cwd=tmp_path)
    assert (refused.returncode, "-s name=run-2" in refused.stderr) == (2, True)
