"""Objects of JSON from elsewhere."""

from __future__ import annotations

import pytest

from tengtune.json_file import parse_object
from tengtune.ui.problems import Problem


@pytest.mark.parametrize(
    "raw",
    [
        rb'{"a\ud800": 1}',
        rb'{"a": "\uDC00"}',
        rb'{"a": ["\udc00\ud800"]}',
        rb'{"a": {"b": "\ud83d \ude00"}}',
    ],
)
def test_half_a_character_is_refused(raw: bytes) -> None:
    """No file in UTF-8 takes it: it would only be met where the text is written."""
    with pytest.raises(Problem, match="surrogates") as caught:
        parse_object(raw, "x", "adapter.bad_json")
    str(caught.value).encode()


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (rb'{"a": "\ud83d\ude00"}', "\U0001f600"),
        (rb'{"a": "\\ud800"}', "\\ud800"),
        (b'{"a": "\xe6\xa8\xa1"}', "模"),
    ],
)
def test_whole_characters_are_taken(raw: bytes, text: str) -> None:
    assert parse_object(raw, "x", "adapter.bad_json") == {"a": text}
