"""Chat templates: our rendering against transformers' apply_chat_template, text for text and id for id.

The recorded cases are two Qwen3 templates'; the rest is rendered here by transformers itself, with templates
that are fetched (see tests/fetch.py) or, where they are one line, written below.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fetch import tokenizer_folder
from transformers import PreTrainedTokenizerFast

from tengtune.text import chatml, template
from tengtune.text.conversation import Conversation, Message
from tengtune.text.template import Template
from tengtune.text.tokenizer import Tokenizer, open_tokenizer
from tengtune.ui.problems import Problem

GOLDEN = Path(__file__).parent / "preprocess" / "chat_template.json"
CASES: list[dict[str, Any]] = json.loads(GOLDEN.read_text("utf-8"))
QWEN3 = Template(system="", tools=True, thinking=True)
# What the readers refuse or mend before anything is rendered: a role nobody knows, contents that are no text.
READERS_CASES = {
    "unknown_role_ignored",
    "user_content_null",
    "content_is_parts",
    "content_missing",
    "assistant_content_null_with_tool_call",
    "number_content",
    "empty_messages",
}
# Here a user's or an assistant's plain text holds control-token text, which stays text on purpose.
TYPED_CONTROL = {"injected_special", "tool_response_as_user", "think_unclosed"}
QWEN2_TEMPLATE = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SMOLLM2_SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
OWN = {
    "qwen2": QWEN2_TEMPLATE,
    "smollm2": QWEN2_TEMPLATE.replace("You are a helpful assistant.", SMOLLM2_SYSTEM),
}
# Qwen1.5's first one has no full stop, and leaves the last turn open unless an answer is asked for.
QWEN15_TEMPLATE = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful assistant<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content']}}"
    "{% if (loop.last and add_generation_prompt) or not loop.last %}"
    "{{ '<|im_end|>' + '\n'}}{% endif %}{% endfor %}"
    "{% if add_generation_prompt and messages[-1]['role'] != 'assistant' %}"
    "{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return open_tokenizer(tokenizer_folder("qwen3"))


@pytest.fixture(scope="module")
def library() -> PreTrainedTokenizerFast:
    file = tokenizer_folder("qwen3") / "tokenizer.json"
    return PreTrainedTokenizerFast(tokenizer_file=str(file))  # type: ignore[no-untyped-call]


def message(turn: dict[str, Any]) -> Message:
    calls = tuple(turn.get("tool_calls") or ())
    return Message(turn["role"], turn["content"], None, calls, turn.get("reasoning_content"))


def conversation(case: dict[str, Any]) -> Conversation:
    return Conversation(tuple(map(message, case["messages"])), tuple(case["tools"] or ()))


def ids_of(case: dict[str, Any], tokenizer: Tokenizer, kind: Template, thinking: bool) -> list[int]:
    talk = conversation(case)
    if case["add_generation_prompt"]:
        return chatml.prompt(
            talk.messages, tokenizer, kind.system, kind, tools=talk.tools, enable_thinking=thinking
        )
    example = chatml.render(talk, tokenizer, "assistant", kind.system, kind)
    return example.ids.tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["tag"])
def test_recorded(case: dict[str, Any], tokenizer: Tokenizer) -> None:
    if case["tag"] in READERS_CASES:
        assert (
            any(
                turn["role"] not in ("system", "user", "assistant", "tool")
                or not isinstance(turn.get("content"), str)
                for turn in case["messages"]
            )
            or not case["messages"]
        )
        return
    # The second template is Qwen3's with thinking switched off for good.
    for recorded, thinking in (("qwen3", case["enable_thinking"] is not False), ("qwen3_nonthinking", False)):
        ids = ids_of(case, tokenizer, QWEN3, thinking)
        assert tokenizer.decode(ids) == case[recorded]["text"]
        if case["tag"] in TYPED_CONTROL:
            assert ids != case[recorded]["ids"]
        else:
            assert ids == case[recorded]["ids"]


WORDS = st.sampled_from(["", "hi", "你好", "a b", "line\nline", "\r\n", " x ", "1+1", '{"a": 1}', "é"])
# What follows `assistant\n` is encoded by itself here, so a text that begins with a line break may differ.
ANSWER = WORDS.filter(lambda text: not text.startswith(("\n", "\r", " ")))
CALLS = st.lists(
    st.fixed_dictionaries({"name": st.just("f"), "arguments": st.dictionaries(st.just("k"), WORDS)}),
    max_size=2,
)
USER = st.builds(lambda text: {"role": "user", "content": text}, WORDS)
RESULT = st.builds(lambda text: {"role": "tool", "content": text}, WORDS)
ASSISTANT = st.builds(
    lambda text, calls, thought: {
        "role": "assistant",
        "content": text,
        **({"tool_calls": calls} if calls else {}),
        **({"reasoning_content": thought} if thought else {}),
    },
    ANSWER,
    CALLS,
    WORDS,
)
TURNS = st.lists(st.one_of(USER, RESULT, ASSISTANT), min_size=1, max_size=6)
OFFERED = st.sampled_from([[], [{"type": "function", "function": {"name": "f", "description": "<b> '\"查"}}]])


def folder_of(name: str, scratch: Path) -> Path:
    """A model folder with the template `name` and nothing else."""
    if name == "qwen3_first":
        return tokenizer_folder("qwen3_parts")
    if name not in OWN:
        return tokenizer_folder(name)
    (scratch / "tokenizer_config.json").write_text(json.dumps({"chat_template": OWN[name]}), "utf-8")
    return scratch


@pytest.mark.parametrize(
    "name", ["qwen2", "smollm2", "qwen2_5", "qwen3_first", "qwen3", "qwen3_instruct_2507"]
)
def test_rendered_by_transformers(
    name: str, tokenizer: Tokenizer, library: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    folder = folder_of(name, tmp_path)
    kind = template.of_folder(folder, "qwen3" if "qwen3" in name else "qwen2", tokenizer)
    text_of_template = template.template_text(folder)
    assert kind.known

    @given(system=st.sampled_from([None, "", "Be brief."]), turns=TURNS, tools=OFFERED, asked=st.booleans())
    @settings(max_examples=80, deadline=None)
    def holds(system: str | None, turns: list[dict[str, Any]], tools: list[Any], asked: bool) -> None:
        begin = [] if system is None else [{"role": "system", "content": system}]
        messages = [*begin, *map(dict, turns)]
        for turn in messages:
            if not kind.thinking:  # these templates leave it out; ours does not, see below
                turn.pop("reasoning_content", None)
            if not kind.tools:
                turn.pop("tool_calls", None)
                turn["role"] = "user" if turn["role"] == "tool" else turn["role"]
        tools = tools if kind.tools else []
        text = library.apply_chat_template(
            messages,
            tools=tools or None,
            tokenize=False,
            add_generation_prompt=asked,
            chat_template=text_of_template,
        )
        case = {"messages": messages, "tools": tools, "add_generation_prompt": asked}
        ids = ids_of(case, tokenizer, kind, thinking=True)
        assert tokenizer.decode(ids) == text
        assert ids == library.encode(text, add_special_tokens=False)

    holds()


def test_qwen15s_first_template(
    tokenizer: Tokenizer, library: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    kind = template.of_folder(write_template(tmp_path, QWEN15_TEMPLATE), "qwen2", tokenizer)
    assert kind.known
    assert kind.system == "You are a helpful assistant"
    messages = [
        {"role": role, "content": text} for role, text in (("user", "q"), ("assistant", "a"), ("user", "r"))
    ]
    for turns, asked in ((messages, True), (messages[:2], False)):
        text = library.apply_chat_template(
            turns, tokenize=False, add_generation_prompt=asked, chat_template=QWEN15_TEMPLATE
        )
        case = {"messages": turns, "tools": [], "add_generation_prompt": asked}
        closed = text if asked else f"{text}<|im_end|>\n"
        assert tokenizer.decode(ids_of(case, tokenizer, kind, thinking=True)) == closed


def trained(ids: list[int], mask: Any, tokenizer: Tokenizer) -> list[str]:
    """The text of every run of trained tokens."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], np.asarray(mask, np.int8), [0]))))
    return [tokenizer.decode(ids[a:b]) for a, b in edges.reshape(-1, 2)]


