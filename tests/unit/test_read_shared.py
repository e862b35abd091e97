"""Public data sets in the formats we read: every record is taken, none is misread."""

from __future__ import annotations

import pytest
from tests.shared import shared_path


@pytest.mark.parametrize(
    ("name", "records", "first"),
    [
        ("lf_identity.json", 91, "user assistant"),
        ("lf_alpaca_zh_demo.json", 1000, "user assistant"),
        ("lf_alpaca_en_demo.json", 999, "user assistant"),
        ("qwen_test_sampled.json", 2, "user assistant"),
        ("swift_alpaca.jsonl", 3, None),
        ("swift_chatml.jsonl", 3, None),
        ("swift_conversations.jsonl", 3, None),
    ],
)
def test_public_files(name: str, records: int, first: str | None) -> None:
    talks, faults, reader = judged({name: shared_path(f"data/instruct/{name}")})
    assert len(talks) == reader.records == records
    if first:
        assert " ".join(message.role for message in talks[0].messages) == first
