"""Steps are skipped when nothing changed, and a run folder belongs to one run file."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import os
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tengtune import engine, files
from tengtune import recipe as recipes
from tengtune.pipeline import Step
from tengtune.recipe import Recipe
from tengtune.ui.console import Console
from tengtune.ui.problems import Problem

TEXT = "model: /m\ndata: a.json\n"


@pytest.fixture
def run(tmp_path: Path) -> Recipe:
    (tmp_path / "a.json").write_text("[]")
    (tmp_path / "run.yaml").write_text(TEXT)
    return recipes.load(tmp_path / "run.yaml")


@pytest.fixture
def copying(monkeypatch: pytest.MonkeyPatch) -> Step:
    """A step that copies the data file's text into the run folder, and counts its calls."""
    module = types.ModuleType("tengtune.steps.copying")
    module.calls = 0  # type: ignore[attr-defined]

    def work(recipe: Recipe, console: Console) -> engine.Result:
        module.calls += 1  # type: ignore[attr-defined]
        files.write_text(recipe.folder / "out.txt", recipe.resolve("a.json").read_text())
        return engine.Result(["out.txt"], {"calls": module.calls})  # type: ignore[attr-defined]

    module.inputs = lambda recipe: [recipe.resolve("a.json")]  # type: ignore[attr-defined]
    module.settings = lambda recipe: {"seed": recipe.seed}  # type: ignore[attr-defined]
    module.run = work  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tengtune.steps.copying", module)
    return Step("copying", "work", (), ("out.txt",), "抄写", "copy")


def quiet() -> Console:
    return Console("quiet", io.StringIO(), io.StringIO())


def test_unchanged_is_skipped_and_said(run: Recipe, copying: Step) -> None:
    console = Console("normal", io.StringIO(), io.StringIO())
    engine.prepare(run, fresh=False)
    assert engine.execute(copying, run, console) == {"calls": 1}
    assert engine.execute(copying, run, console) == {"calls": 1}
    assert "up to date" in console.err.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize("change", ["input", "product gone", "product cut", "record cut", "force"])
def test_whatever_changes_the_step_is_done_again(run: Recipe, copying: Step, change: str) -> None:
    engine.prepare(run, fresh=False)
    engine.execute(copying, run, quiet())
    if change == "input":
        run.resolve("a.json").write_text("[1]")
    elif change == "product gone":
        (run.folder / "out.txt").unlink()
    elif change == "product cut":
        (run.folder / "out.txt").write_text("[")
    elif change == "record cut":
        (run.folder / "copying.json").write_text('{"figures": {')
    again = engine.execute(copying, run, quiet(), force=change == "force")
    assert again == {"calls": 2}
    assert (run.folder / "out.txt").read_text() == run.resolve("a.json").read_text()


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "[" * 100_000,
        lambda text: '{"figures": 5}',
        lambda text: text.replace('"calls": 1', '"calls": "1"'),
        lambda text: text.replace('"outputs": [', '"outputs": [5, '),
        lambda text: "",
    ],
)
def test_a_record_that_is_not_as_it_was_written_counts_for_nothing(
    run: Recipe, copying: Step, damage: Callable[[str], str]
) -> None:
    engine.prepare(run, fresh=False)
    engine.execute(copying, run, quiet())
    record = run.folder / "copying.json"
    record.write_text(damage(record.read_text()))
    assert engine.read_record(record) is None
    assert engine.execute(copying, run, quiet()) == {"calls": 2}


def test_a_pipe_in_place_of_a_record_is_not_waited_for(run: Recipe, copying: Step) -> None:
    engine.prepare(run, fresh=False)
    os.mkfifo(run.folder / "copying.json")
    assert engine.execute(copying, run, quiet()) == {"calls": 1}


def test_a_record_without_a_sum_is_an_older_one(run: Recipe, copying: Step) -> None:
    engine.prepare(run, fresh=False)
    engine.execute(copying, run, quiet())
    record = json.loads((run.folder / "copying.json").read_text())
    for key in ("check", "id", "made_of"):
        del record[key]
    (run.folder / "copying.json").write_text(json.dumps(record))
    assert engine.execute(copying, run, quiet()) == {"calls": 1}


def test_a_record_says_what_it_was_made_of(
    run: Recipe, copying: Step, monkeypatch: pytest.MonkeyPatch
) -> None:
    def record(name: str) -> dict[str, Any]:
        found = engine.read_record(run.folder / f"{name}.json")
        assert found is not None
        return found

    after = dataclasses.replace(copying, name="after", needs=("copying",))
    monkeypatch.setitem(sys.modules, "tengtune.steps.after", sys.modules["tengtune.steps.copying"])
    engine.prepare(run, fresh=False)
    for each in (copying, after):
        engine.execute(each, run, quiet())
    first = record("copying")["id"]
    assert record("copying")["made_of"] == {}
    assert record("after")["made_of"] == {"copying": first}
    engine.execute(copying, run, quiet(), force=True)
    assert record("copying")["id"] != first
    assert record("after")["made_of"] == {"copying": first}


def test_a_figure_that_is_no_number_is_null_in_the_record(run: Recipe, copying: Step) -> None:
    module = sys.modules["tengtune.steps.copying"]
    figures = {"loss": math.nan, "pairs": [[1.5, math.inf], (2.0, -math.inf)]}
    module.run = lambda recipe, console: engine.Result([], figures)  # type: ignore[attr-defined]
    engine.prepare(run, fresh=False)
    wanted = {"loss": None, "pairs": [[1.5, None], [2.0, None]]}
    assert engine.execute(copying, run, quiet()) == wanted
    text = (run.folder / "copying.json").read_text()
    assert json.loads(text, parse_constant=pytest.fail)["figures"] == wanted


