"""The published measurements that are nearest to a plan, beside what the planner makes of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tengtune.plan import can, columns, hardware, memory, published
from tengtune.plan.judge import Plan
from tengtune.plan.published import Row
from tengtune.plan.time import pace
from tengtune.ui import language

MOST = 3
_FAR = 2.5
"""Beyond this distance a row says nothing of the plan: say, five times the size at other cards."""


def nearest(plan: Plan) -> list[Row]:
    """At most three rows of the same method, the nearest first; of several that are equally near one."""
    near = sorted((distance(plan, row), number) for number, row in enumerate(published.rows()))
    found: dict[float, Row] = {}
    for far, number in near:
        if far <= _FAR:
            found.setdefault(far, published.rows()[number])
    return list(found.values())[:MOST]


def distance(plan: Plan, row: Row) -> float:
    """How far a row is: the logarithms of the ratios of sizes, of tokens a micro batch and of cards; one for
    another maker's cards, a half for another type of frozen weights, a quarter each for recompute and trained
    embeddings. Infinite for another method."""
    now, then = plan.strategy, row.strategy
    if now.method != then.method:
        return math.inf
    sizes = memory.counts(plan.spec).total / memory.counts(row.spec).total
    far = abs(math.log(sizes))
    far += 0.5 * abs(math.log(now.tokens / then.tokens)) + 0.25 * abs(math.log(now.cards / then.cards))
    far += 1.0 * (_is_npu(row) != can.kind_of(plan.hardware).startswith("ascend"))
    far += 0.5 * (now.base != then.base) + 0.25 * (now.train_embeddings != then.train_embeddings)
    return far + 0.25 * (now.recompute != then.recompute)


def speed(row: Row) -> float | None:
    """What the planner expects, in tokens a second of one card; None where the card's figures are not
    known."""
    card = next((name for part, name in _CARDS.items() if part in row.device), None)
    if card is None:
        return None
    found = pace(row.spec, row.strategy, row.profile, hardware.find(card))
    return None if found is None else found.tokens_per_s.expected


def lines(rows: Sequence[Row]) -> list[str]:
    """The rows as a table; figures are GB and tokens a second of one card, published and ours."""
    if not rows:
        return []
    heads = language.lookup("plan.nearest_columns")
    return [language.say("plan.nearest"), *columns.table(heads, [_cells(row) for row in rows])]


def data(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The same for --json, in bytes."""
    return [
        {
            "source": row.source,
            "where": row.where,
            "model": row.model,
            "device": row.device,
            "program": row.profile.name,
            "strategy": dict(row.strategy.__dict__),
            "exact": row.exact,
            "peak": row.peak_bytes,
            "peak_predicted": round(row.predicted()),
            "tokens_per_s": row.tokens_per_s,
            "tokens_per_s_predicted": speed(row),
        }
        for row in rows
    ]


_CARDS = {"910B3": "910b3", "910B 64G": "910b3", "A100": "a100-80g", "A800": "a800-80g"}
"""What a row's device has in its name -> the card by the planner's name."""


def _is_npu(row: Row) -> bool:
    return "910" in row.device or "Ascend" in row.device


def _cells(row: Row) -> list[str]:
    now, ours = row.strategy, speed(row) if row.tokens_per_s is not None else None
    method = f"lora r {now.rank}" if now.method == "lora" else "full"
    method += " + emb" if now.train_embeddings else ""
    device = row.device.split("(")[0].strip().removeprefix(f"{now.cards} * ")
    return [
        row.source,
        row.model.split(" (")[0],
        method if now.base == "compute" else f"{method} {now.base}",
        f"{'' if row.exact else '<='}{now.rows} x {now.row_tokens}",
        f"{now.cards} x {device}",
        _gb(row.peak_bytes),
        _gb(None if row.peak_bytes is None else row.predicted()),
        _rounded(row.tokens_per_s),
        _rounded(ours),
    ]


def _gb(size: float | None) -> str:
    return "-" if size is None else f"{size / 1e9:.1f}"


def _rounded(number: float | None) -> str:
    return "-" if number is None else f"{number:.0f}"
