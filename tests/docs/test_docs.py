"""The docs do what they say: every command in them is run, every sample file is used, every key is there.

In README and docs a ```bash block is run, line by line, in a folder that holds the model folder the docs
speak of; ```json NAME and ```yaml NAME blocks are files the commands use. ```sh blocks set things up; CI is
what runs those, and here it is checked that what they name exists.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.tiny import tiny_model, tiny_tokenizer

from tengtune import recipe as recipes
from tengtune.cli.main import TOOLS
from tengtune.pipeline import STEPS

tomllib = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")

ROOT = Path(__file__).resolve().parents[2]
PAIRS = [
    ("README.md", "README.zh.md"),
    ("docs/en/plan.md", "docs/zh/plan.md"),
    ("docs/en/doctor.md", "docs/zh/doctor.md"),
    ("docs/en/docker.md", "docs/zh/docker.md"),
    ("docs/en/download.md", "docs/zh/download.md"),
    ("docs/en/data.md", "docs/zh/data.md"),
    ("docs/en/weights.md", "docs/zh/weights.md"),
    ("docs/en/mindformers.md", "docs/zh/mindformers.md"),
    ("docs/en/training.md", "docs/zh/training.md"),
    ("docs/en/evaluation.md", "docs/zh/evaluation.md"),
    ("docs/en/predict.md", "docs/zh/predict.md"),
    ("docs/en/explain.md", "docs/zh/explain.md"),
    ("docs/en/run-file.md", "docs/zh/run-file.md"),
    ("docs/en/capabilities.md", "docs/zh/capabilities.md"),
]
PAGES = [
    *(page for pair in PAIRS for page in pair),
    "docs/architecture.md",
    "docs/benchmarks.md",
    "THIRD_PARTY.md",
]
FENCE = re.compile(r"^```(\w*)[ ]?(\S*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
KEY_ROW = re.compile(r"^\| `([\w.]+)`( \*)? \| ([^|]+) \|", re.MULTILINE)
CODE = re.compile(r"`([^`\n]+)`")


@dataclass(frozen=True)
class Block:
    """A fenced block: ```language name."""

    language: str
    name: str
    text: str


def read(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str) -> list[Block]:
    return [Block(*parts) for parts in FENCE.findall(read(page))]


def commands(page: str) -> list[str]:
    return [line for b in blocks(page) if b.language == "bash" for line in b.text.splitlines()]


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the docs' model folder (a tiny model in it) and the command on the PATH."""
    tiny_tokenizer(tiny_model(tmp_path / "models" / "SmolLM2-135M-Instruct", max_position_embeddings=2048))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("page", [*(english for english, _ in PAIRS), "docs/zh/data.md"])
def test_every_command_runs(page: str, workplace: Path) -> None:
    for block in blocks(page):
        if block.name:
            (workplace / block.name).write_text(block.text, encoding="utf-8")
    for line in commands(page):
        done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        assert "dropped" not in done.stderr, line


@pytest.mark.parametrize("page", PAGES)
def test_every_block_says_what_it_is(page: str) -> None:
    for block in blocks(page):
        assert block.language in ("bash", "sh", "json", "yaml", "text"), block
        assert block.name or block.language not in ("json", "yaml"), block
        if block.language == "json":
            assert json.loads(block.text)


@pytest.mark.parametrize("pair", PAIRS)
def test_both_languages_hold_the_same(pair: tuple[str, str]) -> None:
    """Blocks, headings, tables; and the commands, but for the texts in them: what is run once holds twice."""
    english, chinese = ([b for b in blocks(page) if b.language] for page in pair)
    assert [(b.language, b.name) for b in english] == [(b.language, b.name) for b in chinese]
    without_texts = [[re.sub(r'"[^"]*"|#.*', "", line).strip() for line in commands(page)] for page in pair]
    assert without_texts[0] == without_texts[1]
    headings = [re.findall(r"^(#+) ", read(page), re.MULTILINE) for page in pair]
    assert headings[0] == headings[1]
    tables = [len(re.findall(r"^\|", read(page), re.MULTILINE)) for page in pair]
    assert tables[0] == tables[1]


@pytest.mark.parametrize("page", ["docs/en/run-file.md", "docs/zh/run-file.md"])
def test_every_key_is_documented_with_its_default(page: str) -> None:
    rows = KEY_ROW.findall(read(page))
    assert [key for key, _, _ in rows] == list(recipes.keys())
    assert {key for key, star, _ in rows if star} == set(recipes.CHANGEABLE)
    documented = {key: default.strip() for key, _, default in rows}
    smallest = recipes.Recipe(name="x", model="m", data="d", file=Path("x.yaml")).model_dump()
    in_words = {"name", "model.path", "data.files", "output.prompts", "output.evaluate"}
    assert {key for key, default in documented.items() if "`" not in default and default != "-"} == in_words
    for key in documented.keys() - in_words:
        value = smallest
        for part in key.split("."):
            value = value[part]
        assert documented[key] == written(value), key


