"""predict: the same questions to the model before and after; leaves `samples.jsonl`."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from tengtune import __version__, files
from tengtune.answer import batch
from tengtune.answer.speaker import Settings, open_speaker
from tengtune.backends.base import Asked, Backend, open_backend
from tengtune.data.store import Store, open_store
from tengtune.data.system import system_of_run
from tengtune.engine import Result, fingerprint
from tengtune.lock import beside, held
from tengtune.models import spec as specs
from tengtune.recipe import Recipe
from tengtune.text import chatml
from tengtune.text.conversation import Message
from tengtune.text.template import of_folder
from tengtune.text.tokenizer import IM_END, IM_START, Tokenizer, open_tokenizer
from tengtune.ui import language
from tengtune.ui.console import Console
from tengtune.ui.lists import listed

DEFAULT_QUESTIONS = 3


def inputs(recipe: Recipe) -> list[Path]:
    return [recipe.model_folder, recipe.folder / "merged"]


def settings(recipe: Recipe) -> dict[str, Any]:
    output = recipe.output
    return {
        "prompts": output.prompts,
        "max_new_tokens": output.max_new_tokens,
        "samples": output.samples,
        "backend": recipe.backend,
        "dtype": recipe.model.dtype,
        "system": recipe.data.system,
    }


def run(recipe: Recipe, console: Console) -> Result:
    """Answer output.prompts (or the first held-out questions) with both models."""
    samples = recipe.folder / "samples.jsonl"
    files.remove(samples)  # of an earlier call: where none are wanted any more, none may stay
    tokenizer = open_tokenizer(recipe.model_folder)
    questions = _questions(recipe, tokenizer)
    answers = []
    for folder in (recipe.model_folder, recipe.folder / "merged"):
        with console.waiting(language.say("ui.loading", model=folder.name)):
            backend = open_backend(recipe, folder, trainable=False)
        prompts, most = [ids for _, ids in questions], recipe.output.max_new_tokens
        title = language.say("predict.progress_of", model=folder.name)
        with console.progress(len(prompts), title) as bar:
            answers.append(write_answers(backend, tokenizer, prompts, most, bar.update))
    rows = [
        {"prompt": text, "before": before, "after": after}
        for (text, _), before, after in zip(questions, *answers, strict=True)
    ]
    positions = specs.from_folder(recipe.model_folder).max_positions
    left_out = []
    for number, row in enumerate(rows):
        if None in row.values():
            left_out.append(number)
            tokens = len(questions[number][1])
            row["error"] = language.say("predict.no_room", tokens=tokens, positions=positions)
    if left_out:
        console.warn("predict.left_out", count=len(left_out), total=len(rows), records=listed(left_out))
    if not recipe.output.samples:
        return Result([], {"questions": len(rows), "too_long": len(left_out)})
    files.write_text(samples, "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in rows))
    return Result([samples.name], {"questions": len(rows), "too_long": len(left_out)})


def ask(recipe: Recipe, folder: Path, questions: Sequence[str], asked: Settings, console: Console) -> None:
    """Print the answer of the model in `folder` to each question, and record nothing."""
    speaker = open_speaker(recipe, folder, asked)
    speaker.tell(console)
    for question in questions:
        reply = speaker.reply(speaker.prompt([Message("user", question)]))
        text = "".join(reply)
        console.result(text, prompt=question, answer=text, end=reply.end)
        speaker.tell_ending(reply, console)


def answer_file(
    recipe: Recipe, folder: Path, job: tuple[Path, Path], asked: Settings, console: Console, force: bool
) -> batch.Tally:
    """Answer the records of a file into another, job: (questions, out); what became of all of them."""
    questions, out = job
    sha256, total = batch.digest(questions)
    made_of = {
        "questions": sha256,
        "model": fingerprint(folder),
        "options": asdict(asked),
        "run file": settings(recipe) | {"policy": recipe.data.policy},
        "tengtune": __version__,
    }
    work = batch.Job(questions, out, made_of)
    with held(beside(out), console):
        tally = batch.begin(work, total, force)
        if tally.finished:
            console.say("predict.up_to_date", out=out)
            return tally
        speaker = open_speaker(recipe, folder, asked)
        speaker.tell(console)
        batch.work(work, speaker, tally, console)
    return tally


def write_answers(
    backend: Backend,
    tokenizer: Tokenizer,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    advance: Callable[[int], None] = lambda done: None,
) -> list[str | None]:
    """The greedy answers to rendered prompts; only the new text. None where the model's positions leave no
    room for one. `advance` is told how many prompts are done with."""
    rooms = [min(max_new_tokens, backend.spec.max_positions - len(prompt)) for prompt in prompts]
    askable = [(prompt, room) for prompt, room in zip(prompts, rooms, strict=True) if room > 0]
    ids: list[list[int]] = [[] for _ in askable]

    def take(into: list[int], number: int) -> bool:
        into.append(number)
        return True

    asked = [Asked(*each, partial(take, into)) for each, into in zip(askable, ids, strict=True)]
    done = len(prompts) - len(asked)
    for _ in backend.generate_many(asked, tokenizer.stop_ids):
        done += 1
        advance(done)
    written = map(tokenizer.decode, ids)
    return [next(written) if room > 0 else None for room in rooms]


def _prompt(recipe: Recipe, tokenizer: Tokenizer, question: str) -> list[int]:
    """The question as the model was taught to be asked; one that can think is to answer at once."""
    family = specs.from_folder(recipe.model_folder).family
    template = of_folder(recipe.model_folder, family, tokenizer)
    system = system_of_run(recipe, tokenizer, template)
    return chatml.prompt([Message("user", question)], tokenizer, system, template, enable_thinking=False)


def _questions(recipe: Recipe, tokenizer: Tokenizer) -> list[tuple[str, list[int]]]:
    """(text, prompt ids) of what is asked: the run file's prompts, else the first held-out ones."""
    if recipe.output.prompts:
        return [(text, _prompt(recipe, tokenizer, text)) for text in recipe.output.prompts]
    heldout = recipe.folder / "data" / "heldout"
    store: Store = open_store(heldout if heldout.exists() else recipe.folder / "data" / "train")
    questions = []
    for number in range(min(DEFAULT_QUESTIONS, store.documents)):
        example = store.example(number)
        ids = chatml.first_prompt(example, tokenizer)
        questions.append((_last_turn(ids, tokenizer), ids))
    return questions


def _last_turn(prompt: list[int], tokenizer: Tokenizer) -> str:
    """What a person reads as the question: the text of the turn before the answer."""
    turns = tokenizer.decode(prompt).split(IM_START)
    return turns[-2].partition("\n")[2].strip().removesuffix(IM_END) if len(turns) > 2 else turns[-1]
