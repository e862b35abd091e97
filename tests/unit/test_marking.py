"""Questions put to a back end of which every loss and answer is known, and the verdict on forgetting."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal

import numpy as np
import pytest
from tests.answering import one_by_one
from tests.tiny import IM_END, tiny_config, tiny_tokenizer

from tengtune.backends.base import Asked, Sampling, Shard, StepHandles
from tengtune.data.fault import Unfit
from tengtune.evaluate import forgetting, match
from tengtune.evaluate.examiner import Examiner
from tengtune.evaluate.forgetting import general_questions
from tengtune.evaluate.likelihood import continuation, loss_sums, one_row
from tengtune.evaluate.questions import Calculation, Choice, Free, Mark, language_of
from tengtune.evaluate.read import QuestionSet
from tengtune.evaluate.score import Comparison, by_chance, mark_all, pieces
from tengtune.models.spec import from_config
from tengtune.text.conversation import Example, Message
from tengtune.text.tokenizer import Tokenizer, open_tokenizer
from tengtune.train.batch import NO_LABEL, Batch
from tengtune.ui.problems import Problem


class Known:
    """A back end in which a label costs what `costs` says (1 otherwise) and every question has its answer."""

    dtype, device = "float32", "cpu"
    spec = from_config(tiny_config())

    def __init__(
        self, tokenizer: Tokenizer, costs: Mapping[int, float] = {}, answers: Mapping[str, str] = {}
    ) -> None:
        self.tokenizer, self.costs, self.answers = tokenizer, costs, answers
        self.batches: list[Batch] = []
        self.asked: list[tuple[str, int]] = []

    def eval_step(self, batch: Batch) -> float:
        self.batches.append(batch)
        labels = batch.label[batch.label != NO_LABEL]
        return float(sum(self.costs.get(int(label), 1.0) for label in labels))

    def generate(
        self,
        prompt: Sequence[int],
        max_new_tokens: int,
        stop_ids: Iterable[int],
        sampling: Sampling | None = None,
    ) -> Iterator[int]:
        text = self.tokenizer.decode(prompt)
        assert text.endswith("<|im_start|>assistant\n")
        self.asked.append((text, max_new_tokens))
        for question, answer in self.answers.items():
            if question in text.rpartition("<|im_start|>user")[2]:
                return iter(self.tokenizer.encode(answer)[:max_new_tokens])
        return iter(())

    def generate_many(self, asked: Iterable[Asked], stop_ids: Iterable[int]) -> Iterator[int]:
        return one_by_one(self.generate, asked, stop_ids)

    def train_step(
        self, micro_batches: Sequence[Batch], trained_tokens: int, lr: float, scale: float
    ) -> StepHandles:
        raise AssertionError

    def peak_bytes(self) -> None:
        return None

    def named_shards(self) -> Iterator[Shard]:
        raise AssertionError

    def load_shards(self, shards: Iterable[Shard], step: int) -> None:
        raise AssertionError


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return open_tokenizer(tiny_tokenizer(tmp_path_factory.mktemp("tokenizer")))


def token(tokenizer: Tokenizer, text: str) -> int:
    (number,) = tokenizer.encode(text)
    return number


def test_a_row_has_labels_at_the_answer_only(tokenizer: Tokenizer) -> None:
    backend = Known(tokenizer, {7: 0.25, 8: 0.5})
    assert loss_sums(backend, [continuation([5, 6], [7, 8]), continuation([5], [9])]) == [0.75, 1.0]
    batch = backend.batches[0]
    assert batch.ids.shape == (1, 64)
    assert batch.ids[0, :5].tolist() == [5, 6, 7, 8, 0]
    assert batch.positions[0, :5].tolist() == [0, 1, 2, 3, 0]
    assert batch.segment[0, :5].tolist() == [1, 1, 1, 1, 0]
    assert batch.label_index[0].tolist() == [1, 2, 0, 0, 0, 0, 0, 0]
    assert batch.label[0].tolist() == [7, 8] + [NO_LABEL] * 6


@pytest.mark.parametrize(
    ("tokens", "labels", "shape"),
    [(1, 0, (64, 8)), (64, 8, (64, 8)), (65, 9, (128, 16)), (300, 299, (512, 512))],
)
def test_rows_have_few_shapes(tokens: int, labels: int, shape: tuple[int, int]) -> None:
    train = np.zeros(tokens, np.bool_)
    train[tokens - labels :] = True
    batch = one_row(Example(np.arange(tokens, dtype=np.int32), train))
    assert (batch.ids.shape[1], batch.label.shape[1]) == shape
    assert batch.trained_tokens == labels


def test_the_first_token_is_nobodys_label() -> None:
    batch = one_row(Example(np.array([4, 5], np.int32), np.array([True, True])))
    assert batch.trained_tokens == 1
    assert (batch.label_index[0, 0], batch.label[0, 0]) == (0, 5)


def test_the_letter_of_the_lowest_loss_is_chosen(tokenizer: Tokenizer) -> None:
    backend = Known(tokenizer, {token(tokenizer, "C"): 0.2, token(tokenizer, "A"): 0.3})
    question = Choice("f:0", "Which?", ("one", "two", "three", "four"), 2)
    mark = question.mark(Examiner(backend, tokenizer, ""), [])
    assert (mark.hits, mark.answer) == ({"accuracy": True}, "C")
    text = tokenizer.decode(backend.batches[0].ids[0].tolist())
    assert "Which?\nA. one\nB. two\nC. three\nD. four<|im_end|>" in text
    assert [batch.trained_tokens for batch in backend.batches] == [1, 1, 1, 1]
    wrong = Choice("f:0", "Which?", ("one", "two", "three", "four"), 0)
    assert wrong.mark(Examiner(backend, tokenizer, ""), []).hits == {"accuracy": False}


def test_a_text_is_chosen_by_its_loss_per_byte(tokenizer: Tokenizer) -> None:
    """ "aaaa" costs 4 x 0.5 = 2 over 4 bytes, "b" 0.6 over 1, "你" (3 bytes) a loss of at least 1 a token."""
    costs = {token(tokenizer, "a"): 0.5, token(tokenizer, "b"): 0.6}
    backend = Known(tokenizer, costs)
    assert all(number == token(tokenizer, "a") for number in tokenizer.encode("aaaa"))
    question = Choice("f:0", "Which?", ("b", "aaaa"), 1, by="text")
    mark = question.mark(Examiner(backend, tokenizer, ""), [])
    assert (mark.hits, mark.answer) == ({"accuracy": True}, "B")  # by the sum alone "b" would win
    assert "one" not in tokenizer.decode(backend.batches[0].ids[0].tolist())


def test_a_model_of_nans_chooses_nothing(tokenizer: Tokenizer) -> None:
    backend = Known(tokenizer, {token(tokenizer, "B"): math.nan})
    mark = Choice("f:0", "Which?", ("one", "two"), 0).mark(Examiner(backend, tokenizer, ""), [])
    assert (mark.hits, mark.answer) == ({"accuracy": False}, None)
    free = Free("f:0", (Message("user", "q"),), "B", 5).mark(Examiner(backend, tokenizer, ""), [])
    assert free.as_json(texts=False)["loss"] is None


def test_options_inside_the_question_are_asked_as_they_stand(tokenizer: Tokenizer) -> None:
    whole = "题目\nA．甲 B．乙"
    question = Choice("f:0", "题目", ("甲", "乙"), 0, whole=whole)
    (message,) = question.asked()
    assert message.content.endswith(whole)
    assert language_of(message.content) == "zh"
    assert language_of("Which?\nA. one") == "en"


def test_examples_come_before_the_question(tokenizer: Tokenizer) -> None:
    backend = Known(tokenizer)
    shots = [Message("user", "first?"), Message("assistant", "B")]
    Choice("f:0", "second?", ("x", "y"), 0).mark(Examiner(backend, tokenizer, "be brief"), shots)
    text = tokenizer.decode(backend.batches[0].ids[0].tolist())
    assert text.startswith(
        "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nfirst?<|im_end|>\n"
        "<|im_start|>assistant\nB<|im_end|>\n<|im_start|>user\n"
    )
    assert "second?" in text


def test_a_number_is_read_from_the_answer(tokenizer: Tokenizer) -> None:
    backend = Known(tokenizer, answers={"apples": "3 and 4 is\n#### 7", "pears": "7, or 8"})
    examiner = Examiner(backend, tokenizer, "")
    right = Calculation("f:0", "How many apples?", "#### 7", Decimal(7)).mark(examiner, [])
    wrong = Calculation("f:1", "How many pears?", "#### 7", Decimal(7)).mark(examiner, [])
    assert (right.hits, wrong.hits) == ({"accuracy": True}, {"accuracy": False})
    assert right.answer == "3 and 4 is\n#### 7"


def test_words_are_marked_by_loss_exactness_and_holding(tokenizer: Tokenizer) -> None:
    backend = Known(tokenizer, {IM_END: 3.0}, {"France": "It is Paris.", "Japan": "tokyo"})
    examiner = Examiner(backend, tokenizer, "")
    turns = (Message("user", "Capital of France?"),)
    mark = Free("f:0", turns, "Paris", 20).mark(examiner, [])
    assert mark.hits == {"contains": True, "exact": False}
    tokens = len(tokenizer.encode("Paris"))
    assert (mark.loss_sum, mark.labels) == (tokens + 3.0, tokens + 1)  # the end of the turn counts
    assert mark.loss == (tokens + 3.0) / (tokens + 1)
    assert backend.asked[0][1] == 20

    exact = Free("f:1", (Message("user", "Capital of Japan?"),), "Tokyo.", 20).mark(examiner, [])
    assert exact.hits == {"contains": True, "exact": True}
    keywords = Free("f:2", turns, "Paris", 20, (("Paris", "Lutetia"), ("river",)))
    assert keywords.mark(examiner, []).hits == {"contains": False}


def test_earlier_answers_of_a_conversation_are_no_labels(tokenizer: Tokenizer) -> None:
    backend = Known(tokenizer)
    turns = (Message("user", "a"), Message("assistant", "long answer before"), Message("user", "b"))
    mark = Free("f:0", turns, "Paris", 20).mark(Examiner(backend, tokenizer, ""), [])
    assert mark.labels == len(tokenizer.encode("Paris")) + 1


def test_what_does_not_fit_is_not_asked(tokenizer: Tokenizer) -> None:
    backend = Known(tokenizer)
    examiner = Examiner(backend, tokenizer, "")
    long = "x y " * backend.spec.max_positions
    unasked = Mark(missing="too_long")
    assert Choice("f:0", long, ("a", "b"), 0).mark(examiner, []) == unasked
    assert Free("f:1", (Message("user", long),), "a", 5).mark(examiner, []) == unasked
    assert Calculation("f:2", long, "#### 1", Decimal(1)).mark(examiner, []) == unasked
    assert backend.batches == []
    assert backend.asked == []


def test_a_right_answer_that_does_not_fit_costs_its_loss_only(tokenizer: Tokenizer) -> None:
    backend = Known(tokenizer, {}, {"France": "Paris"})
    long = "x y " * backend.spec.max_positions
    question = Free("f:0", (Message("user", "Capital of France?"),), long, 5, (("Paris",),))
    mark = question.mark(Examiner(backend, tokenizer, ""), [])
    assert mark == Mark({"contains": True}, "Paris", missing="no_loss")


def test_another_problem_is_not_swallowed(tokenizer: Tokenizer) -> None:
    class Full(Known):
        def generate_many(self, *arguments: object, **named: object) -> Iterator[int]:
            raise Problem("device.out_of_memory", exit_code=4, device="cpu")

    with pytest.raises(Problem, match="out_of_memory"):
        Examiner(Full(tokenizer), tokenizer, "").answer([Message("user", "q")], 5)


# General knowledge


def marks(*outcomes: tuple[bool, float]) -> list[Mark]:
    """(right, loss per token) of each question; two labels each."""
    return [Mark({"contains": right}, "text", 2 * loss, 2) for right, loss in outcomes]


def known(count: int, loss: float = 1.0) -> list[tuple[bool, float]]:
    return [(True, loss)] * count


@pytest.mark.parametrize(
    ("before", "after", "verdict", "lost", "weakened"),
    [
        (known(12), known(12, 1.5), "kept", 0, 0),
        (known(12), [*known(11), (False, 3.0)], "kept", 1, 0),  # one of twelve is within a tenth
        (known(8), [*known(7, 0.7), (False, 0.9)], "kept", 1, 0),  # one that turned, and all more likely
        (known(8), [*known(7), (False, 2.0)], "kept", 1, 0),  # at WEAKER, not above it
        (known(8, 0.1), [*known(7, 0.1), (False, 3.6)], "weakened", 1, 0),  # truly broken: the loss says so
        (known(8), [*known(7), (False, math.nan)], "weakened", 1, 0),
        (known(9), [*known(6), *[(False, 3.0)] * 3], "lost", 3, 0),
        (known(9), [*known(6), *[(False, 1.0)] * 3], "kept", 3, 0),  # 3 to 0 may be chance
        (known(9), [*known(5), *[(False, 1.0)] * 4], "lost", 4, 0),  # 4 to 0 is not
        ([*known(9), *[(False, 1.0)] * 3], [*known(5), *[(False, 1.0)] * 4, *known(3)], "kept", 4, 0),
        ([*known(20), (False, 1.0)], [*known(15), *[(False, 1.0)] * 5, (False, 1.0)], "weakened", 5, 0),
        (known(9), [*known(6), *known(3, 2.5)], "weakened", 0, 3),  # right still, but much less likely
        (known(9), [*known(7), *known(2, 2.5)], "kept", 0, 2),
        ([*known(2), (False, 1.0)], known(3), "unknown", 0, 0),
        ([(False, 1.0)] * 9, [(True, 1.0)] * 9, "unknown", 0, 0),
        ([*known(3), (False, 1.0)], [*known(3), (False, 9.0)], "kept", 0, 0),  # never known: not forgotten
    ],
)
def test_the_verdict_on_forgetting(
    before: list[tuple[bool, float]], after: list[tuple[bool, float]], verdict: str, lost: int, weakened: int
) -> None:
    found = forgetting.judge(marks(*before), marks(*after))
    assert (found.verdict, found.lost, found.weakened) == (verdict, lost, weakened)
    assert found.known == sum(right for right, _ in before)
    mean = [sum(loss for _, loss in outcomes) / len(outcomes) for outcomes in (before, after)]
    assert found.loss_rise == pytest.approx(mean[1] - mean[0], nan_ok=True)


def test_nothing_measured_says_nothing_about_forgetting() -> None:
    unasked = [Mark(missing="too_long")] * 20
    assert forgetting.judge(unasked, unasked).verdict == "unknown"


def test_a_model_that_says_its_name_to_everything_has_lost_what_it_knew(tokenizer: Tokenizer) -> None:
    """The case the check is for: an identity was taught, and "capital of France" broke."""
    questions = general_questions()
    right = {question.text: question.expected() for question in questions.questions}
    taught = dict.fromkeys(right, "我是小腾，很高兴为您服务。")
    before, after = (
        mark_all(Examiner(Known(tokenizer, answers=answers), tokenizer, ""), [questions], lambda n: None)[0]
        for answers in (right, taught)
    )
    found = forgetting.judge(before, after)
    assert (found.verdict, found.known, found.lost) == ("lost", 20, 20)
    assert forgetting.judge(before, before).verdict == "kept"


def test_progress_goes_through_writing_and_marking_to_its_end(tokenizer: Tokenizer) -> None:
    """It ends full, also where a question is there twice or has no room for an answer."""
    backend = Known(tokenizer, {}, {"France": "Paris"})
    long = Message("user", "x y " * backend.spec.max_positions)
    turns = [Message("user", "France?"), Message("user", "France?"), long]
    free = [Free(f"f:{n}", (turn,), "Paris", 5) for n, turn in enumerate(turns)]
    choice = Choice("c:0", "q", ("a", "b"), 0)
    sets = [QuestionSet("f", "free", list(free)), QuestionSet("c", "choice", [choice])]
    seen: list[int] = []
    mark_all(Examiner(backend, tokenizer, ""), sets, seen.append)
    assert pieces(sets) == 7  # three answers to write, four questions to mark
    assert seen == [1, 4, 5, 6, 7]


def test_every_general_answer_holds_its_keywords_and_no_other_answer_does() -> None:
    questions = [q for q in general_questions().questions if isinstance(q, Free)]
    assert len(questions) == 20
    assert {q.source.partition(":")[0] for q in questions} == {"en", "zh"}
    for question in questions:
        held = [match.contains(question.right, word) for group in question.keywords for word in group]
        assert any(held), question.source
        strangers = [
            other.source
            for other in questions
            if other is not question
            and other.source[:2] == question.source[:2]
            and all(any(match.contains(other.right, word) for word in group) for group in question.keywords)
        ]
        assert strangers == [], question.source


# Side by side


def test_figures_count_what_was_gained_and_lost() -> None:
    before = [Mark({"accuracy": right}, "A") for right in (True, True, False, False, True)] + [Mark()]
    after = [Mark({"accuracy": right}, "A") for right in (True, False, True, True, True)] + [Mark()]
    questions = [Choice(f"f:{n}", "q", ("x", "y"), 0) for n in range(6)]
    shots = (Message("user", "q"), Message("assistant", "A"))
    refused = [(7, Unfit("few_options")), (9, Unfit("few_options"))]
    found = Comparison(QuestionSet("f", "choice", list(questions), shots, refused), before, after).figures()
    assert found["measures"] == {"accuracy": [0.6, 0.8]}
    assert (found["questions"], found["asked"], found["gained"], found["lost"]) == (6, 5, 2, 1)
    assert (found["refused"], found["shots"], found["by"], found["loss"]) == (
        {"few_options": 2},
        1,
        "letter",
        None,
    )
    assert found["by_chance"] is True


def test_a_measure_is_over_the_questions_that_have_it() -> None:
    """Keywords in some records only, in either order: both measures, each over its own questions."""
    word, plain = {"contains": True}, {"contains": True, "exact": True}
    marks = [Mark(word), Mark(plain), Mark({"contains": False}), Mark({**plain, "exact": False})]
    wrong = [Mark(dict.fromkeys(mark.hits, False)) for mark in marks]
    questions = [Free(f"f:{n}", (Message("user", "q"),), "a", 5) for n in range(4)]
    for order in (slice(None), slice(None, None, -1)):
        found = Comparison(QuestionSet("f", "free", list(questions)), wrong[order], marks[order]).figures()
        assert found["measures"] == {"contains": [0.0, 0.75], "exact": [0.0, 0.5]}
        assert found["counts"] == {"contains": 4, "exact": 2}
        assert (found["asked"], found["gained"], found["lost"]) == (4, 3, 0)


def test_what_was_not_measured_is_told_by_its_records() -> None:
    marks = [Mark(missing="too_long"), Mark({"contains": True}), Mark({"contains": True}, missing="no_loss")]
    questions = [Free(f"a:b:{n}", (Message("user", "q"),), "a", 5) for n in (3, 4, 8)]
    comparison = Comparison(QuestionSet("a:b", "free", list(questions)), marks, marks)
    found = comparison.figures()
    assert found["missing"] == {"too_long": ["3"], "no_loss": ["8"]}
    assert (found["questions"], found["asked"]) == (3, 2)
    errors = [line.get("error", "") for line in comparison.lines(texts=False)]
    assert [each.partition(",")[0] for each in errors] == [
        "too long: no position is left for an answer",
        "",
        "the right answer does not fit behind the question",
    ]


def test_the_loss_is_weighed_by_tokens() -> None:
    question = Free("f:0", (Message("user", "q"),), "a", 5)
    before = [Mark({}, None, 10.0, 5), Mark({}, None, 1.0, 5)]
    after = [Mark({}, None, 2.0, 1), Mark({}, None, 1.0, 9)]
    found = Comparison(QuestionSet("f", "free", [question, question]), before, after).figures()
    assert found["loss"] == [1.1, 0.3]
    assert found["measures"] == {}


def test_without_texts_a_line_holds_none() -> None:
    question = Free("f:0", (Message("user", "secret question"),), "secret answer", 5)
    mark = Mark({"contains": True}, "secret words", 1.0, 2)
    comparison = Comparison(QuestionSet("f", "free", [question]), [mark], [mark])
    (line,) = comparison.lines(texts=False)
    assert "secret" not in str(line)
    assert line["before"] == {"contains": True, "loss": 0.5}
    assert "secret question" in str(next(comparison.lines(texts=True)))


@pytest.mark.parametrize(
    ("gained", "lost", "chance"), [(0, 0, True), (3, 0, True), (4, 0, False), (34, 1, False), (30, 20, True)]
)
def test_by_chance(gained: int, lost: int, chance: bool) -> None:
    """McNemar: (b - c)^2 / (b + c) against 3.84, the 95% quantile of chi-square with one degree."""
    assert by_chance(gained, lost) is chance
    if gained + lost:
        assert chance == ((gained - lost) ** 2 / (gained + lost) <= 3.8416)


def test_perplexity_is_e_to_the_loss() -> None:
    from tengtune.steps.evaluate import perplexity

    assert perplexity(math.log(50)) == pytest.approx(50)
    assert perplexity(None) is None
    assert perplexity(1000.0) is None
