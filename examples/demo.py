"""The demo: fetch a small real model, fine-tune it, merge, ask, score, and put it all into one table.

    python examples/demo.py [--model DIR] [--set KEY=VALUE]      (= make demo)

All the work is done by the command a user types, `tengtune run`, on examples/demo.yaml; this script fetches
the model before and reads the run folder afterwards.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import smollm2

from tengtune import engine
from tengtune import recipe as recipes
from tengtune.answer.ending import shown
from tengtune.models import spec as specs
from tengtune.pipeline import STEPS
from tengtune.recipe import Recipe
from tengtune.ui import language
from tengtune.ui.console import Console
from tengtune.ui.problems import Problem, os_errors

RUN_FILE = Path(__file__).resolve().parent / "demo.yaml"

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""What asks the demo to end."""

Row = list[str]


def main() -> int:
    """The command line; a Problem ends as one screen and its exit code."""
    parser = argparse.ArgumentParser(description=language.say("demo.title"), allow_abbrev=False)
    parser.add_argument("--model", type=Path, metavar="DIR", help=language.say("demo.model_help"))
    parser.add_argument("-s", "--set", action="append", default=[], metavar="KEY=VALUE")
    options = parser.parse_args()
    console = Console()
    try:
        overrides = [*_model(console, options.model), *options.set]
        recipe = recipes.load(RUN_FILE, overrides)
        if recipe.folder.exists() and _unfinished(recipe):
            console.say("demo.goes_on", folder=_near(recipe.folder))
        code = _run(overrides)
        if code - 128 in STOPS:
            console.warn("demo.stopped")
        if code:
            return code
        _table(console, recipe)
    except Problem as problem:
        console.problem(problem)
        return problem.exit_code
    return 0


def _model(console: Console, folder: Path | None) -> list[str]:
    """What of the run file is changed for the model: nothing for SmolLM2, which is fetched."""
    if folder is None:
        smollm2.prepare(console)
        return []
    specs.from_folder(folder)
    return [f"model.path={folder.resolve()}", f"name=demo-{folder.resolve().name}"]


def _run(overrides: list[str]) -> int:
    """`tengtune run` in a process of its own; its exit code. Its results come back in our table."""
    settings = [part for override in overrides for part in ("--set", override)]
    return _wait_for([sys.executable, "-m", "tengtune", "run", str(RUN_FILE), *settings])


def _wait_for(command: list[str]) -> int:
    """Run a command to its end, also when we are asked to end, since it saves first. Its exit code, 128 + n
    where signal n ended it.

    Ctrl-C reaches it without us: a terminal sends it to both. SIGTERM and SIGHUP are passed on.
    """
    child: subprocess.Popen[bytes] | None = None
    early: list[int] = []

    def take(number: int, frame: object) -> None:
        if number == signal.SIGINT:
            return
        if child is None:
            early.append(number)
        else:
            child.send_signal(number)

    # Handlers, not SIG_IGN, which the command would inherit. What is ignored already (nohup) stays so.
    before = {n: handler for n in STOPS if (handler := signal.getsignal(n)) is not signal.SIG_IGN}
    for number in before:
        signal.signal(number, take)
    try:
        child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        for number in early:
            child.send_signal(number)
        code = child.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return code if code >= 0 else 128 - code


def _unfinished(recipe: Recipe) -> bool:
    """Whether a step of the run has left no record."""
    return any(s.kind == "work" and not (recipe.folder / f"{s.name}.json").exists() for s in STEPS)


def _table(console: Console, recipe: Recipe) -> None:
    """The one table a person judges the run by."""
    rows = [*_scores(recipe), *_samples(recipe), *_costs(recipe)]
    columns = ["", language.say("demo.before"), language.say("demo.after")]
    console.table(columns, rows, title=language.say("demo.table", model=recipe.model_folder.name))


def _figures(recipe: Recipe, step: str) -> dict[str, Any]:
    """The figures in `<step>.json`, which `tengtune run` has just left."""
    record = engine.read_record(recipe.folder / f"{step}.json")
    assert record is not None
    figures: dict[str, Any] = record["figures"]
    return figures


def _lines(path: Path) -> list[dict[str, Any]]:
    with os_errors(path):
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _scores(recipe: Recipe) -> Iterator[Row]:
    """Held-out loss; the exam, taught facts in other words; and what the model knew before."""
    figures = _figures(recipe, "evaluate")
    losses = [f"{figures[key]:.3f}" for key in ("loss_before", "loss_after")]
    yield [language.say("demo.heldout", tokens=figures["tokens"]), *losses]

    exam = figures["sets"][0]
    asked = [line for line in _lines(recipe.folder / "evaluation.jsonl") if line["set"] == exam["name"]]
    better = sum(line["after"]["loss"] < line["before"]["loss"] for line in asked)
    right = [sum(line[when]["contains"] for line in asked) for when in ("before", "after")]
    yield [language.say("demo.exam_loss"), *(f"{loss:.3f}" for loss in exam["loss"])]
    yield [language.say("demo.exam_better"), "", _share(better, len(asked))]
    yield [language.say("demo.exam_right"), *(_share(count, len(asked)) for count in right)]

    general = figures["general"]
    known, kept = general["known"], general["known"] - general["lost"]
    verdict = language.say(f"demo.general_{general['verdict']}")
    yield [
        language.say("demo.general"),
        _share(known, general["questions"]),
        f"{_share(kept, known)}: {verdict}",
    ]


def _share(count: int, total: int) -> str:
    return f"{count}/{total}"


def _samples(recipe: Recipe) -> Iterator[Row]:
    """The questions of the run file with the answers `predict` left."""
    for sample in _lines(recipe.folder / "samples.jsonl"):
        yield [sample["prompt"], shown(sample["before"]), shown(sample["after"])]


def whole_seconds(recipe: Recipe) -> float:
    """The time of all steps, also of earlier calls that were interrupted. A training that went on has noted
    its last part only, but metrics.jsonl has every step."""
    records = {each.name: engine.read_record(recipe.folder / f"{each.name}.json") for each in STEPS}
    seconds = {name: record["seconds"] for name, record in records.items() if record}
    trained = sum(
        line.get("seconds", 0.0) for line in _lines(recipe.folder / "metrics.jsonl") if "loss" in line
    )
    return float(sum(seconds.values()) + max(trained - seconds["train"], 0.0))


def _costs(recipe: Recipe) -> Iterator[Row]:
    """Speed, memory, where everything lies, and what to type next."""
    train, folder = _figures(recipe, "train"), recipe.folder
    speed = language.say("demo.per_second", speed=train["tokens_per_s"], tokens=train["trained_tokens"])
    command = "tengtune" if shutil.which("tengtune") else _near(Path(sys.executable).with_name("tengtune"))
    for code, text in (
        ("demo.speed", speed),
        ("demo.memory", f"{train['peak_memory_bytes'] / 1e9:.2f} GB"),
        ("demo.time", f"{whole_seconds(recipe):.0f} s"),
        ("demo.model", _near(folder / "merged")),
        ("demo.adapter", _near(folder / "adapter")),
        ("demo.report", _near(folder / "report.html")),
        ("demo.curve", _near(folder / "metrics.jsonl")),
        ("demo.answers", f"{_near(folder / 'evaluation.jsonl')}\n{_near(folder / 'samples.jsonl')}"),
        ("demo.next", f"{command} init {_near(recipe.model_folder)} my.json\n{command} run run.yaml"),
    ):
        yield [language.say(code), "", text]


def _near(path: Path) -> str:
    """A path as one types it from here."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:  # outside of `tengtune run`: the model's download goes on, the rest is seconds
        sys.exit(130)
