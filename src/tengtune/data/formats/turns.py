"""Records that list their turns: `messages` of role/content, `conversations` of from/value, `conversation` of
{human, assistant} pairs.

Any of the lists may use any of the forms and names; a turn may carry `train`, reasoning and tool calls.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from typing import Any

from tengtune.data.fault import Notes, Unfit
from tengtune.data.formats import tools
from tengtune.data.formats.values import as_list, as_object, is_blank, kind, optional_text, text
from tengtune.text.conversation import Message

KEYS = frozenset(("system", "tools"))
CALL = "call"
ROLES = {
    **dict.fromkeys(("system", "系统"), "system"),
    **dict.fromkeys(("user", "human", "用户", "人类"), "user"),
    **dict.fromkeys(("assistant", "gpt", "助手", "助理"), "assistant"),
    **dict.fromkeys(("function_call", "tool_call"), CALL),
    **dict.fromkeys(("tool", "observation", "function", "tool_response", "工具"), "tool"),
}
"""Role names as they are found, in lower case, and what they are here."""
LIKELY = {
    **dict.fromkeys(("bot", "ai", "model", "chatgpt", "bing", "chatbot", "机器人", "客服"), "assistant"),
    **dict.fromkeys(("customer", "client", "prompter", "player", "客户", "问"), "user"),
    **dict.fromkeys(("developer", "sys"), "system"),
}
"""Names that are probably these roles: said, not assumed."""
CALLS = [name for name, role in ROLES.items() if role == CALL]
_SPOKEN = {name: role for name, role in ROLES.items() if role in ("system", "user", "assistant")}
REASONING = ("reasoning_content", "reasoning", "thinking")
TRAIN = ("train", "loss", "weight")
"""Marks of a turn that say whether it is trained: ours, ms-swift's, OpenAI's (0 or 1)."""
CALLED = ("tool_calls", "function_call")
TURN_KEYS = frozenset(
    ("role", "from", "content", "value", "tool_call_id", "name", *CALLED, *REASONING, *TRAIN)
)


def reader(*keys: str) -> Callable[[dict[str, Any], Notes], list[Message]]:
    """The `read` function of the format whose turns stand under one of `keys`."""

    def read(record: dict[str, Any], notes: Notes) -> list[Message]:
        key = next(key for key in keys if key in record)
        listed = as_list(record[key], key, notes)
        if not listed:
            raise Unfit("no_turns", key=key)
        messages = messages_of(listed, key, notes)
        system = optional_text(record.get("system"), "system", notes)
        if system:
            if messages and messages[0].role == "system":
                raise Unfit("system_twice", key=key)
            messages.insert(0, Message("system", system))
        return messages

    return read


def messages_of(listed: Iterable[Any], key: str, notes: Notes) -> list[Message]:
    """The turns of a list; those that cannot be read are rejected one by one."""
    messages: list[Message] = []
    for i, turn in enumerate(listed):
        if type(turn) is dict and len(turn) == 2:  # the usual case, without a detour
            role, content = turn.get("role", turn.get("from")), turn.get("content", turn.get("value"))
            if type(role) is str and type(content) is str and role in _SPOKEN:
                messages.append(Message(_SPOKEN[role], content))
                continue
        try:
            messages += _read(turn, f"{key}[{i}]", notes)
        except Unfit as unfit:
            notes.reject(unfit)
            if isinstance(turn, dict) and _role_name(turn) in CALLS:  # so that its result has its place
                messages.append(Message("assistant", "", tool_calls=({},)))
    tools.check_order(messages, notes)
    return messages


def _read(turn: Any, at: str, notes: Notes) -> list[Message]:
    """The messages of one turn: one, or a pair's two or three."""
    found = as_object(turn, at)
    if "role" not in found and "from" not in found:
        pair = _pair(found, at, notes)
        if pair:
            return pair
    role = _role(found, at, notes)
    train = _train(found, at)
    if train is not None and role in ("user", "system", "tool"):
        notes("train_ignored", at=at)
    notes.unused += [f"{at.split('[')[0]}[].{name}" for name in found if name not in TURN_KEYS]
    content = found["content"] if "content" in found else found.get("value")
    place = f"{at} content/value"
    if role == "tool":
        return [Message("tool", tools.result_text(content, place))]
    if role == CALL:
        return [Message("assistant", "", train, tools.called(content, place))]
    calls: tuple[dict[str, Any], ...] = ()
    if role == "assistant":
        calls = _calls(found, at)
    if calls and is_blank(content):
        content = ""
    return [Message(role, _content(content, place, notes), train, calls, _reasoning(found, at, notes))]


def _calls(turn: dict[str, Any], at: str) -> tuple[dict[str, Any], ...]:
    """The calls beside an assistant's text, in OpenAI's present and former spelling."""
    for name in CALLED:
        if not is_blank(turn.get(name)):
            return tools.called(turn[name], f"{at}.{name}")
    return ()


def _content(value: Any, at: str, notes: Notes) -> str:
    """A text, or OpenAI's list of parts that are texts."""
    if not isinstance(value, list) or not value:
        return text(value, at, notes)
    parts = []
    for part in value:
        if isinstance(part, str):
            parts.append(part)
            continue
        found = as_object(part, at)
        if found.get("type", "text") != "text":
            raise Unfit("part_kind", at=at, kind=str(found.get("type"))[:40])
        parts.append(text(found.get("text"), f"{at} text", notes))
    return "".join(parts)


def _reasoning(turn: dict[str, Any], at: str, notes: Notes) -> str | None:
    for name in REASONING:
        if not is_blank(turn.get(name)):
            return text(turn[name], f"{at}.{name}", notes)
    return None


def _train(turn: dict[str, Any], at: str) -> bool | None:
    for name in TRAIN:
        value = turn.get(name)
        if value is None:
            continue
        if not isinstance(value, bool) and not (name != "train" and value in (0, 1)):
            raise Unfit("not_bool", at=f"{at}.{name}", kind=kind(value))
        return bool(value)
    return None


def _pair(turn: dict[str, Any], at: str, notes: Notes) -> list[Message] | None:
    """A question and its answer in one object, {human, assistant}; None when it is no such object."""
    by_role = {ROLES.get(name.lower()): name for name in turn}
    if not {"user", "assistant"} <= by_role.keys():
        return None
    notes.unused += [f"{at.split('[')[0]}[].{name}" for name in turn if name.lower() not in ROLES]
    roles = [role for role in _SPOKEN.values() if role in by_role]
    return [Message(r, text(turn[by_role[r]], f"{at}.{by_role[r]}", notes)) for r in dict.fromkeys(roles)]


def _role_name(turn: dict[str, Any]) -> str:
    name = turn["role"] if "role" in turn else turn.get("from")
    return name.strip().lower() if isinstance(name, str) else ""


def _role(turn: dict[str, Any], at: str, notes: Notes) -> str:
    given = text(turn["role"] if "role" in turn else turn.get("from"), f"{at} role/from", notes)
    name = _role_name(turn)
    role = ROLES.get(name)
    if role is None:
        near = difflib.get_close_matches(name[:40], ROLES, n=1)
        likely = LIKELY.get(name) or (near[0] if near else "/".join(_SPOKEN))
        raise Unfit("unknown_role", at=at, role=given[:40], near=likely)
    return role
