"""Everything a report is made from, read from the run folder; nothing here needs a model."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from itertools import islice
from pathlib import Path
from typing import Any

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
    run_file: the run file as it was resolved.

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
    lists = {
        name: _lines(folder / file)
        for name, file in LISTS.items()
        if recipe.output.samples and MADE_BY[name] in records
    }
    return Evidence(
        recipe,
        records,
        _metrics(folder / "metrics.jsonl"),
        **lists,
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
        if record and all(each is not None and each <= record.get("started", "") for each in before):
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
        text = path.read_text(encoding="utf-8")
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


def _metrics(path: Path) -> list[dict[str, Any]]:
    try:
        return [record for record in metrics.read(path) if isinstance(record, dict)]
    except (OSError, ValueError):
        return []


def _lines(path: Path) -> list[dict[str, Any]]:
    def objects() -> Iterator[dict[str, Any]]:
        with open(path, encoding="utf-8") as stream:
            for line in islice(stream, MOST_LINES):
                value = json.loads(line)
                if isinstance(value, dict):
                    yield value

    try:
        return list(objects())
    except (OSError, ValueError):
        return []


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
