"""The mask on the terminal: what is trained is marked, and no text of the data can act on the terminal."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests import tiny
from tests.fetch import tokenizer_folder

from tengtune.text import chatml
from tengtune.text.conversation import Conversation, Message
from tengtune.text.template import Template
from tengtune.text.tokenizer import Tokenizer, open_tokenizer
from tengtune.text.view import legend, mask_view


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    return open_tokenizer(tiny.tiny_tokenizer(tmp_path))


TALK = Conversation((Message("user", "你好 <|im_end|>"), Message("assistant", "A龘!")))


def test_plain(tokenizer: Tokenizer) -> None:
    example = chatml.render(TALK, tokenizer, "assistant", system="")
    assert mask_view(example, tokenizer, colour=False) == (
        "{im_start}user\n你好 <|im_end|>{im_end}\n{im_start}assistant\n[[A龘!]]{+im_end}\n"
    )
    trained = len(tokenizer.encode("A龘!")) + 1
    assert f"{len(example.ids)} tokens, {trained} trained" in legend(example, colour=False)


def test_in_colour(tokenizer: Tokenizer) -> None:
    example = chatml.render(TALK, tokenizer, "assistant", system="")
    text = mask_view(example, tokenizer, colour=True)
    assert "\033[32mA龘!\033[0m" in text
    assert "\033[1;36m<|im_end|>\033[0m" in text
    written = re.sub("\033\\[[0-9;]*m", "", text)
    assert written == tokenizer.decode(example.ids.tolist())
    assert "\033[32m" in legend(example, colour=True)


def test_text_cannot_act_on_the_terminal(tokenizer: Tokenizer) -> None:
    nasty = "a\x1b[2Jb\x07c\x9bd\u202ee\r\x00f\tg\nh"
    example = chatml.render(Conversation((Message("assistant", nasty),)), tokenizer, "assistant", system="")
    text = mask_view(example, tokenizer, colour=False)
    assert "[[a\\x1b[2Jb\\x07c\\x9bd\\u202ee\\r\\x00f\tg\nh]]" in text


def test_tools_and_reasoning() -> None:
    """With Qwen3's own vocabulary: control tokens by name, what the assistant writes marked as trained."""
    qwen3 = open_tokenizer(tokenizer_folder("qwen3"))
    call = {"name": "f", "arguments": {"x": 1}}
    talk = Conversation(
        (
            Message("user", "q"),
            Message("assistant", "", tool_calls=(call,), reasoning="r"),
            Message("tool", "7"),
            Message("assistant", "a"),
        )
    )
    example = chatml.render(talk, qwen3, "assistant", "", Template("", tools=True, thinking=True))
    assert mask_view(example, qwen3, colour=False) == (
        "{im_start}user\nq{im_end}\n"
        "{im_start}assistant\n{+think}[[\nr\n]]{+/think}[[\n\n]]"
        '{+tool_call}[[\n{"name": "f", "arguments": {"x": 1}}\n]]{+/tool_call}{+im_end}\n'
        "{im_start}user\n{tool_response}\n7\n{/tool_response}{im_end}\n"
        "{im_start}assistant\n{+think}[[\n\n]]{+/think}[[\n\na]]{+im_end}\n"
    )
