"""Rendering against the reference's own output, token by token, with the real first-generation vocabulary."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.fetch import tokenizer_folder

from tengtune.text import chatml
from tengtune.text.conversation import Conversation, Message
from tengtune.text.tokenizer import Tokenizer, open_tokenizer

GOLDEN = Path(__file__).parent / "preprocess"
IGNORED = -100


@pytest.fixture(scope="module")
def qwen1() -> Tokenizer:
    return open_tokenizer(tokenizer_folder("qwen1"))


def conversation(turns: list[dict[str, str]]) -> Conversation:
    return Conversation(tuple(Message(turn["from"], turn["value"]) for turn in turns))


def test_policy_qwen_equals_the_reference_on_200_conversations(qwen1: Tokenizer) -> None:
    records: list[dict[str, Any]] = json.loads((GOLDEN / "conversations.json").read_text("utf-8"))
    expected = np.load(GOLDEN / "conversations.npz")
    assert len(records) == 200
    examples = chatml.render_many([conversation(r["conversations"]) for r in records], qwen1, "qwen")
    for i, (record, example) in enumerate(zip(records, examples, strict=True)):
        columns = expected["input_ids"].shape[1]
        ids = np.full(columns, 151643)  # the reference pads with endoftext ...
        labels = np.full(columns, IGNORED)
        kept = min(len(example.ids), columns)  # ... and cuts
        ids[:kept] = example.ids[:kept]
        labels[:kept] = np.where(example.train, example.ids, IGNORED)[:kept]
        assert len(example.ids) == expected["full_length"][i], (i, record["tag"])
        np.testing.assert_array_equal(ids, expected["input_ids"][i], err_msg=f"{i} {record['tag']}")
        np.testing.assert_array_equal(labels, expected["labels"][i], err_msg=f"{i} {record['tag']}")


# ids and trained positions of "Give three tips for staying healthy." / "Eat well.", as measured on
# mindformers' qwen_preprocess.py
IDS = [
    *(151644, 8948, 198, 2610, 525, 264, 10950, 17847, 13, 151645, 198),
    *(151644, 872, 198, 35127, 2326, 10414, 369, 19429, 9314, 13, 151645, 198),
    *(151644, 77091, 198, 88611, 1632, 13, 151645, 198),
]
QUESTION = Conversation(
    (Message("user", "Give three tips for staying healthy."), Message("assistant", "Eat well."))
)


def test_the_two_policies_differ_in_the_mask_only(qwen1: Tokenizer) -> None:
    reference = chatml.render(QUESTION, qwen1, "qwen")
    assert reference.ids.tolist() == IDS
    assert np.flatnonzero(reference.train).tolist() == [0, 9, 10, 11, 21, 22, 23, 26, 27, 28, 29, 30]
    # By hand: "Eat", " well", "." are 26 to 28, the <|im_end|> that closes them is 29.
    ours = chatml.render(QUESTION, qwen1, "assistant")
    assert ours.ids.tolist() == IDS
    assert np.flatnonzero(ours.train).tolist() == [26, 27, 28, 29]


def test_policy_assistant_by_hand_over_two_turns(qwen1: Tokenizer) -> None:
    """Put together by hand from ids that stand in the golden vector and in Qwen's vocabulary."""
    system, user, assistant = 8948, 872, 77091
    start, end, newline = 151644, 151645, 198
    hi, there, eat, well = 13048, 1052, 88611, 1632  # "Hi", " there", "Eat", " well"
    talk = Conversation(
        (
            Message("system", "Eat"),
            Message("user", "Hi there"),
            Message("assistant", "Hi", train=False),
            Message("user", "Eat well"),
            Message("assistant", "Eat"),
        )
    )
    example = chatml.render(talk, qwen1, "assistant")
    expected = [
        *(start, system, newline, eat, end, newline),
        *(start, user, newline, hi, there, end, newline),
        *(start, assistant, newline, hi, end, newline),
        *(start, user, newline, eat, well, end, newline),
        *(start, assistant, newline, eat, end, newline),
    ]
    assert example.ids.tolist() == expected
    assert example.ids[example.train].tolist() == [eat, end]
    assert np.flatnonzero(example.train).tolist() == [len(expected) - 3, len(expected) - 2]


def test_typed_control_text_is_text_under_assistant_and_parsed_under_qwen(qwen1: Tokenizer) -> None:
    typed = Conversation((Message("user", "<|im_end|>"), Message("assistant", "<|endoftext|>")))
    plain = chatml.render(typed, qwen1, "assistant", system="")
    assert 151643 not in plain.ids
    assert plain.ids.tolist().count(151645) == 2  # one for each turn, none typed
    # `<|im_end|>` as plain text, as measured: [27, 91, 318, 6213, 91, 29]
    assert plain.ids.tolist()[3:9] == [27, 91, 318, 6213, 91, 29]
    parsed = chatml.render(typed, qwen1, "qwen", system="")
    assert 151643 in parsed.ids
    assert parsed.ids.tolist().count(151645) == 3
