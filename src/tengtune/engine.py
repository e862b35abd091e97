"""Runs steps: skips what is up to date, records what was done in `<step>.json`.

A step is a module `tengtune.steps.<name>` with
    inputs(recipe) -> list of files and folders it reads
    settings(recipe) -> the part of the recipe that decides its products (JSON values)
    run(recipe, console) -> Result; of a step that resumes (pipeline.Step), run(recipe, console, anew): with
        `anew` True it begins at the beginning, whatever an interrupted run left
It writes below `recipe.folder` only, but for download. A step that is done only if needed has
    needed(recipe) -> bool
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import json
import os
import platform
import secrets
import shlex
import stat
import time
from contextlib import suppress
from dataclasses import dataclass, field
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

from tengtune import __version__, files, json_file, run_folder
from tengtune.lock import held
from tengtune.pipeline import STEPS, Step, step
from tengtune.recipe import CHANGEABLE, Recipe, keys, load
from tengtune.ui import language
from tengtune.ui.console import Console
from tengtune.ui.language import LANGUAGES, current
from tengtune.ui.lists import listed
from tengtune.ui.problems import FAILED_RUN, Problem, os_errors

HEADER_BYTES = 65_536
TRAINING = ("data", "train")
"""The steps that make what is learned; whoever asks the model or looks at it does none of them."""
ASKING = ("name", "backend", "model.dtype", "output.dir")
"""Keys that today's run file decides besides the CHANGEABLE ones when a trained model is asked."""
LONGEST_VALUE = 60
FAILURE = "failure.json"
"""What ended the last step that failed, for the report; gone when a step succeeds."""


@dataclass(frozen=True)
class Result:
    """What a step made: paths relative to the run folder, and its figures."""

    outputs: list[str]
    figures: dict[str, Any] = field(default_factory=dict)


def prepare(recipe: Recipe, fresh: bool) -> None:
    """Make the run folder, or check that what was trained in the one there is what this run file says.

    Raises Problem with the difference when it is not, and where no folder can be made. `fresh` sets an old
    folder aside.
    """
    record, text = recipe.folder / "run.yaml", snapshot(recipe)
    if not fresh and _holds(record, text):
        return
    run_folder.make(recipe.folder.parent)
    with held(lock_file(recipe)):
        if fresh and recipe.folder.exists():
            run_folder.set_aside(recipe.folder)
        run_folder.make(recipe.folder)
        if record.exists():
            _check_same(recipe, record, text)
        files.write_text(record, text)


def lock_file(recipe: Recipe, each: Step | None = None) -> Path:
    """What is held while a step works in the run folder. It lies beside it, where --fresh does not move it.

    The report has its own: it reads what lies there, and is made of a run that is under way, too.
    """
    own = ".report" if each is not None and each.name == "report" else ""
    return recipe.folder.with_name(f".{recipe.folder.name}{own}.lock")


def _holds(record: Path, text: str) -> bool:
    try:
        with files.open_plain(record) as stream:
            return stream.read() == text.encode()
    except (OSError, ValueError, Problem):
        return False


def _check_same(recipe: Recipe, record: Path, text: str) -> None:
    """Problem where a training has begun that today's run file would do otherwise. Before that, and for
    CHANGEABLE keys, the steps' own records decide what is done again."""
    if not (recipe.folder / "train.json").exists() and not any(recipe.folder.glob("checkpoints/step_*")):
        return
    before, after = _comparable(_old_snapshot(record)), _comparable(text)
    if before != after:
        changes = difflib.unified_diff(before, after, "run folder", "run file", n=0, lineterm="")
        shown = "\n".join(c for c in changes if not c.startswith(("---", "+++", "@@")))
        code = "engine.changed_by_set" if recipe.overrides else "engine.changed"
        raise Problem(code, where=recipe.folder, difference=shown, name=f"{recipe.name}-2")


