"""evaluate: the model before and after: held-out loss, general knowledge, and question files of the user's.

Leaves `evaluation.jsonl`, a line for each question.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tengtune import files
from tengtune.backends.base import open_backend
from tengtune.data.store import Store, open_store
from tengtune.data.system import system_of_run
from tengtune.engine import Result, read_record
from tengtune.evaluate.examiner import Examiner
from tengtune.evaluate.forgetting import Judgement, general_questions, judge, wording
from tengtune.evaluate.questions import Mark
from tengtune.evaluate.read import QuestionSet, Settings, read_set, reason
from tengtune.evaluate.score import Comparison, mark_all, pieces
from tengtune.models import spec as specs
from tengtune.recipe import Recipe
from tengtune.report.verdict import too_little
from tengtune.text.template import of_folder
from tengtune.text.tokenizer import open_tokenizer
from tengtune.train.fit import heldout_loss
from tengtune.ui import language
from tengtune.ui.console import Console
from tengtune.ui.lists import listed


@dataclass(frozen=True)
class Scores:
    """One model's: held-out loss over `tokens` labels (None: nothing was held out), the marks of each set."""

    loss: float | None
    tokens: int
    marks: list[list[Mark]]


def inputs(recipe: Recipe) -> list[Path]:
    heldout = recipe.folder / "data" / "heldout"
    models = [recipe.model_folder, recipe.folder / "merged"]
    return [*models, *([heldout] if heldout.exists() else []), *named(recipe).values()]


def settings(recipe: Recipe) -> dict[str, Any]:
    return {
        "backend": recipe.backend,
        "dtype": recipe.model.dtype,
        "system": recipe.data.system,
        "evaluate": recipe.output.evaluate,
        "max_new_tokens": recipe.output.max_new_tokens,
        "samples": recipe.output.samples,
    }


def check(recipe: Recipe) -> None:
    """Problem for a file of output.evaluate that is not there or holds no question."""
    check_files(named(recipe))


def check_files(named: Mapping[str, Path]) -> None:
    """Problem for a file that is not there or whose first records hold no question; the rest is not read."""
    for name, path in named.items():
        files.require_file(path)
        read_set(path, name, Settings(limit=1))


def run(recipe: Recipe, console: Console) -> Result:
    """Score both models on `data/heldout` (losses None when nothing was held out), the general questions
    and the files of output.evaluate."""
    heldout = recipe.folder / "data" / "heldout"
    store = open_store(heldout) if heldout.exists() else None
    if store is None:
        console.warn("evaluate.nothing_held_out")
    sets = [general_questions(), *_read_files(recipe, named(recipe), Settings(), console)]
    before, after = _both(recipe, store, sets, console)
    general = judge(before.marks[0], after.marks[0])
    compared = _compared(recipe, sets, before, after, console)
    lines = [line for each in compared for line in each.lines(recipe.output.samples)]
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    files.write_text(recipe.folder / "evaluation.jsonl", text)
    _say(console, before, after, general)
    trained = (read_record(recipe.folder / "train.json") or {}).get("figures", {})
    if before.loss is not None and too_little(after.tokens, trained.get("steps", 0)):
        console.warn("evaluate.too_little", tokens=after.tokens, steps=trained.get("steps", 0))
    figures = {
        "loss_before": before.loss,
        "loss_after": after.loss,
        "perplexity_before": perplexity(before.loss),
        "perplexity_after": perplexity(after.loss),
        "tokens": after.tokens,
        "general": {**asdict(general), **compared[0].figures()},
        "sets": [each.figures() for each in compared[1:]],
    }
    return Result(["evaluation.jsonl"], figures)


def compare(recipe: Recipe, named: Mapping[str, Path], how: Settings, console: Console) -> list[Comparison]:
    """Both models on these files only, by the name they are shown under; nothing is recorded."""
    sets = _read_files(recipe, named, how, console)
    return _compared(recipe, sets, *_both(recipe, None, sets, console), console)


