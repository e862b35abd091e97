"""Whether a conversation can be learned from, by label policy, and what is odd about it.

Under `assistant` a record that would teach nothing, or something wrong, is dropped with its reason. Under
`qwen` what the reference takes is taken, and the same reason becomes a remark.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from itertools import pairwise

from tengtune.data.fault import Notes, Unfit
from tengtune.data.formats.plain import PLAIN
from tengtune.data.scan import CODES, Scan
from tengtune.recipe import LabelPolicy
from tengtune.text.conversation import Conversation, Message

MOST_SHAPES = 1000


class Judge:
    """judge(conversation, notes) notes what is odd and rejects what must not be used."""

    def __init__(self, policy: LabelPolicy, control: Iterable[str], tools: bool = True) -> None:
        """`control`: the texts of the tokenizer's control tokens. `tools`: whether the model's template has a
        way to write tools; what the `qwen` policy imitates has none."""
        self.policy, self.tools = policy, tools and policy == "assistant"
        self.scan = Scan(control)
        self._sound: dict[tuple[object, ...], bool] = {}

    def batch(self, talks: Sequence[Conversation]) -> dict[int, Notes]:
        """What was found on each conversation on which something was found."""
        texts: list[str] = []
        usual = [self._is_usual(talk, texts) for talk in talks]
        suspects = self.scan.suspects("\n".join(texts))
        found = {}
        for number, talk in enumerate(talks):
            if not usual[number] or (suspects and self._is_odd(talk, suspects)):
                notes = Notes()
                self(talk, notes, suspects)
                if notes.found:
                    found[number] = notes
        return found

    def _is_odd(self, talk: Conversation, suspects: Collection[str]) -> bool:
        """Whether there are characters to be remarked on."""
        return any(self.scan.found(text, suspects) for text in _texts(talk))

    def _is_usual(self, talk: Conversation, texts: list[str]) -> bool:
        """Whether nothing but the characters of its texts, which are put to `texts`, could be wrong."""
        contents = [message[1] for message in talk[0]]
        shape = tuple([(m[0], m[2]) for m in talk[0] if not (m[3] or m[4])])
        if talk[1] or len(shape) < len(contents):
            texts += _texts(talk)
            return False
        texts += contents
        sound = self._sound.get(shape)
        if sound is None:
            notes = Notes()
            self(Conversation(tuple(Message(role, "x", train) for role, train in shape)), notes, ())
            sound = not notes.found
            if len(self._sound) < MOST_SHAPES:
                self._sound[shape] = sound
        return sound and "" not in contents and not any(map(str.isspace, contents))

    def __call__(self, talk: Conversation, notes: Notes, suspects: Collection[str] = CODES) -> None:
        """`suspects`: the faults of characters that may be there."""
        try:
            self._characters(talk, notes, suspects)
            if talk.messages[0].role == PLAIN:
                if not talk.messages[0].content.strip():
                    raise Unfit("empty_text")
                return
            uses_tools = talk.tools or any(m.tool_calls or m.role == "tool" for m in talk.messages)
            if uses_tools and not self.tools:
                raise Unfit("tools")
            self._roles(talk.messages, notes)
            self._answers(talk.messages, notes)
        except Unfit as unfit:
            notes.reject(unfit)

    def _fault(self, notes: Notes, code: str, **values: object) -> None:
        """What the policy makes of a fault the reference overlooks."""
        if self.policy == "assistant":
            raise Unfit(code, **values)
        notes(code, **values)

    def _characters(self, talk: Conversation, notes: Notes, suspects: Collection[str]) -> None:
        """Halves of a pair cannot be stored; the rest is only said."""
        for turn, text in enumerate(_texts(talk)) if suspects else ():
            for code in self.scan.found(text, suspects):
                if code == "surrogate":
                    raise Unfit("surrogate", turn=turn)
                parsed = code == "control_text" and self.policy == "qwen"
                notes("control_text_parsed" if parsed else code, turn=turn)

    def _roles(self, messages: Sequence[Message], notes: Notes) -> None:
        """The order of the turns."""
        turns = [message.role for message in messages]
        if "system" in turns[1:]:
            raise Unfit("system_late", turn=turns.index("system", 1))
        spoken = messages[1:] if turns[0] == "system" else messages
        if spoken and spoken[0].role == "assistant":
            notes("answer_first" if self.policy == "assistant" else "answer_first_left_out")
        repeated = [m.role for m, n in pairwise(spoken) if m.role == n.role != "tool" and not m.tool_calls]
        if repeated:
            notes("same_role", role=repeated[0])

    def _answers(self, messages: Sequence[Message], notes: Notes) -> None:
        """Something to ask and something to learn."""
        learned = False
        for turn, message in enumerate(messages):
            blank = not message.content.strip() and not message.tool_calls
            answer = message.role == "assistant" and message.train is not False
            if blank and answer:
                self._fault(notes, "empty_answer", turn=turn)
            if blank and message.role == "user":
                self._fault(notes, "empty_question", turn=turn)
            learned |= answer
        if not learned:
            self._fault(notes, "no_answer")
        elif messages[-1].role != "assistant":
            notes("unanswered")


def _texts(talk: Conversation) -> list[str]:
    """All texts of a conversation: the contents of its turns, and what else they and the tools hold."""
    texts = [message[1] for message in talk[0]]
    if talk[1]:
        texts.append(json.dumps(talk.tools, ensure_ascii=False))
    for turn, message in enumerate(talk[0]):
        if message[3] or message[4]:
            texts[turn] += f"{json.dumps(message.tool_calls, ensure_ascii=False)}{message.reasoning}"
    return texts
