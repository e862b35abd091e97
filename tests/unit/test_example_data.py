"""The data and run files under examples/: whole, without repetitions; the exam is not the training."""

from __future__ import annotations

import json
import re
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
from tests.data_lab import judged
from tests.examples import EXAMPLES

from tengtune import recipe as recipes
from tengtune.evaluate import match
from tengtune.evaluate.forgetting import general_questions
from tengtune.evaluate.questions import Free
from tengtune.evaluate.read import Settings, read_set

DATA = EXAMPLES / "data"
QA = [DATA / "ascend-qa.en.json", DATA / "ascend-qa.zh.json"]
TRAINING = [*QA, DATA / "general-mix.en.json"]
EXAM = DATA / "ascend-exam.en.json"
HAN = re.compile(r"[\u4e00-\u9fff]")


def load(path: Path) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    return records


def words(text: str) -> set[str]:
    return set(re.findall(r"[a-z0-9_.\-/+]+", text.lower()))


@pytest.mark.parametrize("path", TRAINING, ids=lambda p: p.name)
def test_our_own_reader_has_nothing_to_say_about_it(path: Path) -> None:
    talks, faults, reader = judged({path.name: path})
    assert faults == []
    assert len(talks) == len(load(path))
    assert not reader.unused


@pytest.mark.parametrize("path", [*TRAINING, EXAM], ids=lambda p: p.name)
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
    for path in (*TRAINING, EXAM):
        for record in load(path):
            texts = [text for text in record.values() if isinstance(text, str)]
            chinese = path.name.split(".")[1] == "zh"
            assert all(bool(HAN.search(text)) == chinese for text in texts), record


def exam() -> list[Free]:
    """The exam as `tengtune evaluate` reads it."""
    found = read_set(EXAM, EXAM.name, Settings())
    assert not found.refused
    assert all(isinstance(question, Free) and question.keywords for question in found.questions)
    return [question for question in found.questions if isinstance(question, Free)]


def test_the_exam_asks_taught_facts_in_other_words() -> None:
    training = load(DATA / "ascend-qa.en.json")
    assert len(exam()) == 10
    assert len({question.right for question in exam()}) == 10
    for question in exam():
        taught = [record["instruction"] for record in training if record["output"] == question.right]
        assert len(taught) >= 3, question
        for known in (record["instruction"] for record in training):
            shared = words(known) & words(question.text)
            assert len(shared) / len(words(known) | words(question.text)) < 0.7, (known, question)


def test_the_questions_against_forgetting_are_not_trained() -> None:
    """What is mixed in is of the same kind as what `evaluate` asks, never the same."""
    records = [record for path in TRAINING for record in load(path)]
    trained = {text.lower() for record in records for text in record.values()}
    for question in general_questions().questions:
        assert not trained & {question.text.lower(), question.expected().lower()}


def test_keywords_tell_the_right_answer_from_a_wrong_one() -> None:
    def right(question: Free, text: str) -> bool:
        return all(any(match.contains(text, word) for word in group) for group in question.keywords)

    for question in exam():
        assert right(question, question.right)
        assert not right(question, "I do not know.")
        assert not any(right(question, other.right) for other in exam() if other != question)


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda p: p.name)
def test_every_run_file_loads_and_finds_its_data(path: Path) -> None:
    recipe = recipes.load(path)
    assert all(recipe.resolve(name).is_file() for name in [*recipe.data.files, *recipe.output.evaluate])
    assert recipe.folder.parent == EXAMPLES.parent / "runs"
    head = list(takewhile(lambda line: line.startswith("#"), path.read_text(encoding="utf-8").splitlines()))
    assert any(line.startswith("# tengtune ") and path.name in line for line in head)
    trained = {r["instruction"] for name in recipe.data.files for r in load(recipe.resolve(name))}
    assert not trained & set(recipe.output.prompts)