def perplexity(loss: float | None) -> float | None:
    """e to the loss; None where there is no loss, or none that a float holds."""
    return math.exp(loss) if loss is not None and loss < 700 else None


def named(recipe: Recipe) -> dict[str, Path]:
    """The files of output.evaluate by the name the run file gives them."""
    return {name: recipe.resolve(name) for name in recipe.output.evaluate}


def _read_files(
    recipe: Recipe, named: Mapping[str, Path], how: Settings, console: Console
) -> list[QuestionSet]:
    """The sets of questions in these files; what cannot be asked, and what was trained on, is said."""
    how = replace(how, max_new_tokens=recipe.output.max_new_tokens)
    trained = {recipe.resolve(name) for name in recipe.data.files}
    sets = []
    for name, path in named.items():
        if path.resolve() in trained:
            console.warn("evaluate.trained_on", file=name)
        sets.append(read_set(path, name, how))
        refused = sets[-1].refused
        if refused:
            number, unfit = refused[0]
            values = {"file": name, "count": len(refused), "record": number}
            console.warn("evaluate.refused", **values, reason=reason(unfit))
    return sets


def _both(
    recipe: Recipe, store: Store | None, sets: Sequence[QuestionSet], console: Console
) -> tuple[Scores, Scores]:
    before, after = (
        _score(recipe, folder, store, sets, console)
        for folder in (recipe.model_folder, recipe.folder / "merged")
    )
    return before, after


def _score(
    recipe: Recipe, folder: Path, store: Store | None, sets: Sequence[QuestionSet], console: Console
) -> Scores:
    """One model. It is let go before the next is opened: two would not fit on a card."""
    title = language.say("evaluate.progress", model=folder.name)
    with console.waiting(language.say("ui.loading", model=folder.name)):
        backend = open_backend(recipe, folder, trainable=False)
    loss, tokens = (None, 0) if store is None else heldout_loss(backend, store, recipe.train.micro_batch)
    tokenizer = open_tokenizer(recipe.model_folder)
    template = of_folder(recipe.model_folder, backend.spec.family, tokenizer)
    system = system_of_run(recipe, tokenizer, template)
    examiner = Examiner(backend, tokenizer, system, template)
    with console.progress(pieces(sets), title) as bar:
        marks = mark_all(examiner, sets, bar.update)
    return Scores(loss, tokens, marks)


def _compared(
    recipe: Recipe, sets: Sequence[QuestionSet], before: Scores, after: Scores, console: Console
) -> list[Comparison]:
    """The sets with both models' marks; what their positions left no room for is said."""
    compared = [Comparison(*each) for each in zip(sets, before.marks, after.marks, strict=True)]
    positions = specs.from_folder(recipe.model_folder).max_positions
    for each in compared:
        figures = each.figures()
        for code, records in figures["missing"].items():
            console.warn(
                "evaluate.missing",
                file=figures["name"],
                count=len(records),
                total=figures["questions"],
                records=listed(records),
                reason=language.say(f"evaluate.{code}"),
                positions=positions,
            )
    return compared


def _say(console: Console, before: Scores, after: Scores, general: Judgement) -> None:
    if before.loss is not None:
        losses = (before.loss, after.loss or 0.0)
        values = {name: f"{loss:.4f}" for name, loss in zip(("before", "after"), losses, strict=True)}
        console.say("evaluate.done", **values, tokens=after.tokens)
        if not all(map(math.isfinite, losses)):
            console.warn("evaluate.not_finite", **values)
    say = console.say if general.verdict in ("kept", "unknown") else console.warn
    say(
        f"evaluate.general_{wording(general.verdict, general.known, general.lost)}",
        known=general.known,
        total=len(before.marks[0]),
        lost=general.lost,
        gained=general.gained,
        rise=f"{general.loss_rise:+.2f}",
    )
