"""The command line before any work: help, typos, languages, exit codes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.tiny import tiny_model, tiny_tokenizer

from tengtune.pipeline import STEPS

MAIN = "from tengtune.cli.main import main\nmain(['--help'])"


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


COMMANDS = [
    ["init"],
    ["run"],
    ["chat"],
    ["weights"],
    *(["weights", name] for name in ("show", "diff", "verify")),
    *([step.name] for step in STEPS),
    *(["data", name] for name in ("make", "show")),
]
CHINESE = re.compile("[\u4e00-\u9fff]")


def test_help_lists_every_command_in_both_languages() -> None:
    english, chinese = tengtune("--help"), tengtune("--help", TENGTUNE_LANG="zh")
    for step in STEPS:
        assert step.en in english.stdout
        assert step.zh in chinese.stdout
    assert english.returncode == chinese.returncode == 0


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_explains_itself_in_one_language(command: list[str]) -> None:
    english, chinese = tengtune(*command, "--help"), tengtune(*command, "--help", "--lang", "zh")
    assert english.returncode == chinese.returncode == 0
    assert f"Usage: tengtune {' '.join(command)}" in english.stdout
    assert not CHINESE.search(english.stdout)
    assert f"用法：tengtune {' '.join(command)}" in chinese.stdout
    assert re.search(r"--lang \[zh\|en\] +界面语言", chinese.stdout)
    for words in ("Usage", "Options", "Show this", "show this"):
        assert words not in chinese.stdout
    for line in chinese.stdout.splitlines():  # an option's help, where it stands beside it
        told = re.match(r" +-\S.*?  +(\S.*)", line)
        assert told is None or CHINESE.search(told[1]), line


def test_the_help_says_what_s_is() -> None:
    for command in ("train", "run", "chat", "predict"):
        text = " ".join(tengtune(command, "--help").stdout.split())
        assert "change a key of the run file for this call, for example -s train.epochs=1" in text


@pytest.mark.parametrize("line", [[], ["--lang", "en"], ["weights"]], ids=" ".join)
def test_a_command_alone_shows_its_help(line: list[str]) -> None:
    done = tengtune(*line)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Usage: tengtune")


@pytest.mark.parametrize("place", [0, 1, 2, 3])
@pytest.mark.parametrize("option", [["--lang", "zh"], ["--lang=zh"]], ids=" ".join)
def test_the_language_stands_anywhere(tmp_path: Path, place: int, option: list[str]) -> None:
    line = ["data", "make", str(tmp_path / "none.yaml")]
    done = tengtune(*line[:place], *option, *line[place:])
    assert "找不到这个文件或目录" in done.stderr
    assert done.returncode == 2


@pytest.mark.parametrize(
    ("line", "code", "part"),
    [
        (["train", "--frobnicate"], "ui.no_such_option", "--frobnicate"),
        (["train", "--resum", "never"], "ui.no_such_option", "--resume"),
        (["train", "--resume"], "ui.value_missing", "--resume"),
        (["train", "--resume", "x"], "ui.bad_value", "auto | never"),
        (["train", "--quiet=3"], "ui.unwanted_value", "--quiet"),
        (["train", "run.yaml", "more"], "ui.extra_arguments", "more"),
        (["evaluate", "--limit", "x"], "ui.bad_value", "--limit"),
        (["evaluate", "--limit", "0"], "ui.bad_value", "1 <= x"),
        (["chat", "--top-p", "7"], "ui.bad_value", "0 < x <= 1"),
        (["chat", "--top-p", "nan"], "ui.bad_value", "0 < x <= 1"),
        (["doctor", "--probe-timeout", "nan"], "ui.bad_value", "0 < x"),
        (["plan", "--tokens", "nan"], "ui.bad_value", "1 <= x"),
        (["init"], "ui.missing_argument", "MODEL"),
        (["weights", "shwo"], "ui.unknown_command", "show"),
        (["data", "show"], "ui.missing_argument", "[RUN] N"),
        (["data", "show", "run.yaml"], "view.no_number", "run.yaml"),
        (["train", "--lang"], "ui.bad_value", "--lang"),
        (["train", "--lang", "fr"], "ui.bad_value", "zh | en"),
        (["predict", "--model", "m"], "ui.wrong_option", "--prompt"),
    ],
)
@pytest.mark.parametrize("lang", ["zh", "en"])
def test_a_wrong_command_line_is_told_in_our_words(lang: str, line: list[str], code: str, part: str) -> None:
    done = tengtune(*line, TENGTUNE_LANG=lang)
    assert done.returncode == 2
    assert part in done.stderr
    assert re.search(rf"{code}\b.* 2$", done.stderr.strip())
    if lang == "zh":
        for told in done.stderr.splitlines()[:-1]:
            assert CHINESE.search(told), told


def test_a_closed_pipe_ends_quietly_with_the_shells_code() -> None:
    closed = f"import os\nread, write = os.pipe()\nos.close(read)\nos.dup2(write, 1)\n{MAIN}"
    done = subprocess.run([sys.executable, "-c", closed], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (141, "")


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


def test_names_in_a_run_file_are_utf8_whatever_the_locale(tmp_path: Path) -> None:
    tiny_tokenizer(tiny_model(tmp_path / "模型"))
    (tmp_path / "数据.json").write_text('[{"instruction": "a", "output": "b"}]', "utf-8")
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    for words in (
        ["init", "模型", "数据.json", "-o", "运行.yaml"],
        ["data", "运行.yaml", "--quiet"],
        ["data", "运行.yaml", "--quiet", "-s", "name=甲", "-s", "data.files=数据.json"],
    ):
        done = subprocess.run(
            [sys.executable, "-m", "tengtune", *words],
            cwd=tmp_path,
            env={**os.environ, **plain},
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    text = (tmp_path / "运行.yaml").read_text("utf-8")
    assert 'model: "模型"' in text
    assert 'files: "数据.json"' in text
    for name in ("运行", "甲"):
        assert (tmp_path / "runs" / name / "data" / "train" / "store.json").exists()
