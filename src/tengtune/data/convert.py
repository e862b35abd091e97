"""Conversations written as data files: mindformers' conversation form, messages, or alpaca."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Any, Literal

from tengtune.data.fault import Fault, Unfit
from tengtune.data.formats.plain import PLAIN
from tengtune.data.json_value import written
from tengtune.data.read import Outcome
from tengtune.text.conversation import Conversation, Message

Form = Literal["conversation", "messages", "alpaca"]
_FROM = {"system": "system", "user": "user", "assistant": "assistant", "tool": "observation"}


def convert(items: Iterable[Outcome | Fault], form: Form, stream: IO[str], as_list: bool) -> Iterator[Fault]:
    """Write the conversations to `stream`, a JSON list (indented by 2) or one record a line; give the faults.

    `conversation` as a list gives the bytes of mindformers' alpaca_converter.py (research/qwen, r1.0 to r1.3)
    wherever that gives what its next script takes: all ASCII, no line break at the end.
    """
    ascii_only = form == "conversation"
    count = 0
    stream.write("[" if as_list else "")
    for item in items:
        if isinstance(item, Fault):
            yield item
            continue
        yield from item.faults
        for talk in item.conversations:
            try:
                value = _WRITERS[form](talk, count + 1)
            except Unfit as unfit:
                yield Fault(item.file, item.record.number, item.record.line, unfit.code, unfit.values)
                continue
            stream.write(_placed(value, as_list, ascii_only, first=not count))
            count += 1
    stream.write(("\n]" if count else "]") if as_list else "")


def _placed(value: dict[str, Any], as_list: bool, ascii_only: bool, first: bool) -> str:
    text = written(value, indent=2 if as_list else None, ascii_only=ascii_only)
    if not as_list:
        return text + "\n"
    return ("\n  " if first else ",\n  ") + text.replace("\n", "\n  ")


def _conversation(talk: Conversation, number: int) -> dict[str, Any]:
    """{id, conversations: [{from, value}]}; calls of tools are turns of their own, as in LLaMA-Factory."""
    turns: list[dict[str, Any]] = []
    for turn, message in enumerate(talk.messages):
        if message.reasoning:
            raise Unfit("no_place", turn=turn, what="reasoning")
        if message.tool_calls:
            if message.content:
                raise Unfit("no_place", turn=turn, what="tool_calls")
            calls = message.tool_calls if len(message.tool_calls) > 1 else message.tool_calls[0]
            value = json.dumps(calls, ensure_ascii=False)
            turns.append({"from": "function_call", "value": value, **_train(message)})
            continue
        if message.role not in _FROM:
            raise Unfit("no_place", turn=turn, what=message.role)
        turns.append({"from": _FROM[message.role], "value": message.content, **_train(message)})
    tools = {"tools": json.dumps(talk.tools, ensure_ascii=False)} if talk.tools else {}
    return {"id": str(number), "conversations": turns, **tools}


def _messages(talk: Conversation, number: int) -> dict[str, Any]:
    """{messages: [{role, content, ...}], tools?}, as OpenAI and Hugging Face have them; or {text}."""
    if talk.messages[0].role == PLAIN:
        return {"text": talk.messages[0].content}
    turns = []
    for message in talk.messages:
        turn: dict[str, Any] = {"role": message.role, "content": message.content}
        if message.reasoning:
            turn["reasoning_content"] = message.reasoning
        if message.tool_calls:
            turn["tool_calls"] = [{"type": "function", "function": call} for call in message.tool_calls]
        turns.append({**turn, **_train(message)})
    return {"messages": turns, **({"tools": list(talk.tools)} if talk.tools else {})}


def _alpaca(talk: Conversation, number: int) -> dict[str, Any]:
    """{instruction, input, output, system?, history?}."""
    roles = [message.role for message in talk.messages]
    first = int(roles[0] == "system")
    for turn, message in enumerate(talk.messages):
        odd = [
            name for name in ("tool_calls", "reasoning", "train") if getattr(message, name) not in ((), None)
        ]
        if odd:
            raise Unfit("no_place", turn=turn, what=odd[0])
        if turn >= first and message.role != ("user", "assistant")[(turn - first) % 2]:
            raise Unfit("no_place", turn=turn, what=message.role)
    if talk.tools:
        raise Unfit("no_place", turn=0, what="tools")
    if first and not talk.messages[0].content:  # which is not the same as none: that lets a default in
        raise Unfit("no_place", turn=0, what='system: ""')
    if len(roles) == first or roles[-1] != "assistant":
        raise Unfit("no_place", turn=len(roles) - 1, what=roles[-1])
    system = {"system": talk.messages[0].content} if first else {}
    texts = [message.content for message in talk.messages[first:]]
    history = [list(pair) for pair in zip(texts[:-2:2], texts[1:-2:2], strict=True)]
    record = {"instruction": texts[-2], "input": "", "output": texts[-1]}
    return {**record, **system, **({"history": history} if history else {})}


def _train(message: Message) -> dict[str, bool]:
    return {} if message.train is None else {"train": message.train}


_WRITERS: dict[Form, Callable[[Conversation, int], dict[str, Any]]] = {
    "conversation": _conversation,
    "messages": _messages,
    "alpaca": _alpaca,
}
