"""Everything a report is made from, read from the run folder; nothing here needs a model."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from itertools import islice
from pathlib import Path
from typing import Any

from tengtune.json_file import objects
from tengtune.recipe import Recipe
from tengtune.train import metrics
from tengtune.ui import language

RECORDS = ("download", "data", "train", "merge", "predict", "evaluate")
LISTS = {"samples": "samples.jsonl", "questions": "evaluation.jsonl", "dropped": "data/dropped.jsonl"}
MADE_BY = {"samples": "predict", "questions": "evaluate", "dropped": "data"}
MOST_LINES = 20_000
"""Lines that are read of each list; the page shows fewer."""
# Keys whose values are the user's own texts; run.yaml in a run folder has a line for each key (engine.py).
_TEXTS = re.compile(r"^(  (?:prompts|system)): (?!null$|\[\]$).*$", re.MULTILINE)
_PACKAGES = ("torch", "torch-npu", "mindspore", "numpy", "tokenizers", "tiktoken")


@dataclass(frozen=True)
class Evidence:
    """records: step -> its `<step>.json`; metrics: the lines of metrics.jsonl; failure: what stopped the run;
    run_file: the run file as it was resolved; damaged: file -> lines that could not be read and are left out.

    With output.samples off no text of the user's is in it: the lists are empty, whatever earlier runs left,
    and the run file's own questions and system text are left out.
    """

    recipe: Recipe
    records: dict[str, dict[str, Any]] = field(default_factory=dict)
    metrics: list[dict[str, Any]] = field(default_factory=list)
    samples: list[dict[str, Any]] = field(default_factory=list)
    questions: list[dict[str, Any]] = field(default_factory=list)
    dropped: list[dict[str, Any]] = field(default_factory=list)
    failure: dict[str, Any] | None = None
    versions: dict[str, str] = field(default_factory=dict)
    run_file: str = ""
    damaged: dict[str, int] = field(default_factory=dict)

    def figures(self, step: str) -> dict[str, Any]:
        """A step's figures; {} when it has not been done."""
        figures: dict[str, Any] = self.records.get(step, {}).get("figures", {})
        return figures

    @property
    def steps(self) -> list[dict[str, Any]]:
        """The lines of logged training steps whose loss is a number."""
        return [line for line in self.metrics if line.get("loss") is not None and "event" not in line]

    @property
    def training_seconds(self) -> float:
        """Time in training steps, of all runs that took part: the record knows only the last."""
        return float(sum(line.get("seconds", 0.0) for line in self.metrics if "event" not in line))

    @property
    def evaluations(self) -> list[dict[str, Any]]:
        """The lines of evaluations during training."""
        return [line for line in self.metrics if line.get("heldout_loss") is not None]

    @property
    def events(self) -> list[dict[str, Any]]:
        """The lines of what was notable."""
        return [line for line in self.metrics if "event" in line]


def sources(recipe: Recipe) -> list[Path]:
    """The files of the run folder that are there to be read."""
    names = [*(f"{name}.json" for name in RECORDS), "metrics.jsonl"]
    names += LISTS.values() if recipe.output.samples else []
    return [path for path in (recipe.folder / name for name in names) if path.is_file()]


def collect(recipe: Recipe, needs: Mapping[str, Sequence[str]], failure: Path) -> Evidence:
    """Read the run folder, and what ended a step from the file `failure`. needs: step -> steps before it.

    What is missing, broken or left over from an earlier training is left out: a report of half a run is a
    report.
    """
    folder = recipe.folder
    records = _records(folder, needs)
    damaged: dict[str, int] = {}
    lists = {
        name: _lines(folder, file, _question_fits if name == "questions" else _any, damaged)
        for name, file in LISTS.items()
        if recipe.output.samples and MADE_BY[name] in records
    }
    return Evidence(
        recipe,
        records,
        _lines(folder, "metrics.jsonl", metrics.is_record, damaged, most=None),
        **lists,
        damaged=damaged,
        failure=_failure(failure, recipe.output.samples),
        versions={name: version for name in _PACKAGES if (version := _version(name))},
        run_file=_run_file(folder / "run.yaml", recipe.output.samples),
    )


def _records(folder: Path, needs: Mapping[str, Sequence[str]]) -> dict[str, dict[str, Any]]:
    """The records that stand on what is there now: none is older than that of a step it needs."""
    found: dict[str, dict[str, Any]] = {}
    for name in RECORDS:
        record = _object(folder / f"{name}.json")
        before = [found.get(each, {}).get("started") for each in needs[name]]
        sound = (
            record and isinstance(record.get("figures"), dict) and isinstance(record.get("started", ""), str)
        )
        if (
            record
            and sound
            and all(each is not None and each <= record.get("started", "") for each in before)
        ):
            found[name] = record
    return found


def _failure(path: Path, texts: bool) -> dict[str, Any] | None:
    """What ended a step; where the data did, its reasons quote from the records."""
    failure = _object(path)
    if failure and failure.get("step") == "data" and not texts:
        for each in (failure, *failure.get("texts", {}).values()):
            each.pop("why", None)
    return failure


def _run_file(path: Path, texts: bool) -> str:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    if texts:
        return text
    hidden = language.say("report.hidden")
    return _TEXTS.sub(lambda match: f"{match[1]}: [{hidden}]", text)


def _object(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def _lines(
    folder: Path,
    name: str,
    fits: Callable[[dict[str, Any]], bool],
    damaged: dict[str, int],
    most: int | None = MOST_LINES,
) -> list[dict[str, Any]]:
    """The records of a file of the run folder; how many lines of it are damaged goes into `damaged`."""
    try:
        lines = list(islice(objects(folder / name, fits), most))
    except OSError:
        return []
    found = [line for line in lines if line is not None]
    if len(found) < len(lines):
        damaged[name] = len(lines) - len(found)
    return found


def _any(value: dict[str, Any]) -> bool:
    return True


def _question_fits(value: dict[str, Any]) -> bool:
    """Whether a line is one of evaluation.jsonl, with all that is shown of it."""
    marks = [value.get(name) for name in ("before", "after")]
    return {"set", "question", "expected"} <= value.keys() and all(
        isinstance(mark, dict) and isinstance(mark.get("loss") or 0.0, (int, float)) for mark in marks
    )


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
