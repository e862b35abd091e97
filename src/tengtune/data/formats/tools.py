"""Tools offered and tools called, in the spellings of OpenAI, ShareGPT (LLaMA-Factory) and ms-swift.

Made uniform: a tool is {"type": "function", "function": {"name", ...}}, a call {"name", "arguments": {...}}.
"""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

from tengtune.data.fault import Notes, Unfit
from tengtune.data.formats.values import as_object, is_blank, kind, parsed
from tengtune.text.conversation import Message

Dict = dict[str, Any]


def offered(value: Any) -> tuple[Dict, ...]:
    """The tools of a record: a list of them, a single one, or the JSON text of either; nothing when blank."""
    if is_blank(value):
        return ()
    if isinstance(value, str):
        value = parsed(value, "tools")
    listed = value if isinstance(value, list) else [value]
    return tuple(_tool(as_object(tool, f"tools[{i}]"), f"tools[{i}]") for i, tool in enumerate(listed))


def _tool(tool: Dict, at: str) -> Dict:
    inner = as_object(tool["function"], f"{at}.function") if "function" in tool else tool
    _named(inner, at)
    return tool if inner is not tool else {"type": "function", "function": tool}


def called(value: Any, at: str) -> tuple[Dict, ...]:
    """The calls of a turn: a list of them, a single one, or the JSON text of either."""
    if isinstance(value, str):
        value = parsed(value, at)
    listed = value if isinstance(value, list) else [value]
    if not listed:
        raise Unfit("missing", at=at)
    return tuple(_call(as_object(call, at), at) for call in listed)


def _call(call: Dict, at: str) -> Dict:
    inner = as_object(call["function"], at) if "function" in call else call
    arguments = inner.get("arguments", inner.get("parameters"))
    if isinstance(arguments, str):
        arguments = parsed(arguments, f"{at}.arguments") if arguments.strip() else {}
    arguments = as_object({} if arguments is None else arguments, f"{at}.arguments")
    return {"name": _named(inner, at), "arguments": arguments}


def _named(value: Dict, at: str) -> str:
    name = value.get("name")
    if not isinstance(name, str) or not name.strip():
        raise Unfit("no_name", at=at)
    return name


def result_text(value: Any, at: str) -> str:
    """What a tool gave back, as a text: anything that is none is written as JSON."""
    if isinstance(value, str):
        return value
    if value is None:
        raise Unfit("missing", at=at)
    parts: list[Any] = (isinstance(value, list) and value) or [None]
    if all(isinstance(part, dict) and part.get("type") == "text" for part in parts):
        return "".join(str(part.get("text", "")) for part in parts)
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise Unfit("not_text", at=at, kind=kind(value)) from error


def check_order(messages: list[Message], notes: Notes) -> None:
    """After a call its result (or a further call), and results after nothing else."""
    for turn, (message, following) in enumerate(pairwise(messages)):
        if message.tool_calls and following.role != "tool" and not following.tool_calls:
            notes.reject(Unfit("no_result", turn=turn))
        if following.role == "tool" and message.role != "tool" and not message.tool_calls:
            notes.reject(Unfit("stray_result", turn=turn + 1))
    if messages and messages[0].role == "tool":
        notes.reject(Unfit("stray_result", turn=0))
