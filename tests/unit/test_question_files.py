"""Question files: every layout that is known, what is refused and why."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.shared import shared_path

from tengtune.evaluate.questions import Calculation, Choice, Free
from tengtune.evaluate.read import QuestionSet, Settings, read_set
from tengtune.ui.problems import Problem

MMLU = 'What is 2+2?,3,4,5,6,B\n"A, or B?",x,y,z,w,A\n'
CEVAL = "id,question,A,B,C,D,answer\n0,下列哪个是城市,北京,苹果,水,光,A\n1,无答案的题,甲,乙,丙,丁,\n"
CMMLU = ",Question,A,B,C,D,Answer\n0,一加一,一,二,三,四,B\n"


def read(folder: Path, name: str, content: str | bytes | object, **settings: object) -> QuestionSet:
    path = folder / name
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
        path.write_text(text, encoding="utf-8")
    return read_set(path, name, Settings(**settings))  # type: ignore[arg-type]


def choices(found: QuestionSet) -> list[tuple[str, tuple[str, ...], int]]:
    assert found.kind == "choice"
    return [(q.question, q.options, q.right) for q in found.questions if isinstance(q, Choice)]


def test_the_three_families_of_tables(tmp_path: Path) -> None:
    assert choices(read(tmp_path, "mmlu.csv", MMLU)) == [
        ("What is 2+2?", ("3", "4", "5", "6"), 1),
        ("A, or B?", ("x", "y", "z", "w"), 0),
    ]
    ceval = read(tmp_path, "ceval.csv", "\ufeff" + CEVAL)
    assert choices(ceval) == [("下列哪个是城市", ("北京", "苹果", "水", "光"), 0)]
    assert [(number, unfit.code) for number, unfit in ceval.refused] == [(1, "no_answer_given")]
    assert choices(read(tmp_path, "cmmlu.csv", CMMLU)) == [("一加一", ("一", "二", "三", "四"), 1)]
    assert choices(read(tmp_path, "t.tsv", "question\tA\tB\tanswer\nq\t1\t2\tB\n")) == [("q", ("1", "2"), 1)]


@pytest.mark.parametrize(
    "record",
    [
        {"question": "q", "A": "x", "B": "y", "answer": "B"},
        {"Question": "q", "a": "x", "b": "y", "c": "", "answer": " (b). "},
        {"question": "q", "choices": ["x", "y"], "answer": 1},
        {"question": "q", "options": {"A": "x", "B": "y"}, "answer": ["B"]},
        {"题目": "q", "选项": ["x", "y"], "答案": "y"},
        {"question": "q", "choices": ["x", "y"], "answerKey": "1"},
        {"question": "q\nA. x\nB．y", "answer": "B"},
    ],
)
def test_every_way_to_write_a_choice(tmp_path: Path, record: dict[str, object]) -> None:
    assert choices(read(tmp_path, "q.json", [record])) == [("q", ("x", "y"), 1)]


@pytest.mark.parametrize(
    ("record", "code"),
    [
        ({"question": "q", "choices": ["x", "y"], "answer": "AB"}, "several_answers"),
        ({"question": "q", "choices": ["x", "y"], "answer": ["A", "B"]}, "several_answers"),
        ({"question": "q", "choices": ["x", "y"], "answer": "C"}, "no_such_option"),
        ({"question": "q", "choices": ["x", "y"], "answer": 2}, "no_such_option"),
        ({"question": "q", "choices": ["x", "y"], "answer": "neither"}, "no_such_option"),
        ({"question": "q", "choices": ["x"], "answer": "A"}, "few_options"),
        ({"question": " ", "choices": ["x", "y"], "answer": "A"}, "missing"),
        ({"question": "q", "choices": ["x", "y"], "answer": None}, "no_answer_given"),
        ({"name": "q"}, "missing"),
        (["q"], "not_object"),
    ],
)
def test_a_record_that_cannot_be_asked_is_counted_and_the_rest_is(
    tmp_path: Path, record: object, code: str
) -> None:
    found = read(tmp_path, "q.json", [{"question": "q", "choices": ["x", "y"], "answer": "A"}, record])
    assert len(found.questions) == 1
    assert [(number, unfit.code) for number, unfit in found.refused] == [(1, code)]


def test_numbers_words_and_training_files(tmp_path: Path) -> None:
    number = read(tmp_path, "gsm.jsonl", '{"question": "q", "answer": "1+1=<<1+1=2>>2\\n#### 2"}\n')
    assert number.kind == "number"
    assert isinstance(number.questions[0], Calculation)
    assert number.questions[0].number == 2

    free = read(tmp_path, "qa.json", [{"question": "q", "answer": "a", "keywords": [["x", "y"], "z"]}])
    assert isinstance(free.questions[0], Free)
    assert free.questions[0].keywords == (("x", "y"), ("z",))

    turns = [("user", "1"), ("assistant", "2"), ("user", "3"), ("assistant", "4")]
    messages = {"messages": [{"role": role, "content": content} for role, content in turns]}
    trained = read(tmp_path, "train.json", [messages, {"messages": messages["messages"][:1]}])
    (question,) = trained.questions
    assert [m.content for m in question.asked()] == ["1", "2", "3"]
    assert question.expected() == "4"
    assert trained.refused[0][1].code == "no_answer"

    alpaca = read(tmp_path, "a.csv", "instruction,input,output\nSay.,it,done\n")
    assert alpaca.questions[0].asked()[0].content == "Say: it"


@pytest.mark.parametrize(
    ("keywords", "expected"),
    [
        ("full", (("full",),)),
        ("filter full", (("filter full",),)),
        (["full", ["3", 3]], (("full",), ("3", "3"))),
        ('[["filter", "sieve"], ["full"]]', (("filter", "sieve"), ("full",))),  # as in a table's cell
        (None, ()),
        (" ", ()),
        ([], ()),
    ],
)
def test_keywords(tmp_path: Path, keywords: object, expected: object) -> None:
    (question,) = read(tmp_path, "q.json", [{"question": "q", "answer": "a", "keywords": keywords}]).questions
    assert isinstance(question, Free)
    assert question.keywords == expected


def test_keywords_in_a_table(tmp_path: Path) -> None:
    table = 'question,answer,keywords\nq,a,full\nq,a,\nq,a,"[[""x"", ""y""]]"\nq,a,!!\n'
    found = read(tmp_path, "q.csv", table)
    groups = [question.keywords for question in found.questions if isinstance(question, Free)]
    assert groups == [(("full",),), (), (("x", "y"),)]
    assert [(number, unfit.code) for number, unfit in found.refused] == [(3, "bad_keywords")]


@pytest.mark.parametrize(
    "keywords",
    [[[]], [["!!"]], [None], [["a", ""]], 5, 0, False, True, {"a": 1}, [[["a"]]], [True], [1e999], "…"],
)
def test_keywords_that_no_answer_could_hold_are_refused(tmp_path: Path, keywords: object) -> None:
    records = [{"question": "q", "answer": "a"}, {"question": "q", "answer": "a", "keywords": keywords}]
    found = read(tmp_path, "q.json", records)
    assert len(found.questions) == 1
    assert [(number, unfit.code) for number, unfit in found.refused] == [(1, "bad_keywords")]


def test_the_first_questions_are_examples_and_the_limit_counts_without_them(tmp_path: Path) -> None:
    found = read(tmp_path, "mmlu.csv", MMLU * 3, shots=2, limit=3)
    assert len(found.questions) == 3
    assert [m.role for m in found.shots] == ["user", "assistant"] * 2
    assert [m.content for m in found.shots if m.role == "assistant"] == ["B", "A"]
    assert found.questions[0].source == "mmlu.csv:2"


@pytest.mark.parametrize(
    ("name", "content", "code"),
    [
        ("x.csv", "id,text\n1,hello\n", "evaluate.no_questions"),
        ("x.csv", "question,A,B,answer\nq,1,2\n", "evaluate.no_questions"),  # a column is missing
        ("x.csv", b"", "data.empty_file"),
        ("x.csv", "question,A,B,answer\n问,1,2,A\n".encode("gbk"), "data.not_utf8"),
        ("x.csv", "问,甲,乙,A\n".encode("gbk"), "evaluate.bad_table"),  # as MMLU's own, without a header
        ("x.json", b"[]", "evaluate.no_questions"),
        ("x.json", b"[{", "data.bad_json"),
        ("x.json", b'[{"text": 1}]', "evaluate.no_questions"),
    ],
)
def test_a_file_without_questions_is_a_problem(
    tmp_path: Path, name: str, content: str | bytes, code: str
) -> None:
    with pytest.raises(Problem) as caught:
        read(tmp_path, name, content)
    assert caught.value.code == code
    assert caught.value.texts()["what"]


def test_only_examples_and_no_question_is_a_problem(tmp_path: Path) -> None:
    with pytest.raises(Problem) as caught:
        read(tmp_path, "mmlu.csv", MMLU, shots=2)
    assert caught.value.code == "evaluate.only_shots"


@pytest.mark.parametrize(
    ("name", "kind", "questions"),
    [
        ("gaokao_english_mcq_2010_2013.json", "choice", 105),
        ("gaokao_biology_mcq.json", "choice", 150),
        ("gsm8k_test.jsonl", "number", 1319),
    ],
)
def test_public_sets_are_read_whole(name: str, kind: str, questions: int) -> None:
    """The counts are those of their publishers (GAOKAO-Bench, grade-school-math)."""
    path = shared_path(f"data/eval/{name}")
    found = read_set(path, name, Settings())
    assert (found.kind, len(found.questions), found.refused) == (kind, questions, [])
    text = path.read_text(encoding="utf-8")
    if kind == "choice":
        letters = [record["answer"][0] for record in json.loads(text)["example"]]
        assert [q.expected() for q in found.questions] == letters
        assert all(len(q.options) == 4 and all(q.options) for q in found.questions if isinstance(q, Choice))
    else:
        marked = [json.loads(line)["answer"].split("#### ")[1].replace(",", "") for line in text.splitlines()]
        assert [str(q.number) for q in found.questions if isinstance(q, Calculation)] == marked
