"""All sets of questions put to a model, and the figures of the model before and after side by side."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tengtune.evaluate.examiner import Examiner
from tengtune.evaluate.questions import Choice, Mark
from tengtune.evaluate.read import QuestionSet
from tengtune.json_file import finite
from tengtune.ui import language

CHANCE = 1.96
"""Standard deviations within which 95 of 100 differences lie that are chance alone."""


def mark_all(
    examiner: Examiner, sets: Sequence[QuestionSet], advance: Callable[[int], None]
) -> list[list[Mark]]:
    """The marks of every question of every set; `advance` is told how many of the `pieces` are done. All
    answers are written first, several at a time."""
    written = [
        ([*each.shots, *question.asked()], question.answer_tokens)
        for each in sets
        for question in each.questions
        if question.answer_tokens
    ]
    for number, _ in enumerate(examiner.write(written), 1):
        advance(number)
    done = len(written)  # those without room, or asked twice, were not written
    marks: list[list[Mark]] = []
    for each in sets:
        marks.append([])
        for question in each.questions:
            marks[-1].append(question.mark(examiner, each.shots))
            done += 1
            advance(done)
    return marks


def pieces(sets: Sequence[QuestionSet]) -> int:
    """The pieces of work that marking these sets is: answers to write, and questions to mark."""
    return sum(1 + bool(question.answer_tokens) for each in sets for question in each.questions)


@dataclass(frozen=True)
class Comparison:
    """The marks of one set before and after."""

    questions: QuestionSet
    before: Sequence[Mark]
    after: Sequence[Mark]

    def figures(self) -> dict[str, Any]:
        """JSON values. asked: the questions both were asked; measures: measure -> [share before, share after]
        over those of them that have it, counts: measure -> how many these are; missing: what was not
        measured -> the records it was not measured of; loss: mean per token of the right answers, [before,
        after], null for one that is no number; gained and lost: questions right only after, only before, by
        the first measure; by_chance: whether their difference may be chance."""
        pairs = [
            (old, new) for old, new in zip(self.before, self.after, strict=True) if old.hits and new.hits
        ]
        hits: dict[str, list[tuple[bool, bool]]] = {}
        for old, new in pairs:
            for name in old.hits:
                hits.setdefault(name, []).append((old.hits[name], new.hits[name]))
        first = next(iter(hits.values()), [])
        gained = sum(after > before for before, after in first)
        lost = sum(after < before for before, after in first)
        losses = [_mean_loss(marks) for marks in (self.before, self.after)]
        return {
            "name": self.questions.name,
            "kind": self.questions.kind,
            "questions": len(self.before),
            "asked": len(pairs),
            "refused": dict(Counter(unfit.code for _, unfit in self.questions.refused)),
            **_how(self.questions),
            "missing": self._missing(),
            "measures": {
                name: [sum(pair[i] for pair in each) / len(each) for i in (0, 1)]
                for name, each in hits.items()
            },
            "counts": {name: len(each) for name, each in hits.items()},
            "loss": None if None in losses else finite(losses),
            "gained": gained,
            "lost": lost,
            "by_chance": by_chance(gained, lost),
        }

    def lines(self, texts: bool) -> Iterator[dict[str, Any]]:
        """A line for each question; without `texts` nothing of the question and the answers themselves."""
        for question, old, new in zip(self.questions.questions, self.before, self.after, strict=True):
            words = {"question": question.text, "expected": question.expected()} if texts else {}
            marks = {"before": old.as_json(texts), "after": new.as_json(texts)}
            missing = old.missing or new.missing
            error = {"error": language.say(f"evaluate.{missing}")} if missing else {}
            yield {"set": self.questions.name, "source": question.source, **words, **marks, **error}

    def _missing(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for question, old, new in zip(self.questions.questions, self.before, self.after, strict=True):
            if missing := old.missing or new.missing:
                found.setdefault(missing, []).append(question.source.removeprefix(f"{self.questions.name}:"))
        return found


def count_of(figures: Mapping[str, Any], measure: str) -> int:
    """Of how many questions a measure of `Comparison.figures` is; older records have one count for all."""
    return int(figures.get("counts", {}).get(measure, figures["asked"]))


def by_chance(gained: int, lost: int) -> bool:
    """Whether so many changes one way and the other may be chance (McNemar's test, normal approximation)."""
    return abs(gained - lost) <= CHANCE * math.sqrt(gained + lost)


def _how(questions: QuestionSet) -> dict[str, Any]:
    first = questions.questions[0]
    by = {"by": first.by} if isinstance(first, Choice) else {}
    return {"shots": sum(message.role == "assistant" for message in questions.shots), **by}


def _mean_loss(marks: Sequence[Mark]) -> float | None:
    labels = sum(mark.labels for mark in marks)
    return sum(mark.loss_sum for mark in marks) / labels if labels else None
