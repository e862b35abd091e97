"""Whether a tuned model still knows what everybody knows: general questions before and after.

Tuning on a narrow task can make a model answer everything in its new way; the loss on held-out data of the
same task does not show that. The questions are in facts/general.yaml.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tengtune import facts
from tengtune.evaluate.questions import Free, Mark
from tengtune.evaluate.read import QuestionSet
from tengtune.evaluate.score import by_chance
from tengtune.text.conversation import Message

NAME = "general"
ANSWER_TOKENS = 48

Verdict = Literal["kept", "weakened", "lost", "unknown"]

ENOUGH_KNOWN = 3
"""With fewer questions answered before tuning nothing can be said."""
WEAKER = 1.0
"""Nats per token: the right answer has become e times less likely at every token. (A greedy answer
turns wrong for much less, by another wording.)"""


@dataclass(frozen=True)
class Judgement:
    """verdict, and the counts it rests on: known, questions answered rightly before; lost, those of them
    answered wrongly after; gained, questions answered rightly only after; weakened, those still right whose
    answer's loss rose by more than WEAKER.

    loss_rise: rise of the mean loss per token of the right answers, over all questions.
    """

    verdict: Verdict
    known: int
    lost: int
    gained: int
    weakened: int
    loss_rise: float


def general_questions() -> QuestionSet:
    """The general questions, Chinese and English."""
    questions = [
        Free(
            f"{language}:{number}",
            (Message("user", entry["question"]),),
            entry["answer"],
            ANSWER_TOKENS,
            tuple(map(tuple, entry["keywords"])),
        )
        for language, entries in facts.tree("general.yaml").items()
        for number, entry in enumerate(entries)
    ]
    return QuestionSet(NAME, "free", list(questions))


def judge(before: Sequence[Mark], after: Sequence[Mark]) -> Judgement:
    """Compare the marks of the same questions.

    lost      a third or more of the known questions are forgotten
    weakened  more than a tenth of them are forgotten, or a third or more weakened
    kept      neither; unknown: fewer than ENOUGH_KNOWN were known before
    A lost question counts as forgotten if its right answer's loss rose by more than WEAKER. The others may
    have turned by chance, as some of the wrong ones turn right; they count as well where lost and gained
    differ by more than chance (`by_chance`).
    Where the models could not be asked, which takes room for an answer, nothing is known.
    """
    pairs = list(zip(before, after, strict=True))
    rise = _mean_loss(after) - _mean_loss(before)
    known = [(old, new) for old, new in pairs if old.hits.get("contains")]
    wrong = [(old, new) for old, new in known if not new.hits.get("contains")]
    gained = sum(bool(new.hits.get("contains")) and not old.hits.get("contains") for old, new in pairs)
    faded = sum(_much_less_likely(old, new) for old, new in wrong)
    weakened = sum(_much_less_likely(old, new) for old, new in known) - faded
    forgotten = faded if by_chance(gained, len(wrong)) else len(wrong)
    verdict: Verdict = "kept"
    if len(known) < ENOUGH_KNOWN:
        verdict = "unknown"
    elif 3 * forgotten >= len(known):
        verdict = "lost"
    elif 10 * forgotten > len(known) or 3 * weakened >= len(known):
        verdict = "weakened"
    return Judgement(verdict, len(known), len(wrong), gained, weakened, rise)


def wording(verdict: str, known: int, lost: int) -> str:
    """The verdict as its text is called; "kept" has another text where so many are lost that it needs one."""
    return "kept_by_chance" if verdict == "kept" and 10 * lost > known else verdict


def _much_less_likely(old: Mark, new: Mark) -> bool:
    """Whether the right answer's loss rose by more than WEAKER; one that is no number any more did."""
    if old.loss is None or not new.labels:
        return False
    return new.loss is None or new.loss - old.loss > WEAKER


def _mean_loss(marks: Sequence[Mark]) -> float:
    return sum(mark.loss_sum for mark in marks) / max(sum(mark.labels for mark in marks), 1)
