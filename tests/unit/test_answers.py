"""Answers: cut at stop strings, loops told, sampling chosen, questions read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tengtune.answer.choice import choose
from tengtune.answer.ending import StopText, loop, shown
from tengtune.answer.questions import NoQuestion, conversation, parse
from tengtune.backends.base import Sampling
from tengtune.text.conversation import Message
from tengtune.ui.problems import Problem

NONE_ASKED: dict[str, float | None] = {"temperature": None, "top_p": None, "top_k": None}


def cut(pieces: list[str], stops: list[str]) -> tuple[str, bool]:
    stop, said = StopText(stops), ""
    for piece in pieces:
        said += stop.put(piece)
        if stop.hit:
            return said, True
    return said + stop.end(), False


def letter_by_letter(text: str, stops: list[str]) -> tuple[str, bool]:
    """The rule itself: read on until some stop string is complete, then take it away."""
    for end in range(1, len(text) + 1):
        ended = [stop for stop in stops if text[:end].endswith(stop)]
        if ended:
            return text[: end - max(map(len, ended))], True
    return text, False


@given(
    st.lists(st.text("ab", max_size=4), max_size=8),
    st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
)
def test_a_cut_depends_on_the_text_alone(pieces: list[str], stops: list[str]) -> None:
    assert cut(pieces, stops) == letter_by_letter("".join(pieces), stops)


@pytest.mark.parametrize(
    ("pieces", "stops", "expected"),
    [
        (["one\n", "\ntwo"], ["\n\n"], ("one", True)),
        (["one\n", "two\n"], ["\n\n"], ("one\ntwo\n", False)),
        (["问：你好 答", "：在"], ["答：", "再见"], ("问：你好 ", True)),
        (["all of it"], [], ("all of it", False)),
    ],
)
def test_stop_strings(pieces: list[str], stops: list[str], expected: tuple[str, bool]) -> None:
    assert cut(pieces, stops) == expected


def test_what_cannot_be_a_stop_comes_at_once() -> None:
    stop = StopText(["END"])
    assert [stop.put(piece) for piece in ("a", "bE", "N", "x", "E", "ND", "y")][:6] == [
        "a",
        "b",
        "",
        "ENx",
        "",
        "",
    ]
    assert stop.hit


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ([1, 2, 3] + [7] * 12, (1, 12)),
        ([9] + [1, 2, 3, 4, 5] * 4, (5, 4)),
        ([1, 2, 3, 4] * 2 + [1, 2, 3], None),
        ([5] * 6, None),
        (list(range(100)), None),
        ([*[1, 2] * 20, 3], None),
        ([], None),
    ],
)
def test_loops(ids: list[int], expected: tuple[int, int] | None) -> None:
    assert loop(ids) == expected


@pytest.mark.parametrize(
    ("text", "kept", "times"),
    [
        ("Well: " + "the same phrase again, " * 9 + "the same", "Well: the same phrase again,", 9),
        ("=" * 200, "=", 200),
        ("红灯亮了。" + "请先检查滤网，再重新启动设备。" * 7, "红灯亮了。请先检查滤网，再重新启动设备。", 7),
        ("It is red. " + "The lamp is red. " * 30, "It is red. The lamp is red.", 30),
    ],
)
def test_a_loop_is_cut_for_a_table(text: str, kept: str, times: int) -> None:
    found = shown(text)
    assert found.partition(" …")[0].strip() == kept
    assert found.endswith(f" … (loops: this stands there {times} times)")


@pytest.mark.parametrize(
    "text",
    [
        "The lamp is red.",
        "ha ha ha ha",  # too short to fill a table
        "1. a line of text\n2. a line of text\n3. a line of text",  # counted: not the same
        "",
    ],
)
def test_what_is_no_loop_is_shown_whole(text: str) -> None:
    assert shown(f"  {text}\n") == text


@pytest.mark.parametrize(
    ("written", "asked", "expected", "origin"),
    [
        (None, {}, Sampling(), "no generation_config.json"),
        ({"temperature": 0.6}, {}, Sampling(), "asks for no sampling"),
        (
            {"do_sample": True, "temperature": 0.7, "top_p": 0.8, "top_k": 20},
            {},
            Sampling(0.7, 0.8, 20),
            "from its",
        ),
        ({"do_sample": True, "top_p": 0.8}, {}, Sampling(1.0, 0.8, 0), "from its"),
        ({"do_sample": True, "top_p": 0.8}, {"temperature": 0.0}, Sampling(0.0, 0.8, 0), "command line"),
        ({"repetition_penalty": 1.1}, {}, Sampling(repetition_penalty=1.1), "asks for no sampling"),
        (
            {"do_sample": True, "top_k": 20, "repetition_penalty": 1.05},
            {"temperature": 0.0},
            Sampling(0.0, 1.0, 20, repetition_penalty=1.05),
            "command line",
        ),
        (None, {"top_p": 0.5}, Sampling(1.0, 0.5, 0), "command line"),
        (None, {"temperature": 0.3, "top_k": 4}, Sampling(0.3, 1.0, 4), "command line"),
    ],
)
def test_sampling(
    tmp_path: Path, written: Any, asked: dict[str, float], expected: Sampling, origin: str
) -> None:
    if written is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(written))
    chosen, words = choose(tmp_path, {**NONE_ASKED, **asked})
    assert chosen == expected
    assert origin in words


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{",
        '{"do_sample": true, "top_p": 7}',
        '{"do_sample": true, "top_k": "x"}',
        '{"repetition_penalty": 0}',
    ],
)
def test_a_generation_config_that_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "generation_config.json").write_text(text)
    with pytest.raises(Problem, match=r"predict\.bad_generation_config"):
        choose(tmp_path, NONE_ASKED)


USER = Message("user", "hi")


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({"prompt": "hi"}, [USER]),
        ({"prompt": "hi", "system": "be"}, [Message("system", "be"), USER]),
        ({"instruction": "hi", "output": "x"}, [USER]),
        ({"instruction": "Sum.", "input": "1 2"}, [Message("user", "Sum: 1 2")]),
        ({"messages": [{"role": "user", "content": "hi"}]}, [USER]),
        (
            {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "x"}]},
            [USER],
        ),
    ],
)
def test_questions(record: dict[str, Any], expected: list[Message]) -> None:
    assert conversation(record) == expected


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[1]",
        "{}",
        '{"prompt": 1}',
        '{"prompt": " "}',
        '{"messages": "x"}',
        '{"messages": []}',
        '{"messages": [{"role": "tool", "content": "x"}]}',
        '{"messages": [{"role": "assistant", "content": "x"}]}',
        '{"messages": [{"role": "user", "content": 1}, {"role": "user", "content": "x"}]}',
        "[" * 100_000,
    ],
)
def test_what_is_no_question(line: str) -> None:
    with pytest.raises(NoQuestion):
        conversation(parse(line))
