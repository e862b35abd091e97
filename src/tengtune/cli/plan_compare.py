"""`tengtune plan --compare`"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tengtune.cli import plan_ask
from tengtune.plan.columns import gb, table
from tengtune.plan.strategy import Method, Range
from tengtune.ui import language
from tengtune.ui.console import Console

if TYPE_CHECKING:
    from tengtune.plan.compare import Answering, Side
    from tengtune.plan.judge import Plan, Verdict
    from tengtune.plan.search import Way


@dataclass(frozen=True)
class Sides:
    """What is compared, as the options say it; no hardware: this machine's cards; no method: both.
    tokens: of one epoch, for the hours."""

    hardware: tuple[str, ...]
    methods: tuple[Method, ...]
    engine: str | None
    given: Mapping[str, Any]
    global_batch: int | None
    host_memory: float | None
    disk: float | None
    tokens: float | None


def show(console: Console, model: str, asked: Sides) -> int:
    """A line for each method on each hardware, and one for answering on each kind of card."""
    from tengtune.plan import compare
    from tengtune.plan.work import EPOCHS

    spec = plan_ask.named(model)
    methods: tuple[Method, ...] = tuple(dict.fromkeys(asked.methods)) or ("lora", "full")
    rows: list[Side] = []
    answers: dict[tuple[str, int | None], Answering] = {}
    for text in dict.fromkeys(asked.hardware) or (None,):
        there = plan_ask.machine(text, asked.host_memory, asked.disk)
        for method in methods:
            given = {**asked.given, "method": method}
            if method == "full":
                given.pop("base", None)
            question = plan_ask.question_of(spec, there, asked.engine, given, asked.global_batch)
            rows.append(compare.side(question))
        tokens = question.strategy.row_tokens
        answers[there.name, there.memory_bytes] = compare.answering(spec, there, tokens)
    slots = None if asked.tokens is None else asked.tokens * EPOCHS
    cells = [_side(side, slots) for side in rows]
    cells += [_answering(each, slots) for each in answers.values()]
    heading = language.say(
        "plan.compared", model=model, parameters=f"{spec.parameters() / 1e9:.2f}", tokens=tokens
    )
    heads: list[str] = language.lookup("plan.compare_columns")
    lines = [heading, "", *table(heads if slots is not None else heads[:-1], cells), ""]
    lines += [f"- {note}" for note in _notes(rows, slots)]
    console.result("\n".join(lines), **_data(model, rows, list(answers.values()), slots))
    return 0


def _notes(rows: Sequence[Side], slots: float | None) -> list[str]:
    """What the columns and marks mean, and what the figures rest on."""
    from tengtune.plan import screen
    from tengtune.plan.work import EPOCHS

    best = [side.best for side in rows if side.best is not None]
    codes = ["plan.compare_least", "plan.compare_there", "plan.compare_answers"]
    codes += ["plan.ways_no_speed"] if any(way.tokens_per_s is None for way in best) else []
    codes += ["plan.ways_without_links"] if any(way.without_links for way in best) else []
    notes = [language.say(code) for code in (*codes, "plan.not_measured")]
    if slots is not None:
        hours = language.say("plan.compare_hours", tokens=f"{slots / EPOCHS:,.0f}", epochs=f"{EPOCHS:g}")
        notes.insert(2, hours)
    read = [note for side in rows for note in screen.read_into(side.hardware)]
    return [*dict.fromkeys(read), *notes]


def _side(side: Side, slots: float | None) -> list[str]:
    from tengtune.plan import choices

    names: dict[str, str] = language.lookup("plan.uses")
    least, best, hours = ["-", "-"], ["-"] * 6, "-"
    if side.least is not None:
        count = side.least.plan.strategy.cards
        more = "!" if count > (side.hardware.count or 1) else ""
        least = [f"{count}{_MARKS[side.least.plan.verdict]}{more}", gb(_card(side.least).expected)]
    if side.best is not None:
        plan = side.best.plan
        needs = [gb(each.expected) for each in (_card(side.best), plan.host, plan.disk)]
        best = [plan.engine, choices.cards(plan), *needs, choices.speed(side.best)]
        hours = _shown_hours(side.best, slots)
    first = [
        choices.counted(side.hardware),
        names[side.method],
        *least,
        _said(None if side.best is None else side.best.plan),
    ]
    return [*first, *best, *([] if slots is None else [hours])]


def _answering(each: Answering, slots: float | None) -> list[str]:
    names: dict[str, str] = language.lookup("plan.uses")
    needs = [gb(each.card.expected), gb(each.host.expected), gb(each.disk.expected)]
    enough = each.card_verdict != "no"
    least = f"1{_MARKS[each.verdict]}" if enough else "-"
    best = ["torch", "1", *needs, "-"] if enough else ["-"] * 6
    first = [each.hardware.name, names["answers"], least, needs[0], _said(each if enough else None)]
    return [*first, *best, *([] if slots is None else ["-"])]


_MARKS: dict[Verdict, str] = {"fits": "", "tight": "~", "unknown": "?", "no": "*"}
"""Behind a number of cards; no: their own memory is enough, the host's or the disk is not."""


def _said(plan: Plan | Answering | None) -> str:
    """The verdict of the best way on the cards there are, or what beside the cards it is short of."""
    names: dict[str, str] = language.lookup("plan.verdicts")
    if plan is None or not plan.short:
        return names["no" if plan is None else plan.verdict]
    return str(language.lookup("plan.compare_short")["_".join(plan.short)])


def _hours(way: Way | None, slots: float | None) -> float | None:
    """For so many places for tokens, as far as the speed is known."""
    speed = None if way is None else way.tokens_per_s
    return None if slots is None or speed is None else slots / speed / 3600


def _shown_hours(way: Way, slots: float | None) -> str:
    """To two digits; ^ where sending between cards is not in them."""
    hours = _hours(way, slots)
    return "?" if hours is None else f"{float(f'{hours:.2g}'):g}{'^' if way.without_links else ''}"


def _card(way: Way) -> Range:
    return way.plan.host if way.plan.hardware.is_cpu else way.plan.card.total


def _data(
    model: str, sides: Sequence[Side], answers: Sequence[Answering], slots: float | None
) -> dict[str, Any]:
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
                "verdict": "no" if side.best is None else side.best.plan.verdict,
                "short": [] if side.best is None else list(side.best.plan.short),
                "minimum": one(side.least),
                "recommended": one(side.best),
                "hours": _hours(side.best, slots),
            }
            for side in sides
        ],
        "answering": [
            {
                "hardware": each.hardware.name,
                "fits": each.verdict == "fits",
                "verdict": each.verdict,
                "short": list(each.short),
                "card": each.card.rounded(),
                "host": each.host.rounded(),
                "disk": each.disk.rounded(),
            }
            for each in answers
        ],
    }
