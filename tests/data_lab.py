"""Reading and judging data files as the data step does, with everything in lists."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tengtune.data.fault import Fault
from tengtune.data.judge import Judge
from tengtune.data.read import Reader
from tengtune.data.render import batches
from tengtune.recipe import LabelPolicy
from tengtune.text.conversation import Conversation

CONTROL = ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<think>", "<tool_call>", "<|extra_0|>")


def judged(
    files: Mapping[str, Path],
    format: str = "auto",
    policy: LabelPolicy = "assistant",
    mapping: Mapping[str, str] | None = None,
    lenient: bool = False,
) -> tuple[list[Conversation], list[Fault], Reader]:
    """The conversations that can be used, all faults in the order in which they were found, the reader."""
    reader = Reader(files, format, mapping, lenient=lenient)
    judge = Judge(policy, CONTROL)
    talks: list[Conversation] = []
    faults: list[Fault] = []
    for batch in batches(reader.read(), faults.append):
        found = judge.batch(batch.talks)
        for i, notes in found.items():
            faults += notes.faults(batch.file, batch.numbers[i], batch.lines[i])
        talks += [t for i, t in enumerate(batch.talks) if i not in found or not found[i].rejected]
    return talks, faults, reader
