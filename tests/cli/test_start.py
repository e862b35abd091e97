"""The command line before any work: help, typos, languages, exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tengtune.pipeline import STEPS


def tengtune(
    *arguments: str, cwd: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """The real command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "tengtune", *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        encoding="utf-8",
        env={**os.environ, "PYTHONIOENCODING": "utf-8", **environment},
        check=False,
    )


def test_help_lists_every_command_in_both_languages() -> None:
    english, chinese = tengtune("--help"), tengtune("--help", TENGTUNE_LANG="zh")
    for step in STEPS:
        assert step.en in english.stdout
        assert step.zh in chinese.stdout
    assert english.returncode == chinese.returncode == 0


@pytest.mark.parametrize("command", ["init", "run", *(s.name for s in STEPS)])
def test_every_command_explains_itself(command: str) -> None:
    done = tengtune(command, "--help")
    assert done.returncode == 0
    assert "Usage: tengtune" in done.stdout


def test_a_wrong_command_names_the_nearest() -> None:
    done = tengtune("trian")
    assert done.returncode == 2
    assert "train" in done.stderr
    assert done.stdout == ""


def test_a_wrong_option_is_a_screen_not_a_usage_dump() -> None:
    done = tengtune("train", "--frobnicate")
    assert done.returncode == 2
    assert "Problem:" in done.stderr
    assert "--frobnicate" in done.stderr


@pytest.mark.parametrize(("lang", "word"), [("zh", "不认识的键"), ("en", "Unknown key")])
def test_a_typo_in_the_run_file(tmp_path: Path, lang: str, word: str) -> None:
    (tmp_path / "run.yaml").write_text("model: m\ndata: d\ntrain:\n  epoch: 3\n")
    done = tengtune("--lang", lang, "train", cwd=tmp_path)
    assert done.returncode == 2
    assert word in done.stderr
    assert "run.yaml:4" in done.stderr
    assert "train.epochs" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_problem_as_json(tmp_path: Path) -> None:
    done = tengtune("train", "--json", str(tmp_path / "none.yaml"))
    event = json.loads(done.stdout)
    assert (event["event"], event["problem"], event["exit_code"]) == ("problem", "io.not_found", 2)
    assert done.returncode == 2


def test_an_ascii_terminal_is_no_reason_to_crash(tmp_path: Path) -> None:
    done = tengtune("--lang", "zh", "train", str(tmp_path / "无.yaml"), PYTHONIOENCODING="ascii", LC_ALL="C")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_no_framework_is_loaded_for_help_or_a_typo(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("model: m\ndata: d\nepoch: 3\n")
    code = (
        "import sys\n"
        "from tengtune.cli.main import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'mindspore', 'transformers', 'numpy', 'rich'} & set(sys.modules)\n"
        "print('LOADED', sorted(heavy))\n"
    )
    for arguments in (["--help"], ["train", str(tmp_path / "run.yaml")]):
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True
        )
        assert "LOADED []" in done.stdout
