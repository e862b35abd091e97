"""Every way in which our back ends can run what is asked on the cards there are, best first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from tengtune.models.spec import ModelSpec
from tengtune.plan import can, judge
from tengtune.plan.hardware import Hardware
from tengtune.plan.judge import Plan, Verdict
from tengtune.plan.profiles import OURS, PROFILES
from tengtune.plan.strategy import Base, Offload, Strategy

ORDER: tuple[Verdict, ...] = ("fits", "unknown", "tight", "no")
_DEFAULT_BATCH = 8
"""Rows of an optimizer step where nobody says, as in a run file."""


@dataclass(frozen=True)
class Question:
    """What is to be trained, and what of it may be chosen.

    strategy: what stays as it is (method, rows' length, rank ...), and the values of `fixed`, names of its
    fields that may not be chosen. cards: most that may be used, of `hardware.nodes` machines. global_batch:
    rows of an optimizer step, which no choice changes. dtype: of the run file.
    """

    spec: ModelSpec
    strategy: Strategy
    hardware: Hardware
    cards: int
    global_batch: int
    engines: tuple[str, ...] = OURS
    fixed: frozenset[str] = frozenset()
    dtype: str = "auto"


@dataclass(frozen=True)
class Way:
    """One way to run it. unverified: what of it has never run on such a device."""

    plan: Plan
    unverified: tuple[str, ...]

    @property
    def tokens_per_s(self) -> float | None:
        """Of all cards, expected; None where no speed is known."""
        pace = self.plan.pace
        return None if pace is None else pace.tokens_per_s.expected * self.plan.strategy.cards

    @property
    def without_links(self) -> bool:
        """Whether sending between cards is not in its speed."""
        return self.plan.pace is not None and self.plan.pace.without_links

    @property
    def margin(self) -> float:
        """Bytes that the expected need leaves free on a card; of a CPU, of the host's memory."""
        plan, there = self.plan, self.plan.hardware
        if there.is_cpu:
            return (there.host_bytes or 0) - plan.host.expected
        return (there.usable_bytes or there.memory_bytes or 0) - plan.card.total.expected


def batch_for(cards: int, rows: int = 1) -> int:
    """Rows of a step where nobody says: the first multiple of cards x rows of a micro batch from what a run
    file has by default on, so that every card has as many."""
    unit = cards * rows
    return -(-_DEFAULT_BATCH // unit) * unit


def search(question: Question) -> list[Way]:
    """All ways that fit or might, those that fit first, then by expected tokens a second of all cards (to two
    digits, which is more than the estimate is good for), fewer cards, and more memory left; where no speed is
    known by nothing quantized or offloaded, and tenths of the memory left. Of speeds without what is sent
    between cards those on fewer machines come first. Where all are short of the host's memory or of disk,
    those that fit the cards."""
    made = (
        _way(question, strategy, engine)
        for engine in question.engines
        for strategy in _strategies(question, engine)
    )
    ways = sorted((way for way in made if way is not None), key=_rank)
    return [way for way in ways if way.plan.verdict != "no"] or ways


def _way(question: Question, strategy: Strategy, engine: str) -> Way | None:
    """The way with this strategy; None if it does not fit the cards or cannot be run."""
    spec, there, kind = question.spec, question.hardware, can.kind_of(question.hardware)
    dtype = question.dtype
    if dtype in ("float16", "bfloat16") and can.verdict(dtype, engine, kind) == "no":
        dtype = "auto"
    width = 4 if can.resolved(dtype, engine, kind) == "float32" else 2
    strategy = replace(strategy, width_bytes=width)
    if can.lacking(spec, strategy, engine, kind, dtype):
        return None
    plan = judge.make(spec, strategy, engine, there, dtype)
    if plan.card_verdict == "no":
        return None
    return Way(plan, can.unverified(spec, strategy, engine, kind, dtype))


def _strategies(question: Question, engine: str) -> Iterator[Strategy]:
    """What may be chosen, in all combinations that the batch can be spread over. What changes nothing for
    this engine keeps its value."""
    asked, profile, fixed = question.strategy, PROFILES[engine], question.fixed
    lora = asked.method == "lora"
    bases: tuple[Base, ...] = ("compute", "int8") if lora and "base" not in fixed else (asked.base,)
    offloads: tuple[Offload, ...] = profile.offload if "offload" not in fixed else (asked.offload,)
    recomputes = [False, True]
    if "recompute" in fixed or profile.always_recomputes:
        recomputes = [asked.recompute]
    for cards, nodes in _spreads(question):
        levels: tuple[int, ...] = (0,) if cards == 1 else profile.zero
        if "zero" in fixed or profile.shards:
            levels = (asked.zero,)
        share = question.global_batch // cards
        for rows in _micro_batches(share) if "rows" not in fixed else [asked.rows]:
            if share % rows:
                continue
            for zero, offload, base, recompute in product(levels, offloads, bases, recomputes):
                yield replace(
                    asked,
                    cards=cards,
                    nodes=nodes,
                    rows=rows,
                    zero=zero,
                    offload=offload,
                    base=base,
                    recompute=recompute,
                    accumulate=share // rows,
                )


def _spreads(question: Question) -> Iterator[tuple[int, int]]:
    """(cards, machines): 1, 2, 4 ... of one machine, all of one, and all of 2, 4 ... machines and of all;
    where not any number may work together, the most that may."""
    if "cards" in question.fixed:
        spreads = {(question.strategy.cards, question.strategy.nodes)}
    else:
        nodes = question.hardware.nodes
        each = question.hardware.most_together(max(question.cards // nodes, 1))
        spreads = {(cards, 1) for cards in (*_doubling(each), each)}
        spreads |= {(each * count, count) for count in (*_doubling(nodes), nodes)}
    for cards, nodes in sorted(spreads):
        if question.global_batch % cards == 0 and question.hardware.together(cards // nodes):
            yield cards, nodes


def _micro_batches(share: int) -> list[int]:
    return [rows for rows in _doubling(share) if share % rows == 0]


def _doubling(most: int) -> list[int]:
    """1, 2, 4 ... up to most."""
    return [1 << power for power in range(most.bit_length())]


def _rank(way: Way) -> tuple[object, ...]:
    plan, now = way.plan, way.plan.strategy
    fit = ORDER.index(plan.verdict), plan.host_verdict == "no", ORDER.index(plan.card_verdict)
    speed = way.tokens_per_s
    if speed is not None:
        machines = now.nodes if way.without_links else 1
        return fit, machines, -float(f"{speed:.2g}"), now.cards, -way.margin
    there = plan.hardware.host_bytes if plan.hardware.is_cpu else plan.hardware.memory_bytes
    free = round(10 * way.margin / there) if there else 0
    plain = now.base == "compute" and now.offload == "none"
    return fit, not plain, -free, now.cards, now.rows, OURS.index(plan.engine), now.recompute