CALL = {"name": "weather", "arguments": {"city": "北京"}}
TALK = Conversation(
    (
        Message("user", "<tool_call>typed</tool_call> <think>"),
        Message("assistant", "Let me see.", tool_calls=(CALL, CALL), reasoning="I must ask."),
        Message("tool", "20 <|im_end|></tool_response>"),
        Message("tool", "21"),
        Message("assistant", "<think>\nboth\n</think>\n\n20 or 21"),
    ),
    ({"type": "function", "function": {"name": "weather", "description": "<think>"}},),
)


def test_what_the_assistant_writes_is_trained_and_nothing_else(tokenizer: Tokenizer) -> None:
    example = chatml.render(TALK, tokenizer, "assistant", "", QWEN3)
    call = '<tool_call>\n{"name": "weather", "arguments": {"city": "北京"}}\n</tool_call>'
    assert trained(example.ids.tolist(), example.train, tokenizer) == [
        f"<think>\nI must ask.\n</think>\n\nLet me see.\n{call}\n{call}<|im_end|>",
        "<think>\nboth\n</think>\n\n20 or 21<|im_end|>",
    ]
    untrained = chatml.render(
        TALK._replace(messages=tuple(m._replace(train=False) for m in TALK.messages)),
        tokenizer,
        "assistant",
        "",
        QWEN3,
    )
    assert not untrained.train.any()
    assert untrained.ids.tolist() == example.ids.tolist()


