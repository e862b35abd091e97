"""What `data convert` writes is read back as it was, or the record is named."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tengtune.data.convert import Form, convert
from tengtune.data.fault import Fault
from tengtune.data.json_value import Record
from tengtune.data.read import Outcome, Reader
from tengtune.text.conversation import Conversation, Message

TEXTS = st.one_of(
    st.sampled_from(["", " ", "q.", "[]", "{}", "null", '[["a", "b"]]', "\ud83d", "第一行\n第二行"]),
    st.text(max_size=8),
)
TRAIN = st.sampled_from([None, True, False])
REASONING = st.one_of(st.none(), st.text(min_size=1, max_size=8).filter(str.strip))
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-9, 9), TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(TEXTS, inner, max_size=2)),
    max_leaves=4,
)
NAMES = st.text(min_size=1, max_size=5).filter(str.strip)
CALLS = st.lists(
    st.fixed_dictionaries({"name": NAMES, "arguments": st.dictionaries(TEXTS, VALUES, max_size=2)}),
    min_size=1,
    max_size=2,
).map(tuple)
TOOLS = st.lists(
    st.fixed_dictionaries(
        {
            "type": st.just("function"),
            "function": st.fixed_dictionaries({"name": NAMES, "parameters": VALUES}),
        }
    ),
    max_size=2,
).map(tuple)


def messages(role: str, *parts: st.SearchStrategy[Any]) -> st.SearchStrategy[Message]:
    """Messages of a role out of their further parts (builds would fill those that are left out)."""
    return st.tuples(*parts).map(lambda values: Message(role, *values))


SYSTEM = messages("system", TEXTS, TRAIN)
QUESTION = messages("user", TEXTS, TRAIN)
ANSWER = messages("assistant", TEXTS, TRAIN, st.just(()), REASONING)
# A call's text that is only blanks is read as none.
CALL = messages("assistant", TEXTS.map(lambda text: text if text.strip() else ""), TRAIN, CALLS, REASONING)
RESULT = messages("tool", TEXTS)
BLOCKS = st.one_of(
    st.tuples(QUESTION, ANSWER),
    st.tuples(QUESTION, CALL, RESULT, ANSWER),
    st.tuples(QUESTION),
    st.tuples(ANSWER),
)
TALKS = st.one_of(
    st.builds(
        lambda system, blocks, tools: Conversation((*system, *(m for block in blocks for m in block)), tools),
        st.one_of(st.just(()), st.tuples(SYSTEM)),
        st.lists(BLOCKS, min_size=1, max_size=3),
        st.one_of(st.just(()), TOOLS),
    ),
    st.builds(lambda text: Conversation((Message("text", text),)), TEXTS),
)
PLAIN_TALKS = st.builds(
    lambda system, pairs: Conversation((*system, *(Message(r, t) for p in pairs for r, t in p))),
    st.one_of(st.just(()), st.tuples(messages("system", st.text(min_size=1, max_size=8)))),
    st.lists(
        st.tuples(st.tuples(st.just("user"), TEXTS), st.tuples(st.just("assistant"), TEXTS)),
        min_size=1,
        max_size=3,
    ),
)


def converted(talk: Conversation, form: Form, as_list: bool) -> tuple[list[Any], list[Fault]]:
    """The records that are written of a conversation, and the faults that are told."""
    stream = io.StringIO()
    faults = list(convert([Outcome("in", Record({}, 7, 1), [talk], [])], form, stream, as_list))
    text = stream.getvalue()
    return json.loads(text) if as_list else [json.loads(line) for line in text.split("\n") if line], faults


def read_back(record: Any) -> Conversation:
    """What a record that was written holds."""
    outcome = Reader({}).outcome(Record(record, 0, 1), "")
    assert [fault.code for fault in outcome.faults if fault.dropped] == []
    (talk,) = outcome.conversations
    return talk


@pytest.mark.parametrize("form", ["messages", "conversation", "alpaca"])
@given(talk=TALKS, as_list=st.booleans())
def test_all_is_read_back_or_the_record_is_named(form: Form, talk: Conversation, as_list: bool) -> None:
    records, faults = converted(talk, form, as_list)
    if faults:
        assert [(fault.record, fault.code, fault.dropped) for fault in faults] == [(7, "no_place", True)]
        assert records == []
        return
    back = read_back(records[0])
    assert (back.messages, back.tools) == (talk.messages, talk.tools)


@given(talk=TALKS)
def test_messages_has_a_place_for_everything(talk: Conversation) -> None:
    assert converted(talk, "messages", True)[1] == []


@pytest.mark.parametrize("form", ["conversation", "alpaca"])
@given(talk=PLAIN_TALKS)
def test_what_every_form_can_hold_is_written(form: Form, talk: Conversation) -> None:
    records, faults = converted(talk, form, True)
    assert (len(records), faults) == (1, [])


def test_a_call_that_is_not_trained_stays_so() -> None:
    call = Message("assistant", "", False, ({"name": "f", "arguments": {}},))
    talk = Conversation((Message("user", "q"), call, Message("tool", "7"), Message("assistant", "a")))
    (record,), _ = converted(talk, "conversation", True)
    assert [turn.get("train") for turn in record["conversations"]] == [None, False, None, None]


@pytest.mark.parametrize(
    "talk",
    [
        Conversation((Message("system", ""), Message("user", "q"), Message("assistant", "a"))),
        Conversation((Message("system", "s", False), Message("user", "q"), Message("assistant", "a"))),
        Conversation(
            (Message("user", "q"), Message("assistant", "a")),
            ({"type": "function", "function": {"name": "f"}},),
        ),
    ],
    ids=["an empty system turn", "a mark on the system turn", "tools"],
)
def test_alpaca_names_what_it_cannot_hold(talk: Conversation) -> None:
    records, faults = converted(talk, "alpaca", True)
    assert (records, [fault.code for fault in faults]) == ([], ["no_place"])
