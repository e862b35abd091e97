"""Template: what a model's chat template does beyond ChatML's frames, told from the model's own folder.

A Jinja template gives no mask of what is trained, so conversations are written by chatml.py, and the
template's text only says by which conventions. Those differ in three things over Qwen's generations:

    Qwen1 to Qwen2        a system turn where there is none; no tools
    Qwen2.5               the same, another text in some models; tools
    Qwen3                 no system turn of its own; tools; <think> blocks
    Qwen3-...-2507        Qwen3 without <think> blocks

KNOWN templates were compared text for text and id for id with transformers' apply_chat_template. Of any
other ChatML template the three things are read, and the user is told.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tengtune.json_file import read_object
from tengtune.models.spec import Family
from tengtune.text.tokenizer import IM_START, Tokenizer
from tengtune.ui.problems import Problem, os_errors

SYSTEM = "You are a helpful assistant."
THINK, END_THINK = "<think>", "</think>"
CALL, END_CALL = "<tool_call>", "</tool_call>"
RESULT, END_RESULT = "<tool_response>", "</tool_response>"

KNOWN = frozenset(
    (
        # Qwen1.5-Chat, Qwen2-Instruct
        "7a2fad4301dcce93b13747dfd6ee5fa696dc12de86b85b86344bea8f649022b3",
        "793202280c0910ab26bc6eb57c8212c2417324c6d8c4efd0d10d59092ab3e3eb",
        # Qwen2.5-Instruct
        "55b2f4a26ac9ee719330a61a0c39d9e538b0e9322212f048326318cff4f8674a",
        # Qwen3, as published first and as it is now; Qwen3-Instruct-2507
        "87a2728cb8dc9fe424d624542f6060ec05a1d285ebbec578bb078900e33396b5",
        "a55ee1b1660128b7098723e0abcd92caa0788061051c62d51cbe87d9cf1974d8",
        "64f85b198065d0fba2a81f37e10ed68161ce2c19a754c7100e67e0ca2ee9c326",
        # SmolLM2-Instruct, the examples' model: Qwen2's with another system text
        "872be49dbb638044ad01b60388f48d469ff2980e5f0dccdc22ec907db54d0788",
    )
)
"""sha256 of the templates' text without blanks at its ends."""

JINJA, CONFIG = "chat_template.jinja", "tokenizer_config.json"
_SYSTEM_TURN = re.compile(r"<\|im_start\|>system(?:\\n|\n)([^<>{}'\"]+)<\|im_end\|>")


@dataclass(frozen=True)
class Template:
    """system: text of the system turn of a conversation that brings none; "": no such turn.
    tools: whether there is a way to write tools and their calls. thinking: whether answers to the last
    question begin with a <think> block, an empty one where there is no reasoning. known: False where the
    folder's template is none of KNOWN."""

    system: str = SYSTEM
    tools: bool = False
    thinking: bool = False
    known: bool = True


PLAIN = Template()


def of_folder(folder: Path, family: Family, tokenizer: Tokenizer) -> Template:
    """The conventions of a model's folder: its template's, or the family's where it brings none.

    Problem: a tokenizer_config.json that cannot be read, a template that does not write ChatML.
    """
    text = template_text(folder)
    can_think = {THINK, END_THINK} <= tokenizer.control.keys()
    if text is not None and IM_START not in text:
        # A server would ask the tuned model by this template, in another form than it was trained in.
        raise Problem("tokenizer.template_foreign", where=_template_file(folder), token=IM_START)
    if text is None:
        thinks = family == "qwen3"
        # Qwen2.5 brought the tool tokens; Qwen1.5 and Qwen2 have neither them nor a way to write tools.
        tools = CALL in tokenizer.control
        return Template("" if thinks else SYSTEM, tools, thinks and can_think)
    system = _SYSTEM_TURN.search(text)
    return Template(
        system[1] if system else "",
        tools="<tools>" in text and CALL in text,
        thinking="enable_thinking" in text and can_think,
        known=hashlib.sha256(text.strip().encode("utf-8", "surrogatepass")).hexdigest() in KNOWN,
    )


def _template_file(folder: Path) -> Path:
    """The file that template_text reads."""
    return folder / (JINJA if (folder / JINJA).is_file() else CONFIG)


def template_text(folder: Path) -> str | None:
    """The chat template: chat_template.jinja, else the one in tokenizer_config.json; None without any."""
    config = folder / CONFIG
    if (file := folder / JINJA).is_file():
        with os_errors(file):
            return file.read_text("utf-8", "replace")
    if not config.is_file():
        return None
    found = read_object(config, "tokenizer.broken").get("chat_template")
    if isinstance(found, list):  # several by name; the one that is used unasked is "default"
        named = [each for each in found if isinstance(each, dict)]
        found = next((each.get("template") for each in named if each.get("name") == "default"), None)
    return found if isinstance(found, str) else None


def tools_text(tools: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    """What tells a model of its tools, at the end of the system turn. Cut at the control tokens, which stand
    in it as themselves: every second part is one."""
    listed = "".join(f"\n{_json(tool)}" for tool in tools)
    return (
        "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
        f"You are provided with function signatures within <tools></tools> XML tags:\n<tools>{listed}\n"
        "</tools>\n\nFor each function call, return a json object with function name and arguments within ",
        CALL,
        "",
        END_CALL,
        " XML tags:\n",
        CALL,
        '\n{"name": <function-name>, "arguments": <args-json-object>}\n',
        END_CALL,
    )


def call_text(call: dict[str, Any]) -> str:
    """What stands between <tool_call> and </tool_call>. Arguments that are JSON text already stay as they are
    (Qwen2.5's own template would quote that text once more)."""
    call = call.get("function") or call
    arguments = call.get("arguments", {})
    written = arguments if isinstance(arguments, str) else _json(arguments)
    return f'\n{{"name": "{call["name"]}", "arguments": {written}}}\n'


def _json(value: Any) -> str:
    """JSON as transformers' templates write it."""
    return json.dumps(value, ensure_ascii=False)
