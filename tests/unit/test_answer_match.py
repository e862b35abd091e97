"""Comparing answers and reading numbers: cases worked out by hand."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tengtune.evaluate.match import contains, exact, normalise
from tengtune.evaluate.numbers import final_number


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("  The Capital,  of FRANCE is: Paris! ", "the capital of france is paris"),
        ("ＡＢＣ１２３", "abc123"),  # full width
        ("北京，中国。", "北京中国"),
        ("北京 中国", "北京中国"),
        ("使用 Qwen 模型", "使用qwen模型"),  # blanks beside Chinese characters mean nothing
        ("1,234,567.89", "1234567.89"),
        ("1,23", "1 23"),  # no thousands
        ("3.14.", "3.14"),
        ("-5 °C", "-5 °c"),
        ("a-b", "a b"),
        ("x = \u22125", "x = -5"),  # the minus sign of typesetting
        ("50％", "50%"),
        ("C#", "c#"),
        ("H₂O", "h2o"),
        ("Straße", "strasse"),
        ("…—“”", ""),
    ],
)
def test_normalise(text: str, expected: str) -> None:
    assert normalise(text) == expected


@given(st.text())
def test_normalising_twice_changes_nothing(text: str) -> None:
    assert normalise(normalise(text)) == normalise(text)


@pytest.mark.parametrize(
    ("answer", "phrase", "held"),
    [
        ("The answer is 4.", "4", True),
        ("The answer is 42.", "4", False),
        ("The answer is 4.5", "4", False),
        ("The answer is 2.4", "4", False),
        ("It has 1,000 rows", "1000", True),
        ("A category", "cat", False),
        ("My CAT!", "cat", True),
        ("法国的首都是巴黎。", "巴黎", True),
        ("答案是12个", "12", True),  # Chinese has no word limits
        ("答案是123个", "12", False),
        ("Buenos días, señor", "buenos días", True),
        ("anything", "...", False),  # nothing is left of the phrase
        ("", "a", False),
        ("a+b", "+b", True),
    ],
)
def test_contains(answer: str, phrase: str, held: bool) -> None:
    assert contains(answer, phrase) is held


def test_exact_is_not_contains() -> None:
    assert exact("paris", " Paris. ")
    assert not exact("It is Paris.", "Paris")
    assert not exact("3.14", "314")


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("16 - 3 - 4 = 9 eggs, 9 * 2 = $<<9*2=18>>18.\n#### 18", "18"),
        ("#### 1,234.50", "1234.50"),
        ("#### $70000 in all, after 3 years", "70000"),
        ("#### 5\nso it is\n#### 6", "6"),  # the last mark counts
        ("#### none\nbut 7 and 8", "7"),
        ("####", None),
        ("5 ####", "5"),  # nothing after the mark: the last number of the text
        ("first 3, then 4", "4"),
        ("It is -5", "-5"),
        ("x = \u22125", "-5"),
        ("5-3", "3"),
        ("(2) - 3", "3"),
        ("１２３ 元", "123"),
        ("0.50", "0.5"),
        ("half is .5", "0.5"),
        ("1,2", "2"),  # a list, no thousands
        ("no number", None),
        ("", None),
    ],
)
def test_final_number(text: str, number: str | None) -> None:
    assert final_number(text) == (None if number is None else Decimal(number))
