"""ChatML: ids and masks against the written-out form, for both label policies."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import tiny

from tengtune.text import chatml
from tengtune.text.conversation import Conversation, Example, Message
from tengtune.text.template import Template
from tengtune.text.tokenizer import Tokenizer, open_tokenizer

TYPED = st.sampled_from(["<|im_end|>\n<|im_start|>system\n", "<think>", "<|endoftext|>", "\n\n", " ", "你好"])
CONTENT = st.lists(st.one_of(st.text("ab \n{}<|>é你", max_size=8), TYPED), max_size=4).map("".join)
MESSAGE = st.tuples(
    st.sampled_from(["user", "assistant"]), CONTENT, st.sampled_from([None, True, False])
).map(lambda parts: Message(*parts))
SYSTEM = CONTENT.map(lambda content: Message("system", content))
TALK = st.tuples(st.lists(SYSTEM, max_size=1), st.lists(MESSAGE, max_size=6)).map(
    lambda parts: Conversation((*parts[0], *parts[1]), source="x:0")
)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return open_tokenizer(tiny.tiny_tokenizer(tmp_path_factory.mktemp("tiny")))


def trained_text(example: Example, tokenizer: Tokenizer) -> list[str]:
    """The text of every run of trained tokens."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], example.train.astype(np.int8), [0]))))
    return [tokenizer.decode(example.ids[a:b].tolist()) for a, b in edges.reshape(-1, 2)]


@given(talk=TALK)
@settings(max_examples=200, deadline=None)
def test_assistant_writes_the_template_and_trains_answers_only(
    tokenizer: Tokenizer, talk: Conversation
) -> None:
    example = chatml.render(talk, tokenizer, "assistant", system="")
    written = "".join(f"<|im_start|>{m.role}\n{m.content}<|im_end|>\n" for m in talk.messages)
    assert tokenizer.decode(example.ids.tolist()) == written
    answers = [m for m in talk.messages if m.role == "assistant" and m.train is not False]
    assert trained_text(example, tokenizer) == [f"{m.content}<|im_end|>" for m in answers]
    # Control ids are the two of each turn and no other, whatever was typed.
    control = [number for number in example.ids.tolist() if number >= tiny.ENDOFTEXT]
    assert control == [tiny.IM_START, tiny.IM_END] * len(talk.messages)
    assert example.source == "x:0"


@given(talk=TALK)
@settings(max_examples=200, deadline=None)
def test_qwen_trains_every_frame_and_answer(tokenizer: Tokenizer, talk: Conversation) -> None:
    """Written out turn by turn, as QwenLM's finetune.py labels them."""
    example = chatml.render(talk, tokenizer, "qwen", system="")
    turns = list(chatml.without_leading_answer(talk.messages))
    ids: list[int] = []
    train: list[bool] = []
    newline = list(tokenizer.newline_ids)
    for message in turns:
        role, content = tokenizer.encode(message.role), tokenizer.encode_control(message.content)
        learned = message.role == "assistant" and message.train is not False
        ids += [tiny.IM_START, *role, *newline, *content, tiny.IM_END, *newline]
        train += [True] + [False] * (len(role) + len(newline))
        train += [learned] * len(content) + [True] * (1 + len(newline))
    assert example.ids.tolist() == ids
    assert example.train.tolist() == train


@given(talks=st.lists(TALK, max_size=5), policy=st.sampled_from(["assistant", "qwen"]))
@settings(max_examples=60, deadline=None)
def test_many_at_once_are_the_same_as_one_by_one(
    tokenizer: Tokenizer, talks: list[Conversation], policy: chatml.LabelPolicy
) -> None:
    for one, many in zip(talks, chatml.render_many(talks, tokenizer, policy), strict=True):
        alone = chatml.render(one, tokenizer, policy)
        np.testing.assert_array_equal(alone.ids, many.ids)
        np.testing.assert_array_equal(alone.train, many.train)
        assert many.ids.dtype == np.int32
        assert many.train.dtype == np.bool_


@given(question=CONTENT, answer=CONTENT, system=st.sampled_from(["", "Be brief."]))
@settings(max_examples=80, deadline=None)
def test_a_prompt_is_how_the_training_example_begins(
    tokenizer: Tokenizer, question: str, answer: str, system: str
) -> None:
    asked = (Message("user", question),)
    prompt = chatml.prompt(asked, tokenizer, system)
    talk = Conversation((*asked, Message("assistant", answer)))
    example = chatml.render(talk, tokenizer, "assistant", system)
    assert example.ids[: len(prompt)].tolist() == prompt
    assert not example.train[: len(prompt)].any()
    assert chatml.first_prompt(example, tokenizer) == prompt
    assert chatml.first_prompt(chatml.render(talk, tokenizer, "qwen", system), tokenizer)[-3:] == prompt[-3:]


def test_without_an_answer_the_whole_is_the_prompt(tokenizer: Tokenizer) -> None:
    example = chatml.render(Conversation((Message("user", "hi"),)), tokenizer, "assistant")
    assert chatml.first_prompt(example, tokenizer) == example.ids.tolist()
    nothing = Example(np.zeros(0, np.int32), np.zeros(0, np.bool_))
    assert chatml.first_prompt(nothing, tokenizer) == []


@pytest.mark.parametrize(
    ("given_system", "policy", "own", "expected"),
    [
        (None, "assistant", "The template's.", "The template's."),
        (None, "assistant", "", ""),
        (None, "qwen", "", "You are a helpful assistant."),
        ("", "assistant", "The template's.", ""),
        ("Be brief.", "qwen", "", "Be brief."),
    ],
)
def test_default_system(
    given_system: str | None, policy: chatml.LabelPolicy, own: str, expected: str
) -> None:
    assert chatml.default_system(given_system, policy, Template(own)) == expected


def test_the_conversations_own_system_turn_wins(tokenizer: Tokenizer) -> None:
    own = Conversation((Message("system", "Own."), Message("user", "a"), Message("assistant", "b")))
    text = tokenizer.decode(chatml.render(own, tokenizer, "assistant", "Default.").ids.tolist())
    assert text.startswith("<|im_start|>system\nOwn.<|im_end|>\n")
    assert "Default." not in text
    without = Conversation(own.messages[1:])
    text = tokenizer.decode(chatml.render(without, tokenizer, "assistant", "Default.").ids.tolist())
    assert text.startswith("<|im_start|>system\nDefault.<|im_end|>\n")


def test_the_users_line_break_joins_the_one_after_the_role_but_the_answers_does_not(tmp_path: Path) -> None:
    """A chat template's output is encoded in one go; an answer is written token by token."""
    tokenizer = open_tokenizer(tiny.tiny_tokenizer(tmp_path))
    talk = Conversation((Message("user", "\nQ"), Message("assistant", "\nA")))
    ids = chatml.render(talk, tokenizer, "assistant", system="").ids.tolist()
    user, answer = tokenizer.encode("user\n\nQ"), tokenizer.encode("assistant\n") + tokenizer.encode("\nA")
    assert ids == [
        *(tiny.IM_START, *user, tiny.IM_END, 198),
        *(tiny.IM_START, *answer, tiny.IM_END, 198),
    ]
