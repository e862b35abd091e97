"""The published measurements that are nearest to a plan, beside what the planner makes of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tengtune.plan import can, columns, memory, published
from tengtune.plan.judge import Plan
from tengtune.plan.published import Row
from tengtune.plan.time import pace
from tengtune.ui import language
from tengtune.ui.lists import joined

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
    found = None if row.card is None else pace(row.spec, row.strategy, row.profile, row.card)
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


def _is_npu(row: Row) -> bool:
    return "910" in row.device or "Ascend" in row.device


def _cells(row: Row) -> list[str]:
    now, ours = row.strategy, speed(row) if row.tokens_per_s is not None else None
    method = f"lora r {now.rank}" if now.method == "lora" else "full"
    method += " + emb" if now.train_embeddings else ""
    device = row.device.split("(")[0].strip().removeprefix(f"{now.cards} * ")
    idle = row.idle_bytes  # what npu-smi shows of a card at rest is in none of our figures
    return [
        row.profile.name,
        row.model.split(" (")[0],
        method if now.base == "compute" else f"{method} {now.base}",
        f"{'' if row.exact else '<='}{now.rows} x {now.row_tokens}",
        f"{now.cards} x {device}",
        _sharing(row),
        "full" if now.recompute or row.profile.always_recomputes else "none",
        _gb(None if row.peak_bytes is None else row.peak_bytes - idle),
        _gb(None if row.peak_bytes is None else row.predicted() - idle),
        _rounded(row.tokens_per_s),
        _rounded(ours),
    ]


def _sharing(row: Row) -> str:
    """How a row's cards share the model, and that its attention was not fused."""
    now = row.strategy
    parts = [f"ZeRO-{now.zero}"] if now.zero else []
    parts += [f"tensor {now.tensor}"] if now.tensor > 1 else []
    parts += [f"pipeline {now.pipeline}"] if now.pipeline > 1 else []
    parts += [] if now.flash else [language.say("plan.unfused")]
    return joined(parts) or "-"


def _gb(size: float | None) -> str:
    return "-" if size is None else columns.gb(size)


def _rounded(number: float | None) -> str:
    return "-" if number is None else f"{number:.0f}"
