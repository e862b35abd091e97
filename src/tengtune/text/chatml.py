"""ChatML: a conversation as token ids, with the mask of what is trained, made together in one place.

    <|im_start|>role\\ncontent<|im_end|>\\n    for every turn

Label policies:
    assistant  trained: all that the assistant writes, its <think> block and tool calls included, and the
               `<|im_end|>` that closes it. All text is plain text, whatever was typed; tool calls, tool
               results and reasoning get their control tokens because they are given as such, and a
               <think> block in an answer's text is reasoning where the model's template takes it so.
               Ids are those of the model's chat template, with one difference: what the assistant writes
               is encoded by itself, because that is how the model will have to write it.
    qwen       token for token what QwenLM/Qwen finetune.py and mindformers' qwen_preprocess.py make:
               every `<|im_start|>`, every `<|im_end|>` and the newline after it is trained, too;
               control-token text is parsed; a leading assistant turn is left out.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterable, Sequence
from itertools import chain, groupby, pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tengtune.recipe import LabelPolicy
from tengtune.text.conversation import Conversation, Example, Message
from tengtune.text.template import (
    CALL,
    END_CALL,
    END_RESULT,
    END_THINK,
    PLAIN,
    RESULT,
    SYSTEM,
    THINK,
    Template,
    call_text,
    tools_text,
)
from tengtune.text.tokenizer import Tokenizer

ROLES = ("system", "user", "assistant")

_Part = str | tuple[int, ...]
"""A text still to be encoded, or ids."""
_Piece = tuple[_Part, bool]
"""A part of a rendered conversation, and whether it is trained."""


def default_system(given: str | None, policy: LabelPolicy, template: Template) -> str:
    """The system text of conversations that bring none; "" for no system turn.

    `given` (data.system of the run file) wins; "" there switches the turn off. Otherwise what the
    model's own template does. The `qwen` policy always has a system turn, as its reference does.
    """
    if given is not None:
        return given
    return SYSTEM if policy == "qwen" else template.system


def render(
    conversation: Conversation,
    tokenizer: Tokenizer,
    policy: LabelPolicy,
    system: str = SYSTEM,
    template: Template = PLAIN,
) -> Example:
    """One conversation as ids and mask; `system` is used when it brings no system turn ("": none).

    ValueError for tools that cannot be written: template.tools is False, or the policy is `qwen`."""
    return render_many([conversation], tokenizer, policy, system, template)[0]


def render_many(
    conversations: Sequence[Conversation],
    tokenizer: Tokenizer,
    policy: LabelPolicy,
    system: str = SYSTEM,
    template: Template = PLAIN,
) -> list[Example]:
    """`render` for many at once: one call of the tokenizer for all their texts."""
    ids, train, starts = render_flat(conversations, tokenizer, policy, system, template)
    spans = zip(pairwise(starts.tolist()), conversations, strict=True)
    return [Example(ids[start:end], train[start:end], c.source) for (start, end), c in spans]


def render_flat(
    conversations: Sequence[Conversation],
    tokenizer: Tokenizer,
    policy: LabelPolicy,
    system: str = SYSTEM,
    template: Template = PLAIN,
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.bool_], npt.NDArray[np.int64]]:
    """`render_many` without an object for each: ids and mask one after the other, int32 and bool [T], and
    where each conversation begins and the last ends, int64 [n+1]."""
    writer = _writer(tokenizer, policy, system, template)
    texts: list[str] = []
    layouts = [writer.layout(conversation, texts) for conversation in conversations]
    ids, sizes = tokenizer.encode_flat(texts, control=policy == "qwen")
    # A pool of ids: those that are always the same, then those of the texts. A piece is a span of it.
    given = writer.given_ids()
    pool = np.concatenate((np.fromiter(chain.from_iterable(given), np.int32), ids))
    spans = np.concatenate((np.fromiter(map(len, given), np.int64, len(given)), sizes))
    span = np.concatenate([_NO_PIECES, *(layout.given for layout in layouts)])
    span[span < 0] = np.arange(len(given), len(spans))
    lengths = spans[span]
    ends = np.cumsum(lengths)
    index = np.repeat((np.cumsum(spans) - spans)[span] + lengths - ends, lengths)
    index += np.arange(len(index))
    train = np.repeat(np.concatenate([_NO_PIECES > 0, *(layout.train for layout in layouts)]), lengths)
    firsts = np.cumsum([0, *(len(layout.given) for layout in layouts)])
    return pool[index], train, np.concatenate((np.zeros(1, np.int64), ends))[firsts]


def prompt(
    messages: Sequence[Message],
    tokenizer: Tokenizer,
    system: str = SYSTEM,
    template: Template = PLAIN,
    *,
    tools: Sequence[dict[str, Any]] = (),
    enable_thinking: bool = True,
) -> list[int]:
    """The ids a model answers to: the turns, then `<|im_start|>assistant\\n`. All text is plain text.

    Without enable_thinking an empty <think> block follows where the template knows one, so that the
    model answers at once.
    """
    writer = _Writer(tokenizer, "assistant", system, template)
    asked = Conversation(tuple(messages), tuple(tools))
    pieces = [*writer.pieces(asked), (writer.answer_head, False)]
    if template.thinking and not enable_thinking:
        pieces.append((writer.no_thought, False))
    parts = (tokenizer.encode(content) if isinstance(content, str) else content for content, _ in pieces)
    return list(chain.from_iterable(parts))


def first_prompt(example: Example, tokenizer: Tokenizer) -> list[int]:
    """The part of a rendered conversation that its first answer answers to, with an empty <think> block if
    there is one; all of it without an answer."""
    writer = _Writer(tokenizer, "assistant", "", PLAIN)
    head = np.array(writer.answer_head, np.int32)
    found = np.zeros(0, np.int64)
    if len(example.ids) >= len(head):
        windows = np.lib.stride_tricks.sliding_window_view(example.ids, len(head))
        found = np.flatnonzero((windows == head).all(axis=1))
    if not len(found):
        return example.ids.tolist()  # type: ignore[no-any-return]
    end, block = found[0] + len(head), writer.no_thought
    end += len(block) if tuple(example.ids[end : end + len(block)].tolist()) == block else 0
    ids: list[int] = example.ids[:end].tolist()
    return ids


_NO_PIECES = np.empty(0, np.int64)
MOST_LAYOUTS = 1000


class _Layout(NamedTuple):
    """The pieces of a conversation: given int64, the number of the ids of each, -1 for a text; train bool.
    heads: what stands before each turn's content in its text."""

    given: npt.NDArray[np.int64]
    train: npt.NDArray[np.bool_]
    heads: tuple[str, ...] = ()


