"""The demo: fetch a small real model, fine-tune it, merge, ask, score, and put it all into one table.

    python examples/demo.py [--model DIR] [--set KEY=VALUE]      (= make demo)

All the work is done by the command a user types, `tengtune run`; this script adds the exam: ten taught facts
asked in other words, and general questions, which show what the model has forgotten.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import smollm2

from tengtune import engine, files
from tengtune import recipe as recipes
from tengtune.backends.base import Backend, open_backend
from tengtune.models import spec as specs
from tengtune.recipe import Recipe
from tengtune.text import chatml
from tengtune.text.conversation import Conversation, Message
from tengtune.text.tokenizer import Tokenizer, open_tokenizer
from tengtune.train.batch import Batch
from tengtune.ui import language
from tengtune.ui.console import Console
from tengtune.ui.problems import Problem, os_errors

EXAMPLES = Path(__file__).resolve().parent
RUN_FILE = EXAMPLES / "demo.yaml"
EXAM = EXAMPLES / "data" / "ascend-exam.en.json"
GENERAL = EXAMPLES / "data" / "general.en.json"


@dataclass(frozen=True)
class Question:
    """A question, the right answer, and the words an answer must hold: one of each group."""

    question: str
    answer: str
    keywords: list[list[str]]

    def right(self, text: str) -> bool:
        """Whether a text holds a word of every group, upper and lower case alike."""
        return all(any(word.lower() in text.lower() for word in group) for group in self.keywords)


@dataclass(frozen=True)
class Answer:
    """What a model made of a question. loss: mean negative log-likelihood per token of the right answer;
    text: its own greedy answer; right: whether that holds the keywords."""

    loss: float
    text: str
    right: bool


def main() -> int:
    """The command line; a Problem ends as one screen and its exit code."""
    parser = argparse.ArgumentParser(description=language.say("demo.title"), allow_abbrev=False)
    parser.add_argument("--model", type=Path, metavar="DIR", help=language.say("demo.model_help"))
    parser.add_argument("-s", "--set", action="append", default=[], metavar="KEY=VALUE")
    options = parser.parse_args()
    console = Console()
    start = time.monotonic()
    try:
        overrides = [*_model(console, options.model), *options.set]
        recipe = recipes.load(RUN_FILE, overrides)
        code = _run(overrides)
        if code:
            return code
        console.heading(language.say("demo.exam"))
        scores = {name: _score(recipe, folder) for name, folder in _models(recipe).items()}
        _record(recipe, scores)
        _table(console, recipe, scores, time.monotonic() - start)
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
    command = [sys.executable, "-m", "tengtune", "run", str(RUN_FILE), *settings]
    return subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode


def _models(recipe: Recipe) -> dict[str, Path]:
    return {"before": recipe.model_folder, "after": recipe.folder / "merged"}


def read_questions(path: Path) -> list[Question]:
    """The questions in a file."""
    with os_errors(path):
        return [Question(**entry) for entry in json.loads(path.read_text(encoding="utf-8"))]


def _score(recipe: Recipe, folder: Path) -> dict[str, list[Answer]]:
    """The exam and the general questions put to one model."""
    backend = open_backend(recipe, folder, trainable=False)
    tokenizer = open_tokenizer(folder)
    system = chatml.default_system(recipe.data.system, recipe.data.policy, backend.spec.family)
    return {
        path.stem: [
            ask(backend, tokenizer, question, system, recipe.output.max_new_tokens)
            for question in read_questions(path)
        ]
        for path in (EXAM, GENERAL)
    }


def ask(backend: Backend, tokenizer: Tokenizer, question: Question, system: str, limit: int) -> Answer:
    """Score the right answer, and let the model give its own (greedy, at most `limit` tokens)."""
    asked = Message("user", question.question)
    conversation = Conversation((asked, Message("assistant", question.answer)))
    example = chatml.render(conversation, tokenizer, "assistant", system)
    labelled = np.flatnonzero(example.train).astype(np.int32)
    batch = Batch(
        ids=example.ids[None],
        positions=np.arange(len(example.ids), dtype=np.int32)[None],
        segment=np.ones((1, len(example.ids)), np.int32),
        label_index=labelled[None] - 1,
        label=example.ids[labelled][None],
    )
    loss = float(backend.eval_step(batch)) / batch.trained_tokens
    prompt = chatml.prompt([asked], tokenizer, system)
    text = tokenizer.decode(backend.generate(prompt, limit, tokenizer.stop_ids)).strip()
    return Answer(loss, text, question.right(text))


def _record(recipe: Recipe, scores: dict[str, dict[str, list[Answer]]]) -> None:
    """exam.json in the run folder: every question with both models' answers and losses."""
    content = {
        path.stem: [
            {**asdict(question), "before": asdict(before), "after": asdict(after)}
            for question, before, after in zip(
                read_questions(path), scores["before"][path.stem], scores["after"][path.stem], strict=True
            )
        ]
        for path in (EXAM, GENERAL)
    }
    text = json.dumps(content, ensure_ascii=False, indent=1) + "\n"
    files.write_text(recipe.folder / "exam.json", text)


