"""The data and run files under examples/: whole, without repetitions; the exam is not the training."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.examples import EXAMPLES, script

from tengtune import recipe as recipes
from tengtune.data.judge import Judge
from tengtune.data.read import Reader
from tengtune.text.conversation import Conversation

demo = script("demo")

DATA = EXAMPLES / "data"
QA = [DATA / "ascend-qa.en.json", DATA / "ascend-qa.zh.json"]
TRAINING = [*QA, DATA / "general-mix.en.json"]
EXAMS = [DATA / "ascend-exam.en.json", DATA / "general.en.json"]
CONTROL = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]
HAN = re.compile(r"[\u4e00-\u9fff]")


def load(path: Path) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    return records


def words(text: str) -> set[str]:
    return set(re.findall(r"[a-z0-9_.\-/+]+", text.lower()))


@pytest.mark.parametrize("path", TRAINING, ids=lambda p: p.name)
def test_our_own_reader_has_nothing_to_say_about_it(path: Path) -> None:
    reader = Reader({path.name: path}, judge=Judge("assistant", CONTROL))
    items = list(reader.read())
    assert all(isinstance(item, Conversation) for item in items)
    assert len(items) == len(load(path))
    assert not reader.unused


@pytest.mark.parametrize("path", [*TRAINING, *EXAMS], ids=lambda p: p.name)
def test_no_question_twice_and_no_loose_blanks(path: Path) -> None:
    questions = [record.get("instruction") or record["question"] for record in load(path)]
    texts = [*questions, *(record.get("output") or record["answer"] for record in load(path))]
    assert len({q.lower() for q in questions}) == len(questions)
    assert all(text == text.strip() and "  " not in text for text in texts)


def test_there_is_enough_and_every_fact_in_several_wordings() -> None:
    for path in QA:
        records = load(path)
        assert len(records) >= 150
        answers = [record["output"] for record in records]
        assert min(answers.count(answer) for answer in set(answers)) >= 3
        assert len(set(answers)) >= 40


def test_each_file_is_in_its_language() -> None:
    for path in (*TRAINING, *EXAMS):
        for record in load(path):
            texts = [text for text in record.values() if isinstance(text, str)]
            chinese = path.name.split(".")[1] == "zh"
            assert all(bool(HAN.search(text)) == chinese for text in texts), record


def test_the_exam_asks_taught_facts_in_other_words() -> None:
    training = load(DATA / "ascend-qa.en.json")
    exam = demo.read_questions(demo.EXAM)
    assert len(exam) == 10
    assert len({question.answer for question in exam}) == 10
    for question in exam:
        taught = [record["instruction"] for record in training if record["output"] == question.answer]
        assert len(taught) >= 3, question
        for known in (record["instruction"] for record in training):
            shared = words(known) & words(question.question)
            assert len(shared) / len(words(known) | words(question.question)) < 0.7, (known, question)


def test_general_questions_are_not_trained_and_are_not_the_mixed_in_ones() -> None:
    trained = {record["instruction"].lower() for path in TRAINING for record in load(path)}
    general = demo.read_questions(demo.GENERAL)
    assert "What is the capital of France?" in [question.question for question in general]
    assert not trained & {question.question.lower() for question in general}
    answers = {record["output"].lower() for path in TRAINING for record in load(path)}
    assert not answers & {question.answer.lower() for question in general}


@pytest.mark.parametrize("path", EXAMS, ids=lambda p: p.name)
def test_keywords_tell_the_right_answer_from_a_wrong_one(path: Path) -> None:
    questions = demo.read_questions(path)
    for question in questions:
        assert question.right(question.answer)
        assert question.right(question.answer.upper())
        assert not question.right("I do not know.")
        assert not question.right(question.question) or "A2" in question.question
        others = [other.answer for other in questions if other is not question]
        assert not any(question.right(answer) for answer in others)


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda p: p.name)
def test_every_run_file_loads_and_finds_its_data(path: Path) -> None:
    recipe = recipes.load(path)
    assert all(recipe.resolve(name).is_file() for name in recipe.data.files)
    assert recipe.folder.parent == EXAMPLES.parent / "runs"
    assert path.name in path.read_text(encoding="utf-8").partition("\n")[0] or path.stem == "demo"
    trained = {r["instruction"] for name in recipe.data.files for r in load(recipe.resolve(name))}
    assert not trained & set(recipe.output.prompts)