@pytest.mark.parametrize(
    ("options", "expected"), [({}, False), ({"force": True}, True), ({"anew": True}, True)]
)
def test_a_step_that_resumes_is_told_when_not_to(
    run: Recipe, monkeypatch: pytest.MonkeyPatch, options: dict[str, bool], expected: bool
) -> None:
    told: list[bool] = []
    module = types.ModuleType("tengtune.steps.resuming")
    module.inputs = lambda recipe: []  # type: ignore[attr-defined]
    module.settings = lambda recipe: {}  # type: ignore[attr-defined]
    module.run = lambda recipe, console, anew: told.append(anew) or engine.Result([])  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tengtune.steps.resuming", module)
    engine.prepare(run, fresh=False)
    step = Step("resuming", "work", (), (), "续", "go on", resumes=True)
    engine.execute(step, run, quiet(), **options)
    engine.execute(step, run, quiet(), anew=True)  # up to date now: not done again
    assert told == [expected]


def test_a_failed_step_leaves_no_record(run: Recipe, copying: Step, monkeypatch: pytest.MonkeyPatch) -> None:
    engine.prepare(run, fresh=False)
    engine.execute(copying, run, quiet())
    run.resolve("a.json").write_text("[1]")
    monkeypatch.setattr(files, "write_text", lambda *_: (_ for _ in ()).throw(OSError(28, "full")))
    with pytest.raises(OSError, match="full"):
        engine.execute(copying, run, quiet())
    assert not (run.folder / "copying.json").exists()


@pytest.mark.parametrize("begun", ["train.json", "checkpoints/step_4"])
@pytest.mark.parametrize("by_set", [False, True])
def test_what_a_training_began_with_may_not_change(run: Recipe, begun: str, by_set: bool) -> None:
    engine.prepare(run, fresh=False)
    (run.folder / "checkpoints").mkdir()
    (run.folder / begun).mkdir()
    if not by_set:
        run.file.write_text(TEXT + "train: {lr: 1e-5}\n")
    with pytest.raises(Problem) as caught:
        engine.prepare(recipes.load(run.file, ["train.lr=1e-5"] if by_set else []), fresh=False)
    assert caught.value.code == ("engine.changed_by_set" if by_set else "engine.changed")
    assert "-train.lr: null" in str(caught.value)
    assert "+train.lr: 1e-05" in str(caught.value)
    assert ("-s name=run-2" in str(caught.value)) == by_set


def test_before_a_training_every_key_may_change(run: Recipe) -> None:
    engine.prepare(run, fresh=False)
    (run.folder / "data.json").write_text("{}")
    engine.prepare(recipes.load(run.file, ["train.lr=1e-5", "data.seq_len=64"]), fresh=False)
    again = recipes.load(run.folder / "run.yaml")
    assert (again.train.lr, again.data.seq_len) == (1e-5, 64)


def test_who_looks_at_a_run_sees_it_as_it_was_made(run: Recipe) -> None:
    console = Console("normal", io.StringIO(), io.StringIO())
    run.file.write_text(TEXT + "train: {epochs: 2, log_every: 3}\n")
    engine.prepare(recipes.load(run.file), fresh=False)
    kept = (run.folder / "run.yaml").read_text()
    changed = ["train.epochs=9", "data.system=x", "train.log_every=5", "output.prompts=Hi", "backend=torch"]
    seen = engine.reopen(recipes.load(run.file, changed), console)
    assert (seen.train.epochs, seen.data.system) == (2.0, None)
    assert (seen.train.log_every, seen.output.prompts, seen.backend) == (5, ["Hi"], "torch")
    assert (seen.file, seen.folder) == (run.file, run.folder)
    assert (run.folder / "run.yaml").read_text() == kept
    said = console.err.getvalue()  # type: ignore[attr-defined]
    assert "data.system: null, train.epochs: 2.0" in said
    assert len(said.splitlines()) == 1


def test_who_asks_a_run_that_was_not_trained_is_told_so(run: Recipe) -> None:
    for name in ("merge", "predict", "evaluate", "convert"):
        with pytest.raises(Problem) as caught:
            engine.run_trained(name, run, quiet())
        assert (caught.value.code, caught.value.exit_code) == ("engine.not_trained", 2)
    assert not run.folder.exists()


def test_harmless_keys_may_change(run: Recipe) -> None:
    engine.prepare(run, fresh=False)
    run.file.write_text(TEXT + "train: {log_every: 5}\noutput: {prompts: [Hi]}\n")
    engine.prepare(recipes.load(run.file), fresh=False)
    assert "Hi" in (run.folder / "run.yaml").read_text()


def test_fresh_sets_the_old_folder_aside(run: Recipe) -> None:
    engine.prepare(run, fresh=False)
    (run.folder / "precious").write_text("x")
    run.file.write_text(TEXT + "train: {lr: 1e-5}\n")
    engine.prepare(recipes.load(run.file), fresh=True)
    assert (run.folder.with_name("run.old-1") / "precious").read_text() == "x"
    assert not (run.folder / "precious").exists()


def test_the_run_folders_copy_is_a_run_file_of_the_same_meaning(run: Recipe) -> None:
    run.file.write_text(TEXT + "name: 'x: y'\noutput: {prompts: ['a \"b\"', '中文']}\n")
    first = recipes.load(run.file)
    engine.prepare(first, fresh=False)
    again = recipes.load(first.folder / "run.yaml")
    assert again.model_dump() == first.model_dump()