def written(value: object) -> str:
    """A default as the docs write it."""
    if value is None:
        return "-"
    if isinstance(value, list):
        return f"`{', '.join(value)}`"
    return f"`{value if isinstance(value, str) else json.dumps(value)}`"


@pytest.mark.parametrize("page", ["docs/en/run-file.md", "docs/zh/run-file.md"])
def test_the_run_files_shown_load(page: str, tmp_path: Path) -> None:
    shown = [b for b in blocks(page) if b.language == "yaml"]
    assert len(shown) >= 2
    for block in shown:
        (tmp_path / block.name).write_text(block.text, encoding="utf-8")
        assert recipes.load(tmp_path / block.name).data.files == ["my.json"]


def test_what_sets_things_up_exists() -> None:
    targets = re.findall(r"^([a-z]+):", read("Makefile"), re.MULTILINE)
    extras = tomllib.loads(read("pyproject.toml"))["project"]["optional-dependencies"]
    lines = [
        line for page in PAGES for b in blocks(page) if b.language == "sh" for line in b.text.splitlines()
    ]
    assert lines
    for line in lines:
        make = re.fullmatch(r"make (\w+)( +#.*)?", line)
        install = re.fullmatch(r"pip install -e '\.\[([\w,]+)\]'", line)
        assert make or install, line
        if make:
            assert make[1] in targets, line
        if install:
            assert set(install[1].split(",")) <= set(extras), line


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    for target in re.findall(r"\]\(([^)#]+)", read(page)):
        if not target.startswith(("http:", "https:")):
            assert (ROOT / page).parent.joinpath(target).exists(), target


def mentioned(page: str) -> Iterator[str]:
    """The sub-commands of `tengtune X` in running text and tables."""
    for code in CODE.findall(FENCE.sub("", read(page))):
        words = code.split()
        if words[0] == "tengtune" and len(words) > 1 and words[1].isalpha():
            yield words[1]


@pytest.mark.parametrize("page", PAGES)
def test_no_command_is_promised_that_is_not_there(page: str) -> None:
    known = {*TOOLS, *(step.name for step in STEPS)}
    assert set(mentioned(page)) <= known


@pytest.mark.parametrize("page", ["README.md", "README.zh.md"])
def test_the_table_of_steps_names_every_step(page: str) -> None:
    assert set(mentioned(page)) >= {step.name for step in STEPS}


def test_third_party_names_every_dependency() -> None:
    project = tomllib.loads(read("pyproject.toml"))["project"]
    listed = re.findall(r"^\| ([\w-]+) \|", read("THIRD_PARTY.md"), re.MULTILINE)
    for group in (project["dependencies"], *project["optional-dependencies"].values()):
        for requirement in group:
            match = re.match(r"[\w-]+", requirement)
            assert match
            assert match[0] in listed