@functools.lru_cache(maxsize=8)
def _writer(tokenizer: Tokenizer, policy: LabelPolicy, system: str, template: Template) -> _Writer:
    """The writer of many conversations, which gets to know their layouts."""
    return _Writer(tokenizer, policy, system, template)


class _Writer:
    """Cuts conversations into pieces, by label policy. `system`: the text of the turn put before one that
    brings none; "": no such turn."""

    def __init__(self, tokenizer: Tokenizer, policy: LabelPolicy, system: str, template: Template) -> None:
        self.policy, self.template, self.system = policy, template, system
        self._given: dict[tuple[int, ...], int] = {}
        self._layouts: dict[tuple[tuple[str, bool | None], ...], _Layout] = {}
        self._lock = threading.Lock()
        self.start, self.end = (tokenizer.im_start,), (tokenizer.im_end,)
        self.newline = tokenizer.newline_ids
        self.roles = {role: tuple(tokenizer.encode(role)) for role in ROLES}
        self.answer_head = (*self.start, *tokenizer.encode("assistant\n"))
        # Markup that is no control token of this vocabulary is text.
        self.marks: dict[str, _Part] = {
            text: (tokenizer.control[text],) if text in tokenizer.control else text
            for text in (THINK, END_THINK, CALL, END_CALL, RESULT, END_RESULT)
        }
        gap = tuple(tokenizer.encode("\n\n"))
        block = (self.marks[THINK], gap, self.marks[END_THINK], gap)
        self.no_thought: tuple[int, ...] = tuple(
            chain.from_iterable(tokenizer.encode(part) if isinstance(part, str) else part for part in block)
        )
        encode = tokenizer.encode_control if policy == "qwen" else tokenizer.encode
        opening = self._qwen if policy == "qwen" else self._turn
        opened = [
            (tuple(encode(content)) if isinstance(content, str) else content, train)
            for content, train in (opening(Message("system", system)) if system else ())
        ]
        self.opening: list[_Piece] = [  # as few pieces as there can be: every conversation begins so
            (tuple(chain.from_iterable(part for part, _ in group)), train)
            for train, group in groupby(opened, key=lambda piece: piece[1])
        ]

    def layout(self, conversation: Conversation, texts: list[str]) -> _Layout:
        """How a conversation is put together; the texts in it, to be encoded, are put to `texts`.

        Where nothing but the roles decides (and what is marked as not trained), it is known after the first
        conversation of this kind."""
        messages, tools, _ = conversation
        shape = tuple([(m[0], m[2]) for m in messages if not (m[3] or m[4])])
        if tools or len(shape) < len(messages) or self.template.thinking:
            return self._laid_out(self.pieces(conversation), texts)
        layout = self._layouts.get(shape)
        if layout is None:
            layout = self._layout_of(shape)
        if len(layout.heads) != len(shape):  # not every turn is one text: results of tools, a turn left out
            return self._laid_out(self.pieces(conversation), texts)
        texts += [head + message[1] for head, message in zip(layout.heads, messages, strict=True)]
        return layout

    def _layout_of(self, shape: tuple[tuple[str, bool | None], ...]) -> _Layout:
        """The layout of conversations of this shape, found by writing one without contents."""
        heads: list[str] = []
        empty = Conversation(tuple(Message(role, "", train) for role, train in shape))
        layout = self._laid_out(self.pieces(empty), heads)
        if all(role in ROLES for role, _ in shape):
            layout = layout._replace(heads=tuple(heads))
        if len(self._layouts) < MOST_LAYOUTS:
            self._layouts[shape] = layout
        return layout

    def _laid_out(self, pieces: Sequence[_Piece], texts: list[str]) -> _Layout:
        texts += [content for content, _ in pieces if isinstance(content, str)]
        with self._lock:  # several threads may meet new ids at once
            numbers = [
                -1 if isinstance(content, str) else self._given.setdefault(content, len(self._given))
                for content, _ in pieces
            ]
        return _Layout(np.array(numbers, np.int64), np.array([train for _, train in pieces], np.bool_))

    def given_ids(self) -> list[tuple[int, ...]]:
        """The ids that layouts number."""
        with self._lock:
            return list(self._given)

    def pieces(self, conversation: Conversation) -> list[_Piece]:
        """The conversation, piece by piece; ValueError where it holds what cannot be written."""
        messages = conversation.messages
        if self.policy == "qwen":
            return self._reference(conversation)
        begins = bool(messages) and messages[0].role == "system"
        if conversation.tools:
            system = messages[0].content if begins else self.system
            found = self._tools(conversation.tools, f"{system}\n\n" if begins or system else "")
        else:
            found = [] if begins else list(self.opening)
        query = last_question(messages) if self.template.thinking else 0
        last = len(messages) - 1
        for number, message in enumerate(messages):
            if message.role == "assistant":
                found += self._answer(message, number > query, number == last)
            elif message.role == "tool":
                before = number and messages[number - 1].role == "tool"
                after = number < last and messages[number + 1].role == "tool"
                found += self._result(message, not before, not after)
            elif number or not (begins and conversation.tools):
                found += self._turn(message)
        return found

    def _turn(self, message: Message) -> tuple[_Piece, ...]:
        # Role and text are encoded as one text, as a chat template's output is: a text that begins with a
        # line break merges with the one after the role.
        return (
            (self.start, False),
            (f"{message.role}\n{message.content}", False),
            (self.end + self.newline, False),
        )

    def _answer(self, message: Message, replies: bool, last: bool) -> Sequence[_Piece]:
        """An assistant's turn; `replies`: after the last question, where Qwen3 shows what was thought."""
        train = message.train is not False
        content, thought = message.content, message.reasoning
        if self.template.thinking:
            content, thought = thought_and_said(message)
            thinks = replies and (last or bool(thought))
        else:  # a template that knows no reasoning: it must not get lost all the same
            thinks = bool(thought)
        if not thinks and not message.tool_calls:
            return ((self.answer_head, False), (content, train), (self.end, train), (self.newline, False))
        marks = self.marks
        parts: list[_Part] = [content]
        if thinks:
            written = f"\n{(thought or '').strip(chr(10))}\n"
            parts = [marks[THINK], written, marks[END_THINK], "\n\n" + content.lstrip("\n")]
        self._needs_tools(bool(message.tool_calls))
        for number, call in enumerate(message.tool_calls):
            parts += ["\n" if content or number else "", marks[CALL], call_text(call), marks[END_CALL]]
        return [(self.answer_head, False), *_joined(parts, train), (self.end, train), (self.newline, False)]

    def _result(self, message: Message, first: bool, last: bool) -> Sequence[_Piece]:
        """What a tool gave back: a part of a user's turn, which results in a row share."""
        self._needs_tools(True)
        written = (
            "user\n" if first else "\n",
            self.marks[RESULT],
            f"\n{message.content}\n",
            self.marks[END_RESULT],
        )
        opened: tuple[_Piece, ...] = ((self.start, False),) if first else ()
        closed: tuple[_Piece, ...] = ((self.end + self.newline, False),) if last else ()
        return (*opened, *_joined(written, False), *closed)

    def _tools(self, tools: Sequence[dict[str, Any]], before: str) -> list[_Piece]:
        """The system turn of a conversation with tools; `before`: what stands in it before them."""
        self._needs_tools(True)
        written = [self.marks.get(part, part) for part in (f"system\n{before}", *tools_text(tools))]
        return [(self.start, False), *_joined(written, False), (self.end + self.newline, False)]

    def _needs_tools(self, held: bool) -> None:
        if held and not (self.template.tools and self.policy == "assistant"):
            raise ValueError("this template has no way to write tools")

    def _reference(self, conversation: Conversation) -> list[_Piece]:
        """The whole conversation under policy `qwen`."""
        messages = without_leading_answer(conversation.messages)
        self._needs_tools(bool(conversation.tools) or any(m.tool_calls or m.role == "tool" for m in messages))
        found = [] if messages and messages[0].role == "system" else list(self.opening)
        for message in messages:
            found += self._qwen(message)
        return found

    def _qwen(self, message: Message) -> tuple[_Piece, ...]:
        content = message.content
        if message.reasoning:
            content = f"{THINK}\n{message.reasoning}\n{END_THINK}\n\n{content}"
        return (
            (self.start, True),
            (self.roles[message.role] + self.newline, False),
            (content, message.role == "assistant" and message.train is not False),
            (self.end + self.newline, True),
        )