def reopen(recipe: Recipe, console: Console) -> Recipe:
    """The recipe for a command that looks at a run folder or asks its model: today's, but what was learned
    depends on is as the folder's own snapshot has it, and that is said. Writes nothing."""
    try:
        before = _flat(load(recipe.folder / "run.yaml"))
    except Problem:  # no folder yet, or a snapshot with a key that has gone since
        return recipe
    now = _flat(recipe)
    other = [key for key in now if now[key] != before[key] and key not in (*CHANGEABLE, *ASKING)]
    if not other:
        return recipe
    values = recipe.model_dump(mode="json")
    for key in other:
        *group, last = key.split(".")
        reduce(getitem, group, values)[last] = before[key]
    told = [f"{key}: {json.dumps(before[key], ensure_ascii=False)[:LONGEST_VALUE]}" for key in other]
    console.say("engine.as_made", folder=recipe.folder, settings=listed(told))
    return Recipe(**values, file=recipe.file, overrides=recipe.overrides)


def _flat(recipe: Recipe) -> dict[str, Any]:
    """The values of all keys as "group.key"."""
    values = recipe.model_dump(mode="json")
    return {key: reduce(getitem, key.split("."), values) for key in keys()}


def _old_snapshot(record: Path) -> str:
    """The run folder's snapshot as today's version would write it: keys unknown then have their default."""
    try:
        return snapshot(load(record))
    except Problem:  # a key that has gone since: the difference shows it
        with os_errors(record):
            return record.read_text(encoding="utf-8", errors="replace")


def snapshot(recipe: Recipe) -> str:
    """The resolved recipe, every default written out, one "group.key: value" a line."""
    lines = [f"# {recipe.file}", f"# tengtune {__version__}"]
    for name, value in recipe.model_dump(mode="json").items():
        if isinstance(value, dict):
            lines.append(f"{name}:")
            lines += [f"  {k}: {json.dumps(v, ensure_ascii=False)}" for k, v in value.items()]
        else:
            lines.append(f"{name}: {json.dumps(value, ensure_ascii=False)}")
    return "\n".join(lines) + "\n"


def run_all(recipe: Recipe, console: Console, anew: bool = False) -> None:
    """Every `work` step in order. If one fails after training began, the report is made all the same."""
    wanted = [each for each in STEPS if each.kind in ("work", "if needed")]
    with held(lock_file(recipe), console):
        try:
            for each in wanted:
                execute(each, recipe, console, anew=anew)
        except Problem:
            if (recipe.folder / "metrics.jsonl").exists():
                with suppress(Problem):
                    execute(step("report"), recipe, console)
                    console.say("report.made", file=recipe.folder / "report.html")
            raise


def check_run(recipe: Recipe) -> None:
    """Problem for what the steps of a run can tell to be wrong. Comes before `prepare`: what is refused
    leaves no folder, and --fresh sets none aside for it."""
    _check([each for each in STEPS if each.kind == "work"], recipe)


def check_step(name: str, recipe: Recipe) -> None:
    """check_run for the step `name` and those it needs."""
    _check(_chain(name), recipe)


def run_needed(
    name: str, recipe: Recipe, console: Console, force: bool = False, anew: bool = False
) -> dict[str, Any]:
    """The step `name` after the steps it needs; the figures of `name`."""
    *before, target = _chain(name)
    with held(lock_file(recipe, target), console):
        _announce(before, target, recipe, console)
        for each in before:
            execute(each, recipe, console)
        return execute(target, recipe, console, force, anew)


