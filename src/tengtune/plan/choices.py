"""The ways that were found, as a table of the best and as data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tengtune.plan import columns, judge
from tengtune.plan.hardware import Hardware
from tengtune.plan.judge import Plan
from tengtune.plan.search import Question, Way
from tengtune.ui import language
from tengtune.ui.lists import joined

SHOWN = 5


def lines(question: Question, ways: Sequence[Way], asked: Plan | None) -> list[str]:
    """The best ways, one a line. asked: the run file's own plan, which is marked."""
    if not ways:
        return []
    rows = [_row(number, way, asked) for number, way in enumerate(ways[:SHOWN], 1)]
    found = [
        language.say("plan.ways", batch=question.global_batch, tokens=question.strategy.row_tokens),
        *columns.table(language.lookup("plan.ways_columns"), rows),
    ]
    if len(ways) > SHOWN:
        found.append(language.say("plan.ways_more", count=len(ways) - SHOWN))
    if any(row[0].endswith("*") for row in rows):
        found.append(language.say("plan.ways_same"))
    return found


def notes(question: Question, ways: Sequence[Way], explain: bool) -> list[str]:
    """Why not all cards are used, what the order rests on, and with `explain` what has never run."""
    found = fewer(question, ways)
    if ways and ways[0].plan.pace is None:
        found.append(language.say("plan.ways_no_speed"))
    if any(way.without_links for way in ways[:SHOWN]):
        found.append(language.say("plan.ways_without_links"))
    if explain and any(way.unverified for way in ways):
        found.append(language.say("plan.ways_unverified"))
    return found


def fewer(question: Question, ways: Sequence[Way]) -> list[str]:
    """Why no way uses all cards that are there, where the rows of a step or the host's memory are why."""
    there, batch = question.cards, question.global_batch
    if not ways or any(way.plan.strategy.cards == there for way in ways):
        return []
    if batch % there:
        more = -(-batch // there) * there
        return [language.say("plan.fewer_batch", batch=batch, cards=there, more=more)]
    best = ways[0].plan
    asked = replace(best.strategy, cards=there, nodes=question.hardware.nodes)
    most = judge.make(best.spec, asked, best.engine, best.hardware, best.dtype)
    if most.host_verdict != "no":
        return []
    need, has = (f"{size / 1e9:.0f}" for size in (most.host.expected, best.hardware.host_bytes or 0))
    return [language.say("plan.fewer_host", cards=there, need=need, there=has)]


def needed(least: Way | None) -> str:
    """How many cards a training takes that those there are cannot do in any way."""
    if least is None:
        return language.say("plan.needed_none")
    plan = least.plan
    now = plan.strategy
    return language.say(
        "plan.needed",
        cards=now.cards,
        engine=plan.engine,
        rows=now.rows,
        batch=now.cards * now.rows * now.accumulate,
        share=sharing(plan),
        verdict=language.lookup("plan.verdicts")[plan.card_verdict],
        card=columns.gb(plan.card.total.expected),
    )


def place(plan: Plan, spoken: language.Language | None = None) -> str:
    """The cards a plan is for: "2 machines x 8 cards, Atlas 800 9000". spoken: None: the language chosen."""
    now, texts = plan.strategy, language.area_messages("plan")
    code = "place_cpu" if plan.hardware.is_cpu else "place_machines" if now.nodes > 1 else "place"
    values = {"nodes": now.nodes, "cards": now.cards // now.nodes, "name": plan.hardware.name}
    return language.fill(texts[f"plan.{code}"][spoken or language.current()], values)


def counted(hardware: Hardware) -> str:
    """The cards there are in few letters: "8 x 910B4", of several machines "2 x 8 x 910B4"."""
    each = (hardware.count or 1) // hardware.nodes
    machines = f"{hardware.nodes} x " if hardware.nodes > 1 else ""
    return hardware.name if hardware.is_cpu else f"{machines}{each} x {hardware.name}"


def data(ways: Sequence[Way]) -> list[dict[str, Any]]:
    """All of them for --json, the best first; bytes, and tokens a second of all cards."""
    return [
        {
            "engine": way.plan.engine,
            "cards": way.plan.strategy.cards,
            "nodes": way.plan.strategy.nodes,
            "micro_batch": way.plan.strategy.rows,
            "accumulate": way.plan.strategy.accumulate,
            "recompute": "full" if recomputes(way.plan) else "none",
            "zero": way.plan.strategy.zero,
            "shards": way.plan.profile.shards and way.plan.strategy.cards > 1,
            "offload": way.plan.strategy.offload,
            "base": way.plan.strategy.base,
            "dtype": way.plan.computes_in,
            "verdict": way.plan.verdict,
            "card": way.plan.card.total.rounded(),
            "host": way.plan.host.rounded(),
            "disk": way.plan.disk.rounded(),
            "margin": round(way.margin),
            "tokens_per_s": _speed(way.plan),
            "without_links": way.without_links,
            "unverified": list(way.unverified),
        }
        for way in ways
    ]


def recomputes(plan: Plan) -> bool:
    """Whether activations are computed again, asked for or not."""
    return plan.strategy.recompute or plan.profile.always_recomputes


def sharing(plan: Plan) -> str:
    """What a card keeps of the whole, and what is kept elsewhere or narrower."""
    now = plan.strategy
    if now.cards == 1 or (now.zero == 0 and not plan.profile.shards):
        kept = language.say("plan.whole")
    elif plan.profile.shards:
        kept = language.say("plan.part", count=now.cards)
    else:
        kept = f"ZeRO-{now.zero}"
    more: list[str] = [] if now.base == "compute" else [now.base]
    more += [] if now.offload == "none" else [f"offload {now.offload}"]
    return joined([kept, *more])


def cards(plan: Plan) -> str:
    """How many, of several machines "2 x 8"."""
    now = plan.strategy
    return str(now.cards) if now.nodes == 1 else f"{now.nodes} x {now.cards // now.nodes}"


def speed(way: Way) -> str:
    """Tokens a second of all cards, to two digits; ^ where sending between them is not in it."""
    if way.tokens_per_s is None:
        return "?"
    return f"{float(f'{way.tokens_per_s:.2g}'):.0f}{'^' if way.without_links else ''}"


def need(plan: Plan) -> str:
    """GB of a card, of a CPU the host's."""
    total = plan.host if plan.hardware.is_cpu else plan.card.total
    return columns.gb(total.expected)


def _row(number: int, way: Way, asked: Plan | None) -> list[str]:
    same = asked is not None and _identity(way.plan) == _identity(asked)
    plan = way.plan  # what the host or the disk is short of is said once, for all
    shown = plan.card_verdict if plan.verdict == "no" else plan.verdict
    return [
        f"{number}{'*' if same else ''}",
        way.plan.engine,
        cards(way.plan),
        str(way.plan.strategy.rows),
        "full" if recomputes(way.plan) else "none",
        sharing(way.plan),
        need(way.plan),
        speed(way),
        language.lookup("plan.verdicts")[shown],
    ]


def _identity(plan: Plan) -> object:
    """What tells one way from another."""
    now = plan.strategy
    return plan.engine, now.cards, now.nodes, now.rows, now.zero, recomputes(plan), now.base, now.offload


def _speed(plan: Plan) -> dict[str, int] | None:
    return None if plan.pace is None else (plan.pace.tokens_per_s * plan.strategy.cards).rounded()