def _joined(parts: Iterable[_Part], train: bool) -> list[_Piece]:
    """The parts as pieces; texts side by side become one, because they are encoded as one."""
    found: list[_Piece] = []
    for kind, group in groupby(parts, key=type):
        if kind is str:
            found.append(("".join(group), train))  # type: ignore[arg-type]
        else:
            found += ((part, train) for part in group)
    return found


def last_question(messages: Sequence[Message]) -> int:
    """The number of the last turn in which the user asks something (a tool's result given as a user's turn
    is no question); of the last turn where there is none."""
    for number in range(len(messages) - 1, -1, -1):
        role, content = messages[number].role, messages[number].content
        if role == "user" and not (content.startswith(RESULT) and content.endswith(END_RESULT)):
            return number
    return len(messages) - 1


def thought_and_said(message: Message) -> tuple[str, str]:
    """(what an answer says, the reasoning before it) as Qwen3's template takes them: reasoning given as such,
    else the <think> block in the text. With several blocks, what stands between them is left out."""
    content = message.content
    if message.reasoning is not None or END_THINK not in content:
        return content, message.reasoning or ""
    thought = content[: content.index(END_THINK)].rstrip("\n").split(THINK)[-1].lstrip("\n")
    return content.rsplit(END_THINK, 1)[1].lstrip("\n"), thought


def without_leading_answer(messages: Sequence[Message]) -> Sequence[Message]:
    """The messages without an assistant turn that opens the conversation (the first such turn only)."""
    head = 1 if messages and messages[0].role == "system" else 0
    if len(messages) > head and messages[head].role == "assistant":
        return (*messages[:head], *messages[head + 1 :])
    return messages
