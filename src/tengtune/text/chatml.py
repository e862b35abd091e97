"""ChatML: a conversation as token ids, with the mask of what is trained, made together in one place.

    <|im_start|>role\\ncontent<|im_end|>\\n    for every turn

Label policies:
    assistant  trained: the assistant's text and the `<|im_end|>` that closes it. All text is plain text.
               Ids are those of Qwen's chat template, with one difference: the assistant's text is encoded
               by itself, because that is how the model will have to write it.
    qwen       token for token what QwenLM/Qwen finetune.py and mindformers' qwen_preprocess.py make:
               every `<|im_start|>`, every `<|im_end|>` and the newline after it is trained, too;
               control-token text is parsed; a leading assistant turn is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from tengtune.models.spec import Family
from tengtune.recipe import LabelPolicy
from tengtune.text.conversation import Conversation, Example, Message
from tengtune.text.tokenizer import Tokenizer

SYSTEM = "You are a helpful assistant."
ROLES = ("system", "user", "assistant")


@dataclass(frozen=True)
class _Piece:
    """A part of a rendered conversation: a text still to be encoded, or ids; trained or not."""

    content: str | tuple[int, ...]
    train: bool = False


def default_system(given: str | None, policy: LabelPolicy, family: Family) -> str:
    """The system text of conversations that bring none; "" for no system turn.

    `given` (data.system of the run file) wins; "" there switches the turn off. Otherwise what the
    model's own template does: Qwen1 to Qwen2.5 begin with SYSTEM, Qwen3 with nothing. The `qwen`
    policy always has a system turn, as its reference does.
    """
    if given is not None:
        return given
    return "" if family == "qwen3" and policy == "assistant" else SYSTEM


def render(
    conversation: Conversation, tokenizer: Tokenizer, policy: LabelPolicy, system: str = SYSTEM
) -> Example:
    """One conversation as ids and mask; `system` is used when it brings no system turn ("": none)."""
    return render_many([conversation], tokenizer, policy, system)[0]


def render_many(
    conversations: Sequence[Conversation], tokenizer: Tokenizer, policy: LabelPolicy, system: str = SYSTEM
) -> list[Example]:
    """`render` for many at once: one call of the tokenizer for all their texts."""
    pieces_of = _Writer(tokenizer, policy).pieces
    pieces = [list(pieces_of(with_system(c.messages, system))) for c in conversations]
    texts = [p.content for p in chain.from_iterable(pieces) if isinstance(p.content, str)]
    encoded = iter(tokenizer.encode_batch(texts, control=policy == "qwen"))
    examples = []
    for conversation, parts in zip(conversations, pieces, strict=True):
        ids = [next(encoded) if isinstance(p.content, str) else p.content for p in parts]
        flat = np.fromiter(chain.from_iterable(ids), np.int32)
        train = np.repeat([p.train for p in parts], [len(i) for i in ids]).astype(np.bool_)
        examples.append(Example(flat, train, conversation.source))
    return examples


def prompt(messages: Sequence[Message], tokenizer: Tokenizer, system: str = SYSTEM) -> list[int]:
    """The ids a model answers to: the turns, then `<|im_start|>assistant\\n`. All text is plain text."""
    writer = _Writer(tokenizer, "assistant")
    pieces = [*writer.pieces(with_system(messages, system)), _Piece(writer.answer_head)]
    ids = (tokenizer.encode(p.content) if isinstance(p.content, str) else p.content for p in pieces)
    return list(chain.from_iterable(ids))


def with_system(messages: Sequence[Message], system: str) -> Sequence[Message]:
    """The messages, with a system turn in front when there is none and `system` is not empty."""
    if not system or any(message.role == "system" for message in messages[:1]):
        return messages
    return (Message("system", system), *messages)


class _Writer:
    """Cuts turns into pieces, by label policy."""

    def __init__(self, tokenizer: Tokenizer, policy: LabelPolicy) -> None:
        self.policy = policy
        self.start, self.end = (tokenizer.im_start,), (tokenizer.im_end,)
        self.newline = tokenizer.newline_ids
        self.roles = {role: tuple(tokenizer.encode(role)) for role in ROLES}
        self.answer_head = (*self.start, *tokenizer.encode("assistant\n"))

    def pieces(self, messages: Sequence[Message]) -> Iterator[_Piece]:
        if self.policy == "qwen":
            messages = without_leading_answer(messages)
        write = self._qwen if self.policy == "qwen" else self._assistant
        for message in messages:
            yield from write(message)

    def _assistant(self, message: Message) -> Iterator[_Piece]:
        if message.role == "assistant":
            train = message.train is not False
            yield _Piece(self.answer_head)
            yield _Piece(message.content, train)
            yield _Piece(self.end, train)
        else:
            yield _Piece(self.start)
            # Role and text are encoded as one text, as a chat template's output is: a text that begins
            # with a line break merges with the one after the role.
            yield _Piece(f"{message.role}\n{message.content}")
            yield _Piece(self.end)
        yield _Piece(self.newline)

    def _qwen(self, message: Message) -> Iterator[_Piece]:
        yield _Piece(self.start, True)
        yield _Piece(self.roles[message.role] + self.newline)
        yield _Piece(message.content, message.role == "assistant" and message.train is not False)
        yield _Piece(self.end + self.newline, True)


def without_leading_answer(messages: Sequence[Message]) -> Sequence[Message]:
    """The messages without an assistant turn that opens the conversation (the first such turn only)."""
    head = 1 if messages and messages[0].role == "system" else 0
    if len(messages) > head and messages[head].role == "assistant":
        return (*messages[:head], *messages[head + 1 :])
    return messages
