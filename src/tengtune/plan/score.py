"""How far the sum lies from published peaks and speeds: how far a plan may be trusted. bench/planner.py
prints more of it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace

from tengtune import facts
from tengtune.plan import published, time
from tengtune.plan.judge import Plan
from tengtune.plan.profiles import OURS
from tengtune.plan.published import Row
from tengtune.ui import language

MOST_MFU = 0.65
"""A speed that makes more of a card's peak is held to be a printing error."""


def peaks(program: str | None = None) -> list[float]:
    """Relative errors of the expected peaks of rows of a known length, of one program or of all; positive:
    too much."""
    rows = (
        row for row in published.rows() if row.exact and row.profile.name == (program or row.profile.name)
    )
    return [row.predicted() / row.peak_bytes - 1 for row in rows if row.peak_bytes is not None]


def timed() -> list[Row]:
    """The rows whose speed can be scored."""
    return [row for row in published.rows() if row.exact and (used(row) or 1.0) <= MOST_MFU]


def speeds(program: str | None = None) -> list[float]:
    """The same of tokens a second."""
    return [speed_error(row) for row in timed() if program in (None, row.profile.name)]


def speed_error(row: Row, share: float = 1.0, launch: float = 1.0) -> float:
    """The error of a speed that can be scored, with the share of the peak and the time to start kernels times
    these."""
    own = row.profile.speed
    changed = replace(
        own, share=own.share * share, pass_s=own.pass_s * launch, full_pass_s=own.full_pass_s * launch
    )
    assert row.card is not None  # these two: see `used`
    assert row.tokens_per_s is not None
    pace = time.pace(row.spec, row.strategy, replace(row.profile, speed=changed), row.card)
    assert pace is not None
    return pace.tokens_per_s.expected / row.tokens_per_s - 1


def used(row: Row) -> float | None:
    """The share of the peak that the published speed makes of the model's FLOPs, without recompute (MFU);
    None where there is no speed, or no peak of the card is known."""
    if row.card is None or row.card.peak_flops is None or row.tokens_per_s is None:
        return None
    forwards = 2 if row.strategy.method == "lora" else 3
    flops = forwards * time.forward_flops(row.spec, row.strategy.row_tokens)
    return flops * row.tokens_per_s / row.card.peak_flops.expected


def ninth(errors: Sequence[float]) -> float:
    """The size of the error that one in ten exceeds."""
    sizes = sorted(map(abs, errors))
    return sizes[min(len(sizes) - 1, int(0.9 * len(sizes)))]


def _sizes(errors: Sequence[float]) -> tuple[float, float, float]:
    """Of errors the median, what one in ten exceeds, and the largest."""
    sizes = [abs(error) for error in errors]
    return statistics.median(sizes), ninth(sizes), max(sizes)


def table() -> dict[str, dict[str, list[float]]]:
    """What facts/scores.yaml has: of each program and of `all`, of peaks and of speeds how many there are,
    the median error, that which one in ten exceeds, and the largest."""
    programs = [None, *sorted({row.profile.name for row in published.rows()})]
    found = {}
    for program in programs:
        errors = {"peaks": peaks(program), "speeds": speeds(program)}
        found[program or "all"] = {
            kind: [len(each), *(round(size, 3) for size in _sizes(each))]
            for kind, each in errors.items()
            if each
        }
    return {name: scores for name, scores in found.items() if scores}


def known() -> dict[str, dict[str, list[float]]]:
    """facts/scores.yaml: `table` as it was made, so that no plan takes the time to make it."""
    found: dict[str, dict[str, list[float]]] = facts.tree("scores.yaml")
    return found


def line(plan: Plan) -> str:
    """How far published runs of the plan's program lay from the sum; for ours, of which none is published,
    those of all programs."""
    ours = plan.profile.name in OURS
    scores = known().get("all" if ours else plan.profile.name, {})
    values = {kind: _said(scores.get(kind)) for kind in ("peaks", "speeds")}
    return language.say("plan.trust_ours" if ours else "plan.trust", program=plan.profile.name, **values)


def _said(score: list[float] | None) -> str:
    if score is None:
        return language.say("plan.trust_none")
    count, *sizes = score
    names = ("middle", "most", "worst")
    shown = {name: f"{size:.0%}" for name, size in zip(names, sizes, strict=True)}
    return language.say("plan.trust_off", count=f"{count:.0f}", **shown)
