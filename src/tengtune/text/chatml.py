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

from collections.abc import Sequence
from itertools import chain, pairwise

import numpy as np
import numpy.typing as npt

from tengtune.models.spec import Family
from tengtune.recipe import LabelPolicy
from tengtune.text.conversation import Conversation, Example, Message
from tengtune.text.tokenizer import Tokenizer

SYSTEM = "You are a helpful assistant."
ROLES = ("system", "user", "assistant")


_Piece = tuple[str | tuple[int, ...], bool]
"""A part of a rendered conversation: a text still to be encoded, or ids; and whether it is trained."""


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
    ids, train, starts = render_flat(conversations, tokenizer, policy, system)
    spans = zip(pairwise(starts.tolist()), conversations, strict=True)
    return [Example(ids[start:end], train[start:end], c.source) for (start, end), c in spans]


def render_flat(
    conversations: Sequence[Conversation], tokenizer: Tokenizer, policy: LabelPolicy, system: str = SYSTEM
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.bool_], npt.NDArray[np.int64]]:
    """`render_many` without an object for each: ids and mask one after the other, int32 and bool [T], and
    where each conversation begins and the last ends, int64 [n+1]."""
    writer = _Writer(tokenizer, policy, system)
    pieces: list[_Piece] = []
    firsts = [0]
    for conversation in conversations:
        pieces += writer.pieces(conversation.messages)
        firsts.append(len(pieces))
    texts = [content for content, _ in pieces if type(content) is str]
    ids, sizes = tokenizer.encode_flat(texts, control=policy == "qwen")
    # A pool of ids: those of the texts, then each piece that is ids already. A piece is a span of it.
    known = list(dict.fromkeys(content for content, _ in pieces if type(content) is tuple))
    pool = np.concatenate((ids, np.fromiter(chain.from_iterable(known), np.int32)))
    spans = np.concatenate((sizes, np.fromiter(map(len, known), np.int64, len(known))))
    text_number = iter(range(len(texts)))
    number_of = {content: len(texts) + i for i, content in enumerate(known)}
    span = np.array(
        [next(text_number) if type(c) is str else number_of[c] for c, _ in pieces],  # type: ignore[index]
        np.int64,
    )
    lengths = spans[span]
    ends = np.cumsum(lengths)
    index = np.repeat((np.cumsum(spans) - spans)[span] + lengths - ends, lengths)
    index += np.arange(len(index))
    train = np.repeat(np.fromiter((trained for _, trained in pieces), np.bool_, len(pieces)), lengths)
    return pool[index], train, np.concatenate((np.zeros(1, np.int64), ends))[firsts]


def prompt(messages: Sequence[Message], tokenizer: Tokenizer, system: str = SYSTEM) -> list[int]:
    """The ids a model answers to: the turns, then `<|im_start|>assistant\\n`. All text is plain text."""
    writer = _Writer(tokenizer, "assistant", system)
    pieces = [*writer.pieces(messages), (writer.answer_head, False)]
    parts = (tokenizer.encode(content) if isinstance(content, str) else content for content, _ in pieces)
    return list(chain.from_iterable(parts))


def first_prompt(example: Example, tokenizer: Tokenizer) -> list[int]:
    """The part of a rendered conversation that its first answer answers to; all of it without an answer."""
    head = np.array(_Writer(tokenizer, "assistant", "").answer_head, np.int32)
    found = np.zeros(0, np.int64)
    if len(example.ids) >= len(head):
        windows = np.lib.stride_tricks.sliding_window_view(example.ids, len(head))
        found = np.flatnonzero((windows == head).all(axis=1))
    ids: list[int] = example.ids[: found[0] + len(head) if len(found) else None].tolist()
    return ids


class _Writer:
    """Cuts turns into pieces, by label policy. `system`: the text of the turn put before a conversation that
    brings none; "": no such turn."""

    def __init__(self, tokenizer: Tokenizer, policy: LabelPolicy, system: str) -> None:
        self.policy = policy
        self.start, self.end = (tokenizer.im_start,), (tokenizer.im_end,)
        self.newline = tokenizer.newline_ids
        self.roles = {role: tuple(tokenizer.encode(role)) for role in ROLES}
        self.answer_head = (*self.start, *tokenizer.encode("assistant\n"))
        self.write = self._qwen if policy == "qwen" else self._assistant
        encode = tokenizer.encode_control if policy == "qwen" else tokenizer.encode
        self.system: list[_Piece] = [
            (tuple(encode(content)) if isinstance(content, str) else content, train)
            for content, train in (self.write(Message("system", system)) if system else ())
        ]

    def pieces(self, messages: Sequence[Message]) -> list[_Piece]:
        if self.policy == "qwen":
            messages = without_leading_answer(messages)
        found = [] if messages and messages[0].role == "system" else list(self.system)
        for message in messages:
            found += self.write(message)
        return found

    def _assistant(self, message: Message) -> tuple[_Piece, ...]:
        if message.role == "assistant":
            train = message.train is not False
            return (
                (self.answer_head, False),
                (message.content, train),
                (self.end, train),
                (self.newline, False),
            )
        # Role and text are encoded as one text, as a chat template's output is: a text that begins with a
        # line break merges with the one after the role.
        return (
            (self.start, False),
            (f"{message.role}\n{message.content}", False),
            (self.end + self.newline, False),
        )

    def _qwen(self, message: Message) -> tuple[_Piece, ...]:
        return (
            (self.start, True),
            (self.roles[message.role] + self.newline, False),
            (message.content, message.role == "assistant" and message.train is not False),
            (self.end + self.newline, True),
        )


def without_leading_answer(messages: Sequence[Message]) -> Sequence[Message]:
    """The messages without an assistant turn that opens the conversation (the first such turn only)."""
    head = 1 if messages and messages[0].role == "system" else 0
    if len(messages) > head and messages[head].role == "assistant":
        return (*messages[:head], *messages[head + 1 :])
    return messages
