"""The evaluation's figures against transformers' logits, and MindSpore's against torch's."""

from __future__ import annotations

import importlib
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tests.tiny import tiny_model, tiny_tokenizer

from tengtune import engine
from tengtune import recipe as recipes
from tengtune.backends.base import open_backend
from tengtune.data.store import open_store
from tengtune.evaluate.examiner import Examiner
from tengtune.evaluate.questions import LETTERS, Choice, Free
from tengtune.evaluate.read import Settings, read_set
from tengtune.recipe import Recipe
from tengtune.text.conversation import Message
from tengtune.text.tokenizer import open_tokenizer
from tengtune.ui.console import Console

torch.set_num_threads(1)  # tiny tensors: see tests/torch_lab.py

QUESTIONS = [
    {"question": f"Which is {n}?", "choices": ["xk", "zq", "wj", "bv"], "answer": n % 4} for n in range(4)
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model with its tokenizer, question files and a run file."""
    place = tmp_path_factory.mktemp("evaluation")
    tiny_tokenizer(tiny_model(place / "model", seed=3))
    (place / "choice.json").write_text(json.dumps(QUESTIONS))
    records = [{"instruction": f"question {n}?", "output": "an answer " * (1 + n % 5)} for n in range(30)]
    (place / "data.json").write_text(json.dumps(records))
    (place / "run.yaml").write_text(
        "model: model\n"
        "data: {files: data.json, seq_len: 96, heldout: 0.3}\n"
        "train: {max_steps: 2, global_batch: 2, lr: 0.05}\n"
        "output: {evaluate: [choice.json], max_new_tokens: 8}\n"
    )
    return place


@pytest.fixture(scope="module")
def run(folder: Path) -> Recipe:
    """The run file, trained and merged."""
    recipe = recipes.load(folder / "run.yaml")
    engine.prepare(recipe, fresh=False)
    engine.run_needed("evaluate", recipe, Console("quiet"))
    return recipe


def reference(folder: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@torch.no_grad()
def log_likelihood(model: Any, ids: list[int], train: list[bool]) -> float:
    """Sum of log probabilities of the trained tokens, out of whole logits."""
    scores = model(torch.tensor([ids])).logits[0].double().log_softmax(-1)
    return sum(float(scores[i - 1, ids[i]]) for i in range(1, len(ids)) if train[i])


def test_the_held_out_loss_is_transformers(run: Recipe) -> None:
    figures = engine.read_record(run.folder / "evaluate.json")["figures"]  # type: ignore[index]
    store = open_store(run.folder / "data" / "heldout")
    examples = [store.example(number) for number in range(store.documents)]
    for name, place in (("before", run.model_folder), ("after", run.folder / "merged")):
        model = reference(place)
        total = sum(log_likelihood(model, e.ids.tolist(), e.train.tolist()) for e in examples)
        labels = sum(int(e.train[1:].sum()) for e in examples)
        assert figures["tokens"] == labels
        assert figures[f"loss_{name}"] == pytest.approx(-total / labels, rel=1e-5)
        assert figures[f"perplexity_{name}"] == pytest.approx(math.exp(-total / labels), rel=1e-4)
    assert figures["loss_before"] != figures["loss_after"]


def test_the_loss_of_a_right_answer_is_transformers(folder: Path) -> None:
    recipe = recipes.load(folder / "run.yaml")
    backend = open_backend(recipe, folder / "model", trainable=False)
    tokenizer = open_tokenizer(folder / "model")
    text = "the answer, 你好"
    question = Free("f:0", (Message("user", "what?"),), text, 4)
    mark = question.mark(Examiner(backend, tokenizer, "be brief"), [])
    control = tokenizer.encode_control(
        "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nwhat?<|im_end|>\n<|im_start|>assistant\n"
    )
    answer = [*tokenizer.encode(text), tokenizer.im_end]
    judged = [False] * len(control) + [True] * len(answer)
    expected = -log_likelihood(reference(folder / "model"), control + answer, judged)
    assert mark.labels == len(answer)
    assert mark.loss_sum == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("by", ["letter", "text"])
def test_choices_are_those_of_transformers_likelihoods(folder: Path, tmp_path: Path, by: Any) -> None:
    recipe, tokenizer = recipes.load(folder / "run.yaml"), open_tokenizer(folder / "model")
    found = read_set(folder / "choice.json", "choice.json", Settings(by=by))
    chosen = []
    for seed in range(4):  # one random model says the same to everything
        place = tiny_model(tmp_path / str(seed), seed=seed)
        backend, model = open_backend(recipe, place, trainable=False), reference(place)
        examiner = Examiner(backend, tokenizer, "")
        for question in found.questions:
            assert isinstance(question, Choice)
            texts = question.options if by == "text" else "ABCD"
            head = f"<|im_start|>user\n{question.text}<|im_end|>\n<|im_start|>assistant\n"
            prompt = tokenizer.encode_control(head)
            scores = []
            for text in texts:
                ids = tokenizer.encode(text)
                score = log_likelihood(model, prompt + ids, [False] * len(prompt) + [True] * len(ids))
                scores.append(score / (len(text.encode()) if by == "text" else 1))
            mark = question.mark(examiner, [])
            assert mark.answer == LETTERS[int(np.argmax(scores))]
            assert mark.hits["accuracy"] is (int(np.argmax(scores)) == question.right)
            chosen.append(mark.answer)
    assert len(set(chosen)) > 1


def test_the_step_records_what_the_questions_gave(run: Recipe) -> None:
    figures = engine.read_record(run.folder / "evaluate.json")["figures"]  # type: ignore[index]
    lines = [json.loads(line) for line in (run.folder / "evaluation.jsonl").read_text("utf-8").splitlines()]
    (one,) = figures["sets"]
    of_set = [line for line in lines if line["set"] == "choice.json"]
    assert len(of_set) == one["questions"] == 4
    for place, name in enumerate(("before", "after")):
        share = sum(line[name]["accuracy"] for line in of_set) / 4
        assert one["measures"]["accuracy"][place] == pytest.approx(share)
    general = [line for line in lines if line["set"] == "general"]
    assert len(general) == figures["general"]["questions"] == 20
    assert figures["general"]["verdict"] == "unknown"  # a random model knows nothing


def test_mindspore_scores_and_answers_alike(folder: Path) -> None:
    recipe = recipes.load(folder / "run.yaml", ["backend=mindspore"])
    importlib.import_module("tests.mindspore_lab")  # sets the log level before MindSpore is loaded
    tokenizer = open_tokenizer(folder / "model")
    others = [
        Examiner(open_backend(each, folder / "model", trainable=False), tokenizer, "")
        for each in (recipe, recipes.load(folder / "run.yaml", ["backend=torch"]))
    ]
    question = Free("f:0", (Message("user", "what?"),), "the answer", 4)
    ours, torchs = (question.mark(examiner, []) for examiner in others)
    assert ours.loss_sum == pytest.approx(torchs.loss_sum, rel=1e-5)
    assert (ours.answer, ours.hits) == (torchs.answer, torchs.hits)
    assert torchs.answer
    assert set(torchs.hits) == {"contains", "exact"}