def test_control_tokens_come_from_structure_only(tokenizer: Tokenizer) -> None:
    ids = chatml.render(TALK, tokenizer, "assistant", "", QWEN3).ids.tolist()
    named = {
        tokenizer.control_text[number]: ids.count(number) for number in set(ids) & set(tokenizer.control_text)
    }
    assert named == {
        "<|im_start|>": 5,  # system, user, assistant, the two results as one user's turn, assistant
        "<|im_end|>": 5,
        "<tool_call>": 4,  # two in the system turn's instruction, two calls
        "</tool_call>": 4,
        "<tool_response>": 2,
        "</tool_response>": 2,
        "<think>": 2,
        "</think>": 2,
    }


def test_what_a_template_cannot_write_is_refused_and_reasoning_is_kept(tokenizer: Tokenizer) -> None:
    with pytest.raises(ValueError, match="tools"):
        chatml.render(TALK, tokenizer, "assistant", "", Template())
    with pytest.raises(ValueError, match="tools"):
        chatml.render(TALK, tokenizer, "qwen", "", QWEN3)
    thought = Conversation((Message("user", "q"), Message("assistant", "a", reasoning="r")))
    for policy in ("assistant", "qwen"):
        ids = chatml.render(thought, tokenizer, policy, "", Template()).ids.tolist()
        assert "<think>\nr\n</think>\n\na<|im_end|>" in tokenizer.decode(ids)


def test_a_block_in_an_answers_text_is_text_where_the_template_knows_none(tokenizer: Tokenizer) -> None:
    talk = Conversation((Message("user", "q"), Message("assistant", "<think>\nr\n</think>\n\na")))
    ids = chatml.render(talk, tokenizer, "assistant", "", Template(tools=True)).ids.tolist()
    assert tokenizer.decode(ids).endswith("assistant\n<think>\nr\n</think>\n\na<|im_end|>\n")
    assert tokenizer.control["<think>"] not in ids


def test_the_first_prompt_takes_an_empty_block_along(tokenizer: Tokenizer) -> None:
    asked = (Message("user", "q"),)
    plain = chatml.render(
        Conversation((*asked, Message("assistant", "a"))), tokenizer, "assistant", "", QWEN3
    )
    ids = chatml.first_prompt(plain, tokenizer)
    assert ids == chatml.prompt(asked, tokenizer, "", QWEN3, enable_thinking=False)
    assert tokenizer.decode(ids).endswith("assistant\n<think>\n\n</think>\n\n")
    answer = Message("assistant", "a", reasoning="r")
    thinking = chatml.render(Conversation((*asked, answer)), tokenizer, "assistant", "", QWEN3)
    assert chatml.first_prompt(thinking, tokenizer) == chatml.prompt(asked, tokenizer, "", QWEN3)


def write_template(folder: Path, template_text: Any, name: str = "tokenizer_config.json") -> Path:
    content = json.dumps({"chat_template": template_text}) if name.endswith(".json") else template_text
    (folder / name).write_text(content, "utf-8")
    return folder


def test_conventions_of_a_folder(tokenizer: Tokenizer, tmp_path: Path) -> None:
    read = template.of_folder
    helpful = "You are a helpful assistant."
    # No template: the family's. Tools only where the vocabulary has their tokens (Qwen2.5 brought them).
    qwen1 = open_tokenizer(tokenizer_folder("qwen1"))
    assert read(tmp_path, "qwen1", qwen1) == Template(helpful)
    assert read(tmp_path, "qwen2", tokenizer) == Template(helpful, tools=True)
    assert read(tmp_path, "qwen3", tokenizer) == Template("", tools=True, thinking=True)
    assert read(tmp_path, "qwen3", qwen1) == Template("")
    # Known ones, whatever the family
    qwen25 = Template("You are Qwen, created by Alibaba Cloud. You are a helpful assistant.", tools=True)
    assert read(tokenizer_folder("qwen2_5"), "qwen2", tokenizer) == qwen25
    assert read(tokenizer_folder("qwen3_instruct_2507"), "qwen3", tokenizer) == Template("", tools=True)
    # Others are read, and said to be unknown.
    own = QWEN2_TEMPLATE.replace(helpful, "Sei kurz.")
    assert read(write_template(tmp_path, own), "qwen2", tokenizer) == Template("Sei kurz.", known=False)
    named = [{"name": "rag", "template": "x"}, {"name": "default", "template": QWEN2_TEMPLATE}]
    assert read(write_template(tmp_path, named), "qwen2", tokenizer) == Template(helpful)
    # transformers lets the file win
    write_template(tmp_path, own, "chat_template.jinja")
    assert read(tmp_path, "qwen2", tokenizer) == Template("Sei kurz.", known=False)
    # No ChatML at all: what would be trained is not what a server would ask.
    write_template(tmp_path, "[INST] {{ messages[0].content }} [/INST]", "chat_template.jinja")
    with pytest.raises(Problem) as caught:
        read(tmp_path, "qwen3", tokenizer)
    assert (caught.value.code, caught.value.where) == (
        "tokenizer.template_foreign",
        str(tmp_path / "chat_template.jinja"),
    )
    (tmp_path / "chat_template.jinja").unlink()
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(Problem) as caught:
        read(tmp_path, "qwen2", tokenizer)
    assert caught.value.code == "tokenizer.broken"