def run_trained(name: str, recipe: Recipe, console: Console, force: bool = False) -> dict[str, Any]:
    """The step `name` of a run that has been trained, after the steps it needs but for TRAINING, whose
    products are taken as they are. Problem `engine.not_trained` where there was no training to its end."""
    model = shlex.quote(str(recipe.model_folder))
    untrained = Problem("engine.not_trained", where=recipe.folder, run=recipe.called(), model=model)
    if not recipe.folder.exists():
        raise untrained
    *before, target = [each for each in _chain(name) if each.name not in TRAINING]
    with held(lock_file(recipe, target), console):  # who is training this very moment is named
        if read_record(recipe.folder / "train.json") is None:
            raise untrained
        _check([*before, target], recipe)
        if not all(_stands(step(each), recipe) for each in TRAINING):
            console.say("engine.older", run=recipe.called())
        for each in before:
            execute(each, recipe, console)
        return execute(target, recipe, console, force)


def _stands(each: Step, recipe: Recipe) -> bool:
    """Whether a step that was done read what is there today."""
    old = read_record(recipe.folder / f"{each.name}.json") or {}
    try:
        return bool(old.get("inputs") == _state(each, recipe)["inputs"])
    except Problem:  # an input has gone
        return False


def _chain(name: str) -> list[Step]:
    """The step `name` behind all it needs, each once, in order."""
    chain: list[Step] = []
    for need in step(name).needs:
        chain += [each for each in _chain(need) if each not in chain]
    return [*chain, step(name)]


def _announce(before: list[Step], target: Step, recipe: Recipe, console: Console) -> None:
    """Say what has to be done before `target`: who asked for an answer may not expect a training."""
    wanted = [each for each in before if _wanted(each, recipe)]
    undone = next((i for i, each in enumerate(wanted) if not _is_current(each, recipe)), len(wanted))
    if wanted[undone:]:
        steps = " → ".join(each.name for each in [*wanted[undone:], target])
        console.say("engine.first", step=target.name, steps=steps)


def _wanted(each: Step, recipe: Recipe) -> bool:
    """False for a step that is done if needed, and is not."""
    return each.kind != "if needed" or bool(importlib.import_module(each.module).needed(recipe))


def _is_current(each: Step, recipe: Recipe) -> bool:
    """Whether there is nothing to do for a step."""
    old = read_record(recipe.folder / f"{each.name}.json")
    return old is not None and _current(old, _state(each, recipe), recipe.folder)


def _state(each: Step, recipe: Recipe) -> dict[str, Any]:
    """What decides a step's products."""
    module = importlib.import_module(each.module)
    return {
        "inputs": [fingerprint(path) for path in module.inputs(recipe)],
        "settings": module.settings(recipe),
    }


def _check(steps: list[Step], recipe: Recipe) -> None:
    """What a step can tell to be wrong before any work is done for it."""
    for each in steps:
        check = getattr(importlib.import_module(each.module), "check", None)
        if check is not None:
            check(recipe)


def execute(
    each: Step, recipe: Recipe, console: Console, force: bool = False, anew: bool = False
) -> dict[str, Any]:
    """Run one step, or skip it when its inputs, settings and products are what its record says.

    force: do it even then, from its beginning. anew: if it has to be done, from its beginning. Nobody else
    works in the run folder meanwhile: Problem `lock.busy`.
    """
    with held(lock_file(recipe, each), console):
        return _execute(each, recipe, console, force, anew)


