"""Public data sets in the formats we read: every record is taken, none is misread."""

from __future__ import annotations

import json

import pytest
from tests.data_lab import judged
from tests.shared import shared_path


@pytest.mark.parametrize(
    ("name", "records", "first"),
    [
        ("lf_identity.json", 91, "user assistant"),
        ("lf_alpaca_zh_demo.json", 1000, "user assistant"),
        ("lf_alpaca_en_demo.json", 999, "user assistant"),
        ("si_seed_tasks.jsonl", 175, "user assistant"),
        ("si_user_oriented_instructions.jsonl", 252, "user assistant"),
        ("litgpt_dolly_sample.json", 12, "user assistant"),
        ("qwen_test_sampled.json", 2, "user assistant"),
        ("swift_alpaca.csv", 3, None),
        ("swift_alpaca.jsonl", 3, None),
        ("swift_chatml.jsonl", 3, None),
        ("swift_conversations.jsonl", 3, None),
        ("swift_sharegpt.jsonl", 3, None),
        ("swift_swift_multi.json", 3, None),
        ("swift_swift_multi.jsonl", 3, None),
        ("swift_swift_single.csv", 3, None),
    ],
)
def test_public_files(name: str, records: int, first: str | None) -> None:
    talks, faults, reader = judged({name: shared_path(f"data/instruct/{name}")})
    assert len(talks) == reader.records == records
    assert not [fault for fault in faults if fault.dropped]
    if first:
        assert " ".join(message.role for message in talks[0].messages) == first


def test_public_tool_calls() -> None:
    """300 records, of which two hold a tool's result that no call asked for."""
    name = "lf_glaive_toolcall_zh_demo.json"
    talks, faults, reader = judged({name: shared_path(f"data/instruct/{name}")})
    assert (reader.records, len(talks)) == (300, 298)
    assert [(fault.code, fault.dropped) for fault in faults] == [("stray_result", True)] * 2
    raw = json.loads(shared_path(f"data/instruct/{name}").read_text(encoding="utf-8"))
    offered = [bool(json.loads(record["tools"])) for record in raw]
    used = [offered[int(talk.source.rpartition(":")[2])] for talk in talks]
    assert [bool(talk.tools) for talk in talks] == used
