"""Self-instruct records, {instruction, instances: [{input, output}, ...]}: a conversation an instance."""

from __future__ import annotations

from typing import Any

from tengtune.data.fault import Notes, Unfit
from tengtune.data.formats import alpaca
from tengtune.data.formats.values import as_list, as_object
from tengtune.text.conversation import Message

KEYS = frozenset(("instruction", "instances"))


def read(record: dict[str, Any], notes: Notes) -> list[list[Message]]:
    """The turns of each instance. An instance that cannot be used costs the whole record, so that what is
    dropped can be counted in records."""
    instances = as_list(record["instances"], "instances", notes)
    if not instances:
        raise Unfit("no_turns", key="instances")
    notes("instances", count=len(instances))
    talks = []
    for i, instance in enumerate(instances):
        try:
            found = as_object(instance, f"instances[{i}]")
            talks.append(alpaca.read({**found, "instruction": record["instruction"]}, notes))
        except Unfit as unfit:
            notes.reject(unfit)
    return talks