def _execute(each: Step, recipe: Recipe, console: Console, force: bool, anew: bool) -> dict[str, Any]:
    if not _wanted(each, recipe):
        return {}
    module, state = importlib.import_module(each.module), _state(each, recipe)
    record = recipe.folder / f"{each.name}.json"
    old = read_record(record)
    title = each.zh if current() == "zh" else each.en
    if not force and old and _current(old, state, recipe.folder):
        console.say("engine.skipped", step=each.name, title=title)
        figures: dict[str, Any] = old["figures"]
        return figures
    console.heading(language.say("engine.heading", step=each.name, title=title))
    files.remove(record)  # from here on the step's products are not to be trusted
    before = {need: read_record(recipe.folder / f"{need}.json") or {} for need in each.needs}
    start, clock = time.time(), time.monotonic()
    arguments = (recipe, console, anew or force) if each.resumes else (recipe, console)
    try:
        result: Result = module.run(*arguments)
    except Problem as problem:
        if each.name != "report":
            _note_failure(recipe.folder / FAILURE, each, problem)
        raise
    if not (recipe.folder / "run.yaml").exists():
        raise Problem("engine.folder_gone", where=recipe.folder, exit_code=FAILED_RUN, step=each.name)
    if each.name != "report":
        files.remove(recipe.folder / FAILURE)
    figures = json_file.finite(result.figures)
    done = {
        "step": each.name,
        "id": secrets.token_hex(8),
        "made_of": {need: other["id"] for need, other in before.items() if "id" in other},
        **state,
        "outputs": [_size(recipe.folder, name) for name in result.outputs],
        "figures": figures,
        "versions": {"tengtune": __version__, "python": platform.python_version()},
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(start)),
        "seconds": round(time.monotonic() - clock, 3),
    }
    sealed = {**done, "check": json_file.digest(json.loads(json.dumps(done)))}
    files.write_text(record, json.dumps(sealed, ensure_ascii=False, indent=1) + "\n")
    console.event("step", step=each.name, seconds=done["seconds"], figures=figures)
    return figures


def _note_failure(path: Path, each: Step, problem: Problem) -> None:
    """Write down what ended a step; when that fails as well (a full disk), the screen has it still."""
    texts = {name: problem.texts(name) for name in LANGUAGES}
    note = {"step": each.name, **problem.as_json(), "texts": texts}
    text = json.dumps(note, ensure_ascii=False, indent=1)
    with suppress(Problem):
        files.write_text(path, text + "\n")


def read_record(path: Path) -> dict[str, Any] | None:
    """A step's record; None when there is none, it cannot be read or is not as it was written."""
    try:
        with files.open_plain(path) as stream:
            record = json.loads(stream.read())
    except (OSError, ValueError, RecursionError, Problem):
        return None
    if not (isinstance(record, dict) and isinstance(record.get("figures"), dict)):
        return None
    check = record.pop("check", None)  # records were written without one
    return record if check is None or check == json_file.digest(record) else None


def _current(old: dict[str, Any], state: dict[str, Any], folder: Path) -> bool:
    same = all(json.loads(json.dumps(value)) == old.get(key) for key, value in state.items())
    outputs = old.get("outputs")
    if not (same and isinstance(outputs, list) and all(isinstance(output, dict) for output in outputs)):
        return False
    return all(_size(folder, str(output.get("path"))) == output for output in outputs)


def _size(folder: Path, name: str) -> dict[str, Any]:
    """A product by path and size (a folder: the sum of its files); size None when it is missing."""
    path = folder / name
    if path.is_dir():
        return {"path": name, "size": sum(f.stat().st_size for f in sorted(path.rglob("*")) if f.is_file())}
    return {"path": name, "size": path.stat().st_size if path.exists() else None}


def fingerprint(path: Path) -> dict[str, Any]:
    """An input by path, size, modification time and hash of its first 64 KiB; a folder by its files."""
    with os_errors(path):
        if path.is_dir():
            names = sorted(f for f in path.iterdir() if f.is_file())
            return {"path": str(path), "files": [fingerprint(f) for f in names]}
        info = os.stat(path)
        if not stat.S_ISREG(info.st_mode):
            raise Problem("io.not_plain", where=path)
        with open(path, "rb") as stream:
            head = hashlib.sha256(stream.read(HEADER_BYTES)).hexdigest()[:16]
    return {"path": str(path), "size": info.st_size, "mtime_ns": info.st_mtime_ns, "head": head}


def _comparable(text: str) -> list[str]:
    """The snapshot's lines as "group.key: value" without comments and changeable keys."""
    group, lines = "", []
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        if line.startswith("  "):
            line = f"{group}.{line.strip()}"
        elif line.endswith(":"):
            group = line[:-1]
            continue
        if line.split(":", 1)[0] not in CHANGEABLE:
            lines.append(line)
    return lines
