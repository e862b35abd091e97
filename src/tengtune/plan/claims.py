"""What guides promise for such a plan, facts/claims.yaml, and the sum that answers it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from tengtune import facts
from tengtune.plan.judge import Plan
from tengtune.ui import language


@dataclass(frozen=True)
class Claim:
    """A claim of a guide about a plan: `claimed` and what is needed, in bytes. formula: which text shows the
    sum."""

    name: str
    guide: str
    claimed: float
    formula: str
    needs: float
    plan: Plan

    @property
    def holds(self) -> bool:
        return self.needs <= self.claimed


def of(plan: Plan) -> list[Claim]:
    """The claims about a plan that does not fit, or hardly; none of one that fits, or of a CPU: guides speak
    of cards."""
    if plan.verdict not in ("no", "tight") or plan.hardware.is_cpu:
        return []
    return [_claim(each, plan) for each in facts.tree("claims.yaml") if _is_about(each, plan)]


def lines(claims: Sequence[Claim]) -> list[str]:
    """Each guide's name, and a line for each of its claims: what is said, the sum, and whether it holds."""
    found, names = [], language.lookup("plan.guides")
    for guide, said in groupby(claims, key=lambda claim: claim.guide):
        found += [language.say("plan.claims", guide=names[guide]), *(f"- {_line(each)}" for each in said)]
    return found


def data(claims: Sequence[Claim]) -> list[dict[str, Any]]:
    """The same for --json; bytes."""
    return [
        {
            "name": each.name,
            "guide": each.guide,
            "claimed": each.claimed,
            "needs": round(each.needs),
            "holds": each.holds,
        }
        for each in claims
    ]


def _claim(entry: dict[str, Any], plan: Plan) -> Claim:
    needs = _SUMS[entry["sum"]](plan)
    return Claim(entry["name"], entry["guide"], 1e9 * entry["claimed"], entry["sum"], needs, plan)


_SUMS: dict[str, Callable[[Plan], float]] = {
    "states": lambda plan: 16.0 * plan.spec.parameters(),
    "zero2": lambda plan: (2.0 + 14.0 / plan.strategy.cards) * plan.spec.parameters(),
    "weights": lambda plan: 2.0 * plan.spec.parameters(),
    "offload": lambda plan: 1.5 * 18.0 * plan.spec.parameters(),
    "host": lambda plan: plan.host.expected,
    "disk": lambda plan: plan.disk.expected,
}
"""Bytes: 2 of weights, 2 of gradients and 12 of optimizer a parameter (Rajbhandari et al., arXiv 1910.02054);
what is offloaded by DeepSpeed's own rule; the plan's own sums."""


def _is_about(entry: dict[str, Any], plan: Plan) -> bool:
    """Whether a claim is about this plan: every key that it has agrees."""
    now, size = plan.strategy, plan.spec.parameters() / 1e9
    at_least, below = entry["params"]
    return (
        at_least <= size < below
        and entry.get("method", now.method) == now.method
        and entry.get("base", now.base) == now.base
        and now.cards in entry.get("cards", [now.cards])
    )


def _line(claim: Claim) -> str:
    plan = claim.plan
    shown = language.lookup("plan.claim_sums")[claim.formula].format(
        parameters=f"{plan.spec.parameters() / 1e9:.2f}",
        needs=f"{claim.needs / 1e9:.0f}",
        cards=plan.strategy.cards,
        kept=plan.strategy.checkpoints + 1,
    )
    code = "plan.claim_holds" if claim.holds else "plan.claim_fails"
    return language.say(code, claim=language.lookup("plan.claim_names")[claim.name], sum=shown)
