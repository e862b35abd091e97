"""Everything a report is made from, read from the run folder; nothing here needs a model."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from importlib import metadata
from itertools import islice
from pathlib import Path
from typing import Any

from tengtune.files import open_plain
from tengtune.json_file import finite, objects, read_object
from tengtune.recipe import Recipe
from tengtune.report import shapes
from tengtune.train import metrics
from tengtune.ui import language
from tengtune.ui.problems import Problem, os_errors

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
    run_file: the run file as it was resolved; damaged: file -> lines that could not be read and are left out;
    left_out: file -> why nothing of it could be used.

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
    left_out: dict[str, str] = field(default_factory=dict)

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
    folder, left_out = recipe.folder, dict[str, str]()
    records = _records(folder, needs, left_out)
    damaged: dict[str, int] = {}
    lists = {
        name: _lines(folder, file, partial(shapes.line_fits, name), damaged, left_out)
        for name, file in LISTS.items()
        if recipe.output.samples and MADE_BY[name] in records
    }
    return Evidence(
        recipe,
        records,
        _lines(folder, "metrics.jsonl", metrics.is_record, damaged, left_out, most=None),
        **lists,
        damaged=damaged,
        failure=_failure(failure, recipe.output.samples, left_out),
        versions={name: version for name in _PACKAGES if (version := _version(name))},
        run_file=_run_file(folder / "run.yaml", recipe.output.samples, left_out),
        left_out=left_out,
    )


def _records(
    folder: Path, needs: Mapping[str, Sequence[str]], left_out: dict[str, str]
) -> dict[str, dict[str, Any]]:
    """The records that stand on what is there now: each was made of what the steps it needs have left."""
    found: dict[str, dict[str, Any]] = {}
    for name in RECORDS:
        record = _object(folder / f"{name}.json", partial(shapes.amiss_in_record, name), left_out)
        if record is not None and all(
            need in found and _stands_on(record, need, found[need]) for need in needs[name]
        ):
            found[name] = record
    return found


def _stands_on(record: Mapping[str, Any], need: str, before: Mapping[str, Any]) -> bool:
    """Whether what `record` tells of was made of the products that `before`, the record of the step `need`,
    tells of: by its number (engine.py), or, of records without one, by their order in time."""
    if before.get("id") and "made_of" in record:
        return bool(record["made_of"].get(need) == before["id"])
    earlier, later = _instant(before), _instant(record)
    return earlier is not None and later is not None and earlier <= later


def _instant(record: Mapping[str, Any]) -> datetime | None:
    """When a step began; local times with their offsets from UTC, which differ in summer and winter."""
    try:
        return datetime.strptime(record.get("started", ""), "%Y-%m-%dT%H:%M:%S%z")
    except ValueError:
        return None


def _failure(path: Path, texts: bool, left_out: dict[str, str]) -> dict[str, Any] | None:
    """What ended a step; where the data did, its reasons quote from the records."""
    failure = _object(path, shapes.amiss_in_failure, left_out)
    if failure and failure["step"] == "data" and not texts:
        for each in (failure, *failure.get("texts", {}).values()):
            each.pop("why", None)
    return failure


def _run_file(path: Path, texts: bool, left_out: dict[str, str]) -> str:
    try:
        with os_errors(path), open_plain(path) as stream:
            text = stream.read().decode("utf-8", "replace")
    except (OSError, Problem) as error:
        _leave_out(path, error, left_out)
        return ""
    if texts:
        return text
    hidden = language.say("report.hidden")
    return _TEXTS.sub(lambda match: f"{match[1]}: [{hidden}]", text)


def _object(
    path: Path, amiss: Callable[[dict[str, Any]], str | None], left_out: dict[str, str]
) -> dict[str, Any] | None:
    """The JSON object in a file, if nothing is amiss in it."""
    try:
        value: dict[str, Any] = finite(read_object(path, "report.bad_record"))
    except (OSError, Problem) as error:
        _leave_out(path, error, left_out)
        return None
    if (key := amiss(value)) is None:
        return value
    left_out[path.name] = language.say("report.bad_key", key=key)
    return None


def _leave_out(path: Path, error: OSError | Problem, left_out: dict[str, str]) -> None:
    """Take note of a file that cannot be used; one that is not there was not wanted."""
    if not os.path.lexists(path):
        return
    reason = str(error)
    if isinstance(error, Problem):
        reason = str(error.values["reason"]) if error.code == "report.bad_record" else error.texts()["what"]
    left_out[path.name] = reason


def _lines(
    folder: Path,
    name: str,
    fits: Callable[[dict[str, Any]], bool],
    damaged: dict[str, int],
    left_out: dict[str, str],
    most: int | None = MOST_LINES,
) -> list[dict[str, Any]]:
    """The records of a file of the run folder; how many lines of it are damaged goes into `damaged`."""
    try:
        with os_errors(folder / name):
            lines = list(islice(objects(folder / name, fits), most))
    except (OSError, Problem) as error:
        _leave_out(folder / name, error, left_out)
        return []
    found = [line for line in lines if line is not None]
    if len(found) < len(lines):
        damaged[name] = len(lines) - len(found)
    return found


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
