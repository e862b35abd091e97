"""Whether a conversation can be learned from, by label policy, and what is odd about it.

Under `assistant` a record that would teach nothing, or something wrong, is dropped with its reason. Under
`qwen` what the reference takes is taken, and the same reason becomes a remark.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise

from tengtune.data.fault import Note, Unfit
from tengtune.recipe import LabelPolicy
from tengtune.text.conversation import Message

_SURROGATE = re.compile("[\ud800-\udfff]")
_CONTROL_CHARACTER = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_DAMAGED = "\ufffd"


class Judge:
    """judge(messages, note): see data/read.py."""

    def __init__(self, policy: LabelPolicy, control: Iterable[str]) -> None:
        """`control`: the texts of the tokenizer's control tokens."""
        self.policy = policy
        self.control = re.compile("|".join(map(re.escape, sorted(control, key=len, reverse=True))))

    def __call__(self, messages: Sequence[Message], note: Note) -> None:
        self._texts(messages, note)
        self._roles(messages, note)
        self._answers(messages, note)

    def _fault(self, note: Note, code: str, **values: object) -> None:
        """What the policy makes of a fault the reference overlooks."""
        if self.policy == "assistant":
            raise Unfit(code, **values)
        note(code, **values)

    def _texts(self, messages: Sequence[Message], note: Note) -> None:
        """Characters: halves of a pair cannot be stored; the rest is only said."""
        for turn, message in enumerate(messages):
            content = message.content
            if not content.isascii():
                if _SURROGATE.search(content):
                    raise Unfit("surrogate", turn=turn)
                if _DAMAGED in content:
                    note("damaged_text", turn=turn)
            if _CONTROL_CHARACTER.search(content):
                note("control_character", turn=turn)
            if "<" in content and self.control.search(content):
                note("control_text" if self.policy == "assistant" else "control_text_parsed", turn=turn)

    def _roles(self, messages: Sequence[Message], note: Note) -> None:
        """The order of the turns."""
        turns = [message.role for message in messages]
        if "system" in turns[1:]:
            raise Unfit("system_late", turn=turns.index("system", 1))
        spoken = turns[1:] if turns[0] == "system" else turns
        if spoken[:1] == ["assistant"]:
            note("answer_first" if self.policy == "assistant" else "answer_first_left_out")
        repeated = [role for role, next_role in pairwise(spoken) if role == next_role]
        if repeated:
            note("same_role", role=repeated[0])

    def _answers(self, messages: Sequence[Message], note: Note) -> None:
        """Something to ask and something to learn."""
        learned = False
        for turn, message in enumerate(messages):
            blank = not message.content.strip()
            answer = message.role == "assistant" and message.train is not False
            if blank and answer:
                self._fault(note, "empty_answer", turn=turn)
            if blank and message.role == "user":
                self._fault(note, "empty_question", turn=turn)
            learned |= answer
        if not learned:
            self._fault(note, "no_answer")
        elif messages[-1].role != "assistant":
            note("unanswered")
