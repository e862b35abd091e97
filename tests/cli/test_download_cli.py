"""`tengtune download` as a command, and inside a run."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.hub_lab import NEEDED, SHARDS, contents

from tengtune import engine
from tengtune import recipe as recipes
from tengtune.hub.plan import Wish
from tengtune.steps import download as step
from tengtune.ui.console import Console
from tengtune.ui.problems import Problem

RUN = "import sys; from tengtune.cli.main import main; main(sys.argv[1:])"


def tengtune(
    *arguments: object, cwd: Path, before: str = "", lang: str = "en", **environment: str
) -> subprocess.CompletedProcess[str]:
    """The real command in a process of its own; `before` is done in it first."""
    return subprocess.run(
        [sys.executable, "-c", f"{before}\n{RUN}", "--lang", lang, *map(str, arguments)],
        capture_output=True,
        text=True,
        encoding="utf-8",
        cwd=cwd,
        env={**os.environ, "PYTHONIOENCODING": "utf-8", **environment},
        check=False,
    )


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """A folder that holds the model Qwen/Tiny-Instruct, without a record."""
    for name, data in contents().items():
        path = tmp_path / "disk" / "Qwen" / "Tiny-Instruct" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return tmp_path / "disk"


def test_a_model_from_a_folder(tmp_path: Path, disk: Path) -> None:
    done = tengtune("download", "Qwen/Tiny-Instruct", "--from", disk, "-q", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "models/Tiny-Instruct\n"
    assert {path.name for path in (tmp_path / "models" / "Tiny-Instruct").iterdir()} == NEEDED | {
        "download.json"
    }


@pytest.mark.parametrize("more", [[], ["--dry-run"]])
def test_the_usual_target_may_be_the_source(tmp_path: Path, disk: Path, more: list[str]) -> None:
    (disk / "Qwen").rename(tmp_path / "models")
    model = tmp_path / "models" / "Tiny-Instruct"
    before = {path.name for path in model.iterdir()}
    done = tengtune("download", "Qwen/Tiny-Instruct", "--from", "models", *more, cwd=tmp_path)
    assert done.returncode == 2
    assert "Source and target are the same folder" in done.stderr
    assert "delete" not in done.stderr
    assert {path.name for path in model.iterdir()} == before


def test_dry_run_lists_and_fetches_nothing(tmp_path: Path, disk: Path) -> None:
    arguments = ("download", "Qwen/Tiny-Instruct", "--from", disk, "--to", tmp_path / "m", "--dry-run")
    done = tengtune(*arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Dry run: nothing was fetched or written." in done.stdout
    model = disk / "Qwen" / "Tiny-Instruct"
    total = f"{sum((model / name).stat().st_size for name in NEEDED):,} B"
    assert f"6 of 6 files ({total}) would be hard-linked from {disk} into {tmp_path / 'm'}, " in done.stdout
    assert "and 0 copied, 0 B (" in done.stdout
    assert done.stdout.count("would be hard-linked, takes no room") == 6
    assert "would be fetched" not in done.stdout
    assert "the same weights as a pickle" in done.stdout
    assert not (tmp_path / "m").exists()
    as_json = tengtune(*arguments, "--json", cwd=tmp_path)
    result = json.loads(as_json.stdout.splitlines()[-1])
    assert {entry["file"] for entry in result["fetch"]} == NEEDED
    assert set(result["linked"]) == NEEDED
    assert (result["source"], result["folder"]) == (str(disk), str(tmp_path / "m"))
    assert "pytorch_model.bin" in result["skipped"]


def test_a_second_call_says_whole_and_loads_no_client(tmp_path: Path, disk: Path) -> None:
    arguments = ("download", "Qwen/Tiny-Instruct", "--to", tmp_path / "m")
    assert tengtune(*arguments, "--from", disk, cwd=tmp_path).returncode == 0
    watch = (
        "import atexit, sys\n"
        "clients = {'requests', 'httpx2', 'modelscope_hub', 'huggingface_hub'}\n"
        "atexit.register(lambda: print('LOADED', sorted(clients & set(sys.modules))))"
    )
    for extra in ((), ("--dry-run",)):
        done = tengtune(*arguments, *extra, cwd=tmp_path, before=watch)
        assert "LOADED []" in done.stdout
        assert "whole already" in done.stdout + done.stderr


def test_json_figures(tmp_path: Path, disk: Path) -> None:
    done = tengtune(
        "download", "Qwen/Tiny-Instruct", "--from", disk, "--to", tmp_path / "m", "--json", cwd=tmp_path
    )
    result = json.loads(done.stdout.splitlines()[-1])
    size = sum(len(contents()[name]) for name in NEEDED)
    assert (result["event"], result["files"], result["bytes"], result["checked"]) == (
        "result",
        6,
        size,
        False,
    )


@pytest.mark.parametrize("client", ["modelscope", "huggingface"])
def test_a_missing_client_is_named_with_the_command_that_installs_it(tmp_path: Path, client: str) -> None:
    missing = f"import sys; sys.modules['{client}_hub'] = None"
    done = tengtune("download", "Qwen/Qwen2.5-7B", "--from", client, cwd=tmp_path, before=missing)
    assert done.returncode == 3
    assert f"pip install 'tengtune[{client}]'" in done.stderr
    assert not (tmp_path / "models").exists()


@pytest.mark.parametrize(
    "name", ["Qwen2.5-7B-Instuct", "https://modelscope.cn/models/Qwen/Qwen2.5-7B", "../x"]
)
def test_what_is_no_name_of_a_model(tmp_path: Path, name: str) -> None:
    done = tengtune("download", name, cwd=tmp_path)
    assert done.returncode == 2
    assert "download.bad_id" in done.stderr
    if name.startswith("Qwen"):
        assert "Did you mean Qwen/Qwen2.5-7B-Instruct" in done.stderr


def test_a_folder_is_told_from_a_name(tmp_path: Path) -> None:
    (tmp_path / "st").mkdir()
    done = tengtune("download", "st", "--to", "copy", cwd=tmp_path)
    assert (done.returncode, "download.is_folder" in done.stderr) == (2, True), done.stderr
    assert "tengtune download OWNER/st --from st" in done.stderr


def test_an_odd_locale_and_a_chinese_folder(tmp_path: Path, disk: Path) -> None:
    target = tmp_path / "模型 一"
    done = tengtune(
        "download", "Qwen/Tiny-Instruct", "--from", disk, "--to", target,
        cwd=tmp_path, lang="zh", LC_ALL="C", LANG="C", PYTHONIOENCODING="ascii",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (target / SHARDS[0]).read_bytes() == contents()[SHARDS[0]]
    told = tengtune("download", "Qwen/Tiny-Instruct", "--to", target, cwd=tmp_path, lang="zh")
    assert "已经完整，无需下载" in told.stderr


def recipe(folder: Path, model: str) -> recipes.Recipe:
    (folder / "a.json").write_text("[]")
    (folder / "run.yaml").write_text(f"model: {model}\ndata: a.json\n")
    return recipes.load(folder / "run.yaml")


def test_a_run_fetches_its_model_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = recipe(tmp_path, "Qwen/Tiny-Instruct")
    assert run.model_folder == tmp_path / "models" / "Tiny-Instruct"
    wishes: list[Wish] = []

    def bring(wish: Wish, console: Console) -> dict[str, object]:
        wishes.append(wish)
        wish.folder.mkdir(parents=True)
        (wish.folder / "config.json").write_text("{}")
        return {"folder": str(wish.folder)}

    monkeypatch.setattr(step, "bring", bring)
    console = Console("normal", io.StringIO(), io.StringIO())
    engine.prepare(run, fresh=False)
    for _ in range(2):
        engine.run_needed("download", run, console)
    assert wishes == [Wish("Qwen/Tiny-Instruct", run.model_folder)]
    assert "download: bring a model from a hub" in console.err.getvalue()  # type: ignore[attr-defined]
    # Gone again: fetched again.
    (run.model_folder / "config.json").unlink()
    run.model_folder.rmdir()
    engine.run_needed("download", run, console)
    assert len(wishes) == 2


def test_a_run_goes_on_with_a_download_that_was_interrupted(tmp_path: Path) -> None:
    """Files lie in the model's folder, but not the last, config.json."""
    run = recipe(tmp_path, "Qwen/Tiny-Instruct")
    run.model_folder.mkdir(parents=True)
    (run.model_folder / "tokenizer.json").write_text("{}")
    assert step.needed(run)
    engine.check_run(run)
    (run.model_folder / "config.json").write_text("{}")
    assert not step.needed(run)
    with pytest.raises(Problem, match=r"model\."):
        engine.check_run(run)


@pytest.mark.parametrize(
    "model", ["/nowhere/Qwen", "models/Qwen2.5-7B", "./Qwen/Qwen2.5-7B", "there/Qwen2.5-7B"]
)
def test_a_path_is_never_taken_for_a_model_on_a_hub(tmp_path: Path, model: str) -> None:
    (tmp_path / "there").mkdir()
    run = recipe(tmp_path, model)
    assert run.hub_model is None
    assert run.model_folder == run.resolve(model)
    assert not step.needed(run)