def _table(
    console: Console, recipe: Recipe, scores: dict[str, dict[str, list[Answer]]], seconds: float
) -> None:
    """The one table a person judges the run by."""
    rows = [*_loss_rows(recipe), *_exam_rows(scores), *_sample_rows(recipe), *_cost_rows(recipe, seconds)]
    columns = ["", language.say("demo.before"), language.say("demo.after")]
    console.table(columns, rows, title=language.say("demo.table", model=recipe.model_folder.name))


def _figures(recipe: Recipe, step: str) -> dict[str, Any]:
    """The figures in `<step>.json`, which `tengtune run` has just left."""
    record = engine.read_record(recipe.folder / f"{step}.json")
    assert record is not None
    figures: dict[str, Any] = record["figures"]
    return figures


def _loss_rows(recipe: Recipe) -> list[list[str]]:
    held = _figures(recipe, "evaluate")
    label = language.say("demo.heldout", tokens=held["tokens"])
    return [[label, f"{held['loss_before']:.3f}", f"{held['loss_after']:.3f}"]]


def _exam_rows(scores: dict[str, dict[str, list[Answer]]]) -> list[list[str]]:
    before, after = scores["before"][EXAM.stem], scores["after"][EXAM.stem]
    better = sum(new.loss < old.loss for old, new in zip(before, after, strict=True))
    mean_losses = [f"{np.mean([answer.loss for answer in answers]):.3f}" for answers in (before, after)]
    return [
        [language.say("demo.exam_loss"), *mean_losses],
        [language.say("demo.exam_better"), "", _share(better, len(after))],
        [language.say("demo.exam_right"), *_right(scores, EXAM.stem)],
        [language.say("demo.general_right"), *_right(scores, GENERAL.stem)],
    ]


def _right(scores: dict[str, dict[str, list[Answer]]], name: str) -> list[str]:
    """How many of a set's questions each model answered rightly."""
    sets = [models[name] for models in scores.values()]
    return [_share(sum(answer.right for answer in answers), len(answers)) for answers in sets]


def _share(count: int, total: int) -> str:
    return language.say("demo.share", count=count, total=total)


def _sample_rows(recipe: Recipe) -> list[list[str]]:
    """The questions of the run file with the answers `predict` left in samples.jsonl."""
    lines = (recipe.folder / "samples.jsonl").read_text(encoding="utf-8").splitlines()
    samples = [json.loads(line) for line in lines]
    return [[s["prompt"], s["before"].strip(), s["after"].strip()] for s in samples]


def _cost_rows(recipe: Recipe, seconds: float) -> list[list[str]]:
    """Speed, memory, where everything lies, and what to type next."""
    train, folder = _figures(recipe, "train"), recipe.folder
    speed, tokens = train["tokens_per_s"], train["trained_tokens"]
    rows = [
        ["demo.speed", language.say("demo.per_second", speed=speed, tokens=tokens)],
        ["demo.memory", f"{train['peak_memory_bytes'] / 1e9:.2f} GB"],
        ["demo.time", f"{seconds:.0f} s"],
        ["demo.model", str(folder / "merged")],
        ["demo.adapter", str(folder / "adapter")],
        ["demo.curve", str(folder / "metrics.jsonl")],
        ["demo.answers", f"{folder / 'exam.json'}\n{folder / 'samples.jsonl'}"],
        ["demo.next", f"tengtune init {recipe.model_folder} my.json\ntengtune run run.yaml"],
    ]
    return [[language.say(code), "", text] for code, text in rows]


if __name__ == "__main__":
    sys.exit(main())
