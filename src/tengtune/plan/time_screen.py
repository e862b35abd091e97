"""The answer's part about time: lines for a person, data for a program."""

from __future__ import annotations

from typing import Any

from tengtune.plan import time
from tengtune.plan.judge import Plan
from tengtune.plan.strategy import Range
from tengtune.plan.time import Pace
from tengtune.plan.work import Work
from tengtune.ui import language


def lines(plan: Plan, work: Work | None, explain: bool) -> list[str]:
    """Tokens a second, hours where the tokens are known; with `explain` what takes a micro step's time. Empty
    where nothing is known of the hardware's speed, and for what does not fit the cards."""
    pace = plan.pace
    if pace is None or plan.card_verdict == "no":
        return []
    speed = dict(zip(("low", "expected", "high"), map(_tokens, pace.tokens_per_s.bounds), strict=True))
    names: dict[str, str] = language.lookup("plan.parts")
    links = "_without_links" if pace.without_links else ""
    found = [language.say(f"plan.speed{links}", **speed, binds=names[pace.binds])]
    if work is not None:
        needed = time.hours(pace, work.slots, plan.strategy.cards)
        found.append(language.say(f"plan.hours{links}", **took(needed), work=_said(work)))
    if explain:
        found += ["", *_parts(plan, pace, names)]
    return found


def notes(plan: Plan) -> list[tuple[str, dict[str, object]]]:
    """What the time rests on or lacks, as codes of texts with their values."""
    pace, values = plan.pace, {"name": plan.hardware.name}
    if pace is None:
        return [("plan.no_pace", dict(values))]
    return [(code, dict(values)) for code in pace.unknown]


def data(plan: Plan, work: Work | None) -> dict[str, Any] | None:
    """The same for --json: tokens a second, seconds, hours; None where no time is known."""
    pace = plan.pace
    if pace is None:
        return None
    needed = None if work is None else time.hours(pace, work.slots, plan.strategy.cards)
    return {
        "tokens_per_s": dict(pace.tokens_per_s.__dict__),
        "without_links": pace.without_links,
        "parts": pace.parts,
        "binds": pace.binds,
        "tokens": None if work is None else round(work.slots),
        "hours": None if needed is None else dict(needed.__dict__),
    }


def _parts(plan: Plan, pace: Pace, names: dict[str, str]) -> list[str]:
    """Seconds of a micro step by what takes them, each with its formula; then the figures in them."""
    spec, strategy, profile, hardware = plan.spec, plan.strategy, plan.profile, plan.hardware
    formulas: dict[str, str] = language.lookup("plan.time_formulas")
    found = [language.say("plan.micro_step", tokens=strategy.tokens)]
    for name, seconds in pace.parts.items():
        found += [f"{seconds:8.3f} s  {names[name]}", f"    {formulas[name]}"]
    assert hardware.peak_flops is not None  # else there is no pace
    assert hardware.hbm_bytes_per_s is not None
    found.append(
        language.say(
            "plan.time_constants",
            flops=f"{time.token_flops(spec, strategy, profile) / 1e9:.1f}",
            peak="{:.0f} / {:.0f} / {:.0f}".format(*(each / 1e12 for each in hardware.peak_flops.bounds)),
            share="{:g} / {:g} / {:g}".format(*profile.speed.share.bounds),
            hbm=f"{hardware.hbm_bytes_per_s / 1e9:.0f}",
        )
    )
    sent, rate = time.link_bytes(spec, strategy, profile), time.link_rate(strategy, hardware)
    if sent and rate:
        found.append(language.say("plan.sent", sent=f"{sent / 1e9:.2f}", rate=f"{rate / 1e9:.0f}"))
    return found


def _said(work: Work) -> str:
    if work.rows is None:
        return language.say(
            "plan.work_tokens", tokens=_tokens(work.slots / work.epochs), epochs=f"{work.epochs:g}"
        )
    return language.say(
        "plan.work_rows",
        rows=f"{work.rows:,}",
        tokens=f"{work.tokens:,}",
        trained=f"{work.trained_tokens:,}",
        epochs=f"{work.epochs:g}",
    )


def _tokens(number: float) -> str:
    """Three digits that count."""
    digits = max(len(str(round(number))) - 3, 0)
    return f"{round(number, -digits):,.0f}"


def took(hours: Range) -> dict[str, str]:
    """Hours as a person says them, below one hour in minutes: low, expected, high and their unit."""
    unit, factor = ("hours", 1) if hours.expected >= 1 else ("minutes", 60)
    figures = [_figure(factor * each) for each in hours.bounds]
    unit = language.lookup("plan.units")[unit]
    return dict(zip(("low", "expected", "high", "unit"), (*figures, unit), strict=True))


def _figure(number: float) -> str:
    if number < 0.005:
        return "<0.01"
    return f"{number:.2f}" if number < 1 else f"{number:.1f}" if number < 100 else f"{number:.0f}"
