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
from itertools import accumulate, chain, pairwise

import numpy as np

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
    writer = _Writer(tokenizer, policy)
    pieces = [list(writer.pieces(with_system(c.messages, system))) for c in conversations]
    flat = list(chain.from_iterable(pieces))
    texts = [content for content, _ in flat if isinstance(content, str)]
    encoded = iter(tokenizer.encode_batch(texts, control=policy == "qwen"))
    parts = [next(encoded) if isinstance(content, str) else content for content, _ in flat]
    sizes = np.fromiter(map(len, parts), np.int64, len(parts))
    ids = np.fromiter(chain.from_iterable(parts), np.int32, int(sizes.sum()))
    train = np.repeat(np.fromiter((trained for _, trained in flat), np.bool_, len(flat)), sizes)
    part_bounds = list(accumulate(map(len, pieces), initial=0))
    bounds = np.concatenate(([0], np.cumsum(sizes)))[part_bounds].tolist()
    spans = zip(pairwise(bounds), conversations, strict=True)
    return [Example(ids[start:end], train[start:end], c.source) for (start, end), c in spans]


def prompt(messages: Sequence[Message], tokenizer: Tokenizer, system: str = SYSTEM) -> list[int]:
    """The ids a model answers to: the turns, then `<|im_start|>assistant\\n`. All text is plain text."""
    writer = _Writer(tokenizer, "assistant")
    pieces = [*writer.pieces(with_system(messages, system)), (writer.answer_head, False)]
    parts = (tokenizer.encode(content) if isinstance(content, str) else content for content, _ in pieces)
    return list(chain.from_iterable(parts))


def first_prompt(example: Example, tokenizer: Tokenizer) -> list[int]:
    """The part of a rendered conversation that its first answer answers to; all of it without an answer."""
    head = np.array(_Writer(tokenizer, "assistant").answer_head, np.int32)
    found = np.zeros(0, np.int64)
    if len(example.ids) >= len(head):
        windows = np.lib.stride_tricks.sliding_window_view(example.ids, len(head))
        found = np.flatnonzero((windows == head).all(axis=1))
    ids: list[int] = example.ids[: found[0] + len(head) if len(found) else None].tolist()
    return ids


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
            yield self.answer_head, False
            yield message.content, train
            yield self.end, train
        else:
            yield self.start, False
            # Role and text are encoded as one text, as a chat template's output is: a text that begins
            # with a line break merges with the one after the role.
            yield f"{message.role}\n{message.content}", False
            yield self.end, False
        yield self.newline, False

    def _qwen(self, message: Message) -> Iterator[_Piece]:
        yield self.start, True
        yield self.roles[message.role] + self.newline, False
        yield message.content, message.role == "assistant" and message.train is not False
        yield self.end + self.newline, True


def without_leading_answer(messages: Sequence[Message]) -> Sequence[Message]:
    """The messages without an assistant turn that opens the conversation (the first such turn only)."""
    head = 1 if messages and messages[0].role == "system" else 0
    if len(messages) > head and messages[head].role == "assistant":
        return (*messages[:head], *messages[head + 1 :])
    return messages
