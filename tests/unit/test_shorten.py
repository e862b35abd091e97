"""What is longer than a row: split at turns, cut or dropped; never a sample without an answer."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import tiny

from tengtune.data.judge import Judge
from tengtune.data.render import Batch, Renderer, Style
from tengtune.data.shorten import fit, last_labels, split_plain
from tengtune.recipe import TooLong
from tengtune.text.chatml import render
from tengtune.text.conversation import Conversation, Example, Message
from tengtune.text.template import Template
from tengtune.text.tokenizer import open_tokenizer


def example(mask: str) -> Example:
    """A document with a token for each character; 1 is a label."""
    return Example(
        np.arange(100, 100 + len(mask), dtype=np.int32), np.array([c == "1" for c in mask], np.bool_), "f:0"
    )


@pytest.mark.parametrize(
    ("mask", "seq_len", "too_long", "kept", "outcome"),
    [
        ("0011", 8, "cut", "0011", "whole"),
        ("00110", 8, "cut", "0011", "whole"),  # the tail teaches nothing
        ("0011000000", 4, "cut", "0011", "whole"),  # ... so that nothing is lost here
        ("0011000000", 4, "drop", "0011", "whole"),
        ("00110011", 6, "cut", "0011", "cut"),
        ("00110011", 7, "cut", "0011001", "cut"),
        ("00110011", 7, "drop", None, "too_long"),
        ("00000011", 6, "cut", None, "no_room"),
        ("00000011", 7, "cut", "0000001", "cut"),
        ("0000", 8, "cut", None, "no_label"),
        ("1000", 8, "cut", None, "no_label"),  # the first token is nobody's label
        ("1100", 8, "cut", "01", "whole"),
        ("", 8, "cut", None, "no_label"),
    ],
)
def test_fit(mask: str, seq_len: int, too_long: str, kept: str | None, outcome: str) -> None:
    given_example = example(mask)
    result, found = fit(given_example, seq_len, too_long)  # type: ignore[arg-type]
    assert found == outcome
    if kept is None:
        assert result is None
    else:
        assert result is not None
        assert result.train.tolist() == [c == "1" for c in kept]
        assert result.ids.tolist() == list(range(100, 100 + len(kept)))
        assert result.source == "f:0"
    assert given_example.train.tolist() == [c == "1" for c in mask]  # left as it was


@given(masks=st.lists(st.text("01", max_size=8), max_size=8))
@settings(max_examples=200, deadline=None)
def test_the_last_label_of_each_document(masks: list[str]) -> None:
    train = np.array([c == "1" for c in "".join(masks)], np.bool_)
    starts = np.cumsum([0, *map(len, masks)]).astype(np.int64)
    assert last_labels(train, starts).tolist() == [mask.rfind("1") for mask in masks]


@pytest.fixture(scope="module")
def style(tmp_path_factory: pytest.TempPathFactory) -> Style:
    tokenizer = open_tokenizer(tiny.tiny_tokenizer(tmp_path_factory.mktemp("tiny")))
    return Style(tokenizer, Template("", tools=True), "assistant", "")


def made(
    style: Style, talks: list[Conversation], seq_len: int, too_long: TooLong
) -> tuple[list[Example], list[tuple[str, dict[str, int]]]]:
    """The documents of a batch, and the codes and values of its faults."""
    plain = talks[0].messages[0].role == "text"
    batch = Batch("f", plain, talks, list(range(len(talks))), [None] * len(talks))
    done = Renderer(style, Judge("assistant", style.tokenizer.control), seq_len, too_long)(batch)
    ends = np.cumsum(done.lengths)
    documents = [
        Example(done.ids[end - n : end], done.train[end - n : end], str(record))
        for n, end, record in zip(done.lengths, ends, done.records, strict=True)
    ]
    assert ends[-1:].tolist() == [len(done.ids)] * bool(len(ends))
    return documents, [(fault.code, fault.values) for fault in done.faults]


WORDS = st.text("ab 你好", min_size=1, max_size=24).map(lambda text: text.strip() or "x")
EXCHANGE = st.tuples(WORDS, WORDS)
TALK = st.tuples(st.booleans(), st.lists(EXCHANGE, min_size=1, max_size=6))


def talk_of(parts: tuple[bool, list[tuple[str, str]]]) -> Conversation:
    system, exchanges = parts
    turns = [
        Message(role, text)
        for each in exchanges
        for role, text in zip(("user", "assistant"), each, strict=True)
    ]
    return Conversation(((Message("system", "Be brief."),) if system else ()) + tuple(turns), source="f:0")


@given(
    talks=st.lists(TALK, min_size=1, max_size=4),
    seq_len=st.integers(8, 80),
    too_long=st.sampled_from(["cut", "drop"]),
)
@settings(max_examples=150, deadline=None)
def test_a_batch_is_its_conversations_one_by_one(
    style: Style, talks: list[tuple[bool, list[tuple[str, str]]]], seq_len: int, too_long: TooLong
) -> None:
    """All at once, as arrays, and one after the other by `fit`."""
    conversations = [talk_of(talk) for talk in talks]
    expected = []
    for number, talk in enumerate(conversations):
        example, _ = fit(render(talk, style.tokenizer, "assistant", ""), seq_len, too_long)
        expected += [] if example is None else [(str(number), example.ids.tolist(), example.train.tolist())]
    documents, _ = made(style, conversations, seq_len, too_long)
    assert [(d.source, d.ids.tolist(), d.train.tolist()) for d in documents] == expected


@given(parts=TALK, seq_len=st.integers(12, 120))
@settings(max_examples=200, deadline=None)
def test_split_parts_hold_every_exchange_once_and_each_has_an_answer(
    style: Style, parts: tuple[bool, list[tuple[str, str]]], seq_len: int
) -> None:
    talk = talk_of(parts)
    documents, faults = made(style, [talk], seq_len, "split")
    assert all(len(d.ids) <= seq_len and d.train.any() and d.train[-1] for d in documents)
    written = [style.tokenizer.decode(d.ids.tolist()) for d in documents]
    frame = "<|im_start|>system\nBe brief.<|im_end|>\n" if parts[0] else ""
    assert all(text.startswith(f"{frame}<|im_start|>user\n") for text in written)
    whole = "".join(text.removeprefix(frame) + "\n" for text in written)
    codes = [code for code, _ in faults]
    if codes in ([], ["split"]):  # nothing was lost: the parts are the conversation again
        assert whole == "".join(
            f"<|im_start|>{m.role}\n{m.content}<|im_end|>\n" for m in talk.messages[parts[0] :]
        )
    else:
        assert codes in (["split_with_loss"], ["cut"], ["no_room"])
        assert bool(documents) == (codes != ["no_room"])


def test_a_split_keeps_the_order_and_says_how_many_parts(style: Style) -> None:
    talk = talk_of((True, [(f"question {i}", f"answer {i}") for i in range(6)]))
    documents, faults = made(style, [talk], 60, "split")
    texts = [style.tokenizer.decode(d.ids.tolist()) for d in documents]
    assert len(texts) > 1
    assert [i for text in texts for i in range(6) if f"answer {i}" in text] == list(range(6))
    ((code, values),) = faults
    assert (code, values["parts"], values["cut"], values["lost"]) == ("split", len(texts), 0, 0)


def test_a_single_exchange_too_long_among_others_is_cut_or_left_out_and_counted(style: Style) -> None:
    long = "b " * 100
    exchanges = [("q", "a"), ("q", long), (long, "a"), ("q", "z")]
    documents, faults = made(style, [talk_of((False, exchanges))], 40, "split")
    assert len(documents) == 3
    ((code, values),) = faults
    assert (code, values["parts"], values["cut"], values["lost"]) == ("split_with_loss", 3, 1, 1)


def test_tool_calls_and_their_results_are_not_parted(style: Style) -> None:
    call = {"name": "f", "arguments": {}}
    exchange = (
        Message("user", "q"),
        Message("assistant", "", tool_calls=(call,)),
        Message("tool", "r"),
        Message("assistant", "a"),
    )
    one = len(render(Conversation(exchange), style.tokenizer, "assistant", "", style.template).ids)
    documents, faults = made(style, [Conversation(exchange * 3)], 2 * one + 1, "split")
    texts = [style.tokenizer.decode(d.ids.tolist()) for d in documents]
    assert [text.count("<|im_start|>user\nq") for text in texts] == [2, 1]
    assert [code for code, _ in faults] == ["split"]


@pytest.mark.parametrize("length", [1, 2, 7, 8, 9, 15, 16, 50])
def test_plain_text_in_pieces_trains_every_token_but_the_first_once(length: int) -> None:
    example = Example(np.arange(length, dtype=np.int32), np.ones(length, np.bool_))
    pieces = split_plain(example, 8)
    assert all(len(piece.ids) <= 8 for piece in pieces)
    labels = [token for piece in pieces for token in piece.ids[1:].tolist()]
    assert labels == list(range(1, length))


@pytest.mark.parametrize("too_long", ["cut", "split"])
def test_a_long_plain_text_is_kept_whole_in_pieces(style: Style, too_long: TooLong) -> None:
    text = "word " * 40
    documents, faults = made(style, [Conversation((Message("text", text),))], 16, too_long)
    ids = [token for d in documents for token in d.ids[1:].tolist()]
    assert style.tokenizer.decode([int(documents[0].ids[0]), *ids]) == text + "<|endoftext|>"
    assert [(code, values["parts"]) for code, values in faults] == [("split", len(documents))]
    assert made(style, [Conversation((Message("text", text),))], 16, "drop") == (
        [],
        [("too_long", {"tokens": len(ids) + 1, "seq_len": 16})],
    )
