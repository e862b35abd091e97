"""Records that list their turns: `messages` of role/content, `conversations` of from/value.

Either list may use either pair of names, and the role names of ShareGPT (human, gpt) are known too.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator
from typing import Any

from tengtune.data.fault import Note, Unfit
from tengtune.data.formats.values import as_list, as_object, is_blank, kind, optional_text, text
from tengtune.text.conversation import Message

KEYS = frozenset(("system", "tools"))
ROLES = {"system": "system", "user": "user", "human": "user", "assistant": "assistant", "gpt": "assistant"}
"""Role names as they are found, in lower case, and what they are here."""

TURN_KEYS = frozenset(("role", "from", "content", "value", "train", "tool_calls"))


def reader(key: str) -> Callable[[dict[str, Any], Note], tuple[Message, ...]]:
    """The `read` function of the format whose turns stand under `key`."""

    def read(record: dict[str, Any], note: Note) -> tuple[Message, ...]:
        if not is_blank(record.get("tools")):
            raise Unfit("tools")
        turns = as_list(record[key], key)
        messages = [_message(turn, f"{key}[{i}]", note) for i, turn in enumerate(turns)]
        system = optional_text(record.get("system"), "system", note)
        if system:
            if messages and messages[0].role == "system":
                raise Unfit("system_twice", key=key)
            messages.insert(0, Message("system", system))
        if not messages:
            raise Unfit("no_turns", key=key)
        return tuple(messages)

    return read


def unused(key: str) -> Callable[[dict[str, Any]], Iterator[str]]:
    """The `unused` function of the format whose turns stand under `key`."""

    def names(record: dict[str, Any]) -> Iterator[str]:
        yield from (name for name in record if name != key and name not in KEYS)
        yield from (f"{key}[].{name}" for turn in record[key] for name in turn if name not in TURN_KEYS)

    return names


def _message(turn: Any, at: str, note: Note) -> Message:
    found = as_object(turn, at)
    if not is_blank(found.get("tool_calls")):
        raise Unfit("tools")
    train = found.get("train")
    if train is not None and not isinstance(train, bool):
        raise Unfit("not_bool", at=f"{at}.train", kind=kind(train))
    content = found["content"] if "content" in found else found.get("value")
    return Message(_role(found, at, note), text(content, f"{at} content/value", note), train)


def _role(turn: dict[str, Any], at: str, note: Note) -> str:
    name = text(turn["role"] if "role" in turn else turn.get("from"), f"{at} role/from", note)
    role = ROLES.get(name) or ROLES.get(name.lower())
    if role is None:
        near = difflib.get_close_matches(name.lower(), ROLES, n=1)
        raise Unfit("unknown_role", at=at, role=name[:40], near=near[0] if near else "/".join(ROLES))
    return role
