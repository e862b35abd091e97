"""`tengtune plan --compare`"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tengtune.cli import plan_ask
from tengtune.plan.columns import gb, table
from tengtune.plan.strategy import Method, Range
from tengtune.ui import language
from tengtune.ui.console import Console

if TYPE_CHECKING:
    from tengtune.plan.compare import Answering, Side
    from tengtune.plan.search import Way


@dataclass(frozen=True)
class Sides:
    """What is compared, as the options say it; no hardware: this machine's cards; no method: both."""

    hardware: tuple[str, ...]
    methods: tuple[Method, ...]
    engine: str | None
    given: Mapping[str, Any]
    global_batch: int | None
    host_memory: float | None
    disk: float | None


def show(console: Console, model: str, asked: Sides) -> int:
    """A line for each method on each hardware, and one for answering."""
    from tengtune.plan import compare

    spec = plan_ask.named(model)
    methods: tuple[Method, ...] = tuple(dict.fromkeys(asked.methods)) or ("lora", "full")
    rows, answers = [], []
    for text in dict.fromkeys(asked.hardware) or (None,):
        there = plan_ask.machine(text, asked.host_memory, asked.disk)
        for method in methods:
            given = {**asked.given, "method": method}
            if method == "full":
                given.pop("base", None)
            question = plan_ask.question_of(spec, there, asked.engine, given, asked.global_batch)
            rows.append((question, compare.side(question)))
        tokens = rows[-1][0].strategy.row_tokens
        answers.append(compare.answering(spec, there, tokens))
    cells = [_side(side, question.hardware.count or 1) for question, side in rows]
    cells += [_answering(each) for each in answers]
    heading = language.say(
        "plan.compared", model=model, parameters=f"{spec.parameters() / 1e9:.2f}", tokens=tokens
    )
    notes = [language.say(code) for code in ("plan.compare_least", "plan.compare_answers")]
    if any(side.best is not None and side.best.tokens_per_s is None for _, side in rows):
        notes.append(language.say("plan.ways_no_speed"))
    notes += [language.say("plan.not_measured")]
    lines = [heading, "", *table(language.lookup("plan.compare_columns"), cells), ""]
    lines += [f"- {note}" for note in notes]
    console.result("\n".join(lines), **_data(model, [side for _, side in rows], answers))
    return 0


def _side(side: Side, there: int) -> list[str]:
    names: dict[str, str] = language.lookup("plan.uses")
    least = ["-", "-"]
    if side.least is not None:
        count = side.least.plan.strategy.cards
        least = [f"{count}{'' if count <= there else '!'}", gb(_card(side.least).expected)]
    best = ["-"] * 6
    if side.best is not None:
        from tengtune.plan import choices

        plan = side.best.plan
        best = [
            plan.engine,
            choices.cards(plan),
            gb(_card(side.best).expected),
            gb(plan.host.expected),
            gb(plan.disk.expected),
        ]
        best.append(choices.speed(side.best))
    return [side.hardware.name, names[side.method], *least, *best]


def _answering(each: Answering) -> list[str]:
    names: dict[str, str] = language.lookup("plan.uses")
    needs = [gb(each.card.expected), gb(each.host.expected), gb(each.disk.expected)]
    least = ["1", gb(each.card.expected)] if each.fits else ["-", gb(each.card.expected)]
    best = ["torch", "1", *needs, "-"] if each.fits else ["-"] * 6
    return [each.hardware.name, names["answers"], *least, *best]


def _card(way: Way) -> Range:
    return way.plan.host if way.plan.hardware.is_cpu else way.plan.card.total


def _data(model: str, sides: list[Side], answers: list[Answering]) -> dict[str, Any]:
    """The same for --json; bytes."""
    from tengtune.plan import choices

    def one(way: Way | None) -> dict[str, Any] | None:
        return None if way is None else choices.data([way])[0]

    return {
        "model": model,
        "trainings": [
            {
                "hardware": side.hardware.name,
                "cards_there": side.hardware.count or 1,
                "method": side.method,
                "minimum": one(side.least),
                "recommended": one(side.best),
            }
            for side in sides
        ],
        "answering": [
            {
                "hardware": each.hardware.name,
                "fits": each.fits,
                "card": each.card.rounded(),
                "host": each.host.rounded(),
                "disk": each.disk.rounded(),
            }
            for each in answers
        ],
    }
