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
    made = tengtune("data", cwd=tmp_path)
    assert FIRST not in made.stderr
    asked = tengtune("predict", cwd=tmp_path)
    assert asked.returncode == 0, asked.stderr
    assert asked.stderr.splitlines()[0] == f"predict {FIRST} train → merge → predict"
    assert all(word in asked.stdout for word in ("question", "before", "after"))
    chinese = tengtune("predict", "--lang", "zh", cwd=tmp_path)
    assert all(word in chinese.stdout for word in ("问题", "训练前", "训练后"))
    assert FIRST not in chinese.stderr
    again = tengtune("evaluate", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert FIRST not in again.stderr
    (tmp_path / "data.json").write_text((tmp_path / "data.json").read_text() + "\n")
    merged = tengtune("merge", "--lang", "zh", cwd=tmp_path)
    assert merged.stderr.splitlines()[0].endswith("data → train → merge")
    assert "前置步骤" in merged.stderr.splitlines()[0]
