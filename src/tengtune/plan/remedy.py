"""The smallest change that makes a plan fit: single changes first, those that change what is learned last."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations

from tengtune.plan import can, judge, length
from tengtune.plan.judge import Plan
from tengtune.plan.profiles import PROFILES
from tengtune.plan.strategy import Strategy

MOST_CHANGES = 3
MOST_TIMES = 4
SHORTEST_ROW = 256
"""Tokens; suggested lengths are multiples of it."""
LENGTH = "data.seq_len"


@dataclass(frozen=True)
class Change:
    """One key of the run file and its new value."""

    key: str
    value: str | int

    def __str__(self) -> str:
        return f"{self.key}: {self.value}"

    def apply(self, strategy: Strategy, engine: str) -> tuple[Strategy, str]:
        """The strategy and engine with this change."""
        if self.key == "backend":
            return replace(strategy, zero=0), str(self.value)
        values = {
            "train.recompute": {"recompute": True},
            "train.micro_batch": {"rows": self.value},
            "parallel.zero": {"zero": self.value},
            "parallel.ranks": {"cards": self.value},
            "parallel.offload": {"offload": self.value},
            "lora.base": {"base": self.value},
            "train.keep": {"checkpoints": self.value},
            "lora.rank": {"rank": self.value},
            LENGTH: {"row_tokens": self.value},
            "train.method": {"method": self.value},
        }[self.key]
        return replace(strategy, **values), engine  # type: ignore[arg-type]


@dataclass(frozen=True)
class Remedy:
    """Changes, and the plan they make."""

    changes: tuple[Change, ...]
    plan: Plan

    @property
    def more_cards(self) -> bool:
        """Whether it takes more cards than there are."""
        return self.plan.strategy.cards > (self.plan.hardware.count or 1)


def advice(plan: Plan, sharing_asked: bool = True) -> list[Remedy]:
    """What would fit: the smallest change, where our back ends lack something of it the smallest that they
    can run today, and where that is none on the cards there are, the smallest on up to four times as many.
    Nothing for a plan that fits and can be run. sharing_asked: whether `parallel.zero` is the asker's, not
    the planner's choice: else it is no change to go without."""
    if plan.answer in ("fits", "unknown"):
        return []
    first = smallest(plan) if plan.verdict in ("no", "tight") else None
    today = first
    if first is None or first.plan.lacking:
        today = smallest(plan, runnable=True)
    more = smallest(plan, runnable=True, times=MOST_TIMES) if today is None else None
    later = first if first is not today else None
    found = [remedy for remedy in (later, today, more) if remedy is not None]
    return found if sharing_asked else [_without(remedy, _UNSHARED) for remedy in found]


def _without(remedy: Remedy, change: Change) -> Remedy:
    """The remedy without naming one of its changes, unless it is the only one."""
    rest = tuple(each for each in remedy.changes if each != change)
    return replace(remedy, changes=rest or remedy.changes)


def smallest(plan: Plan, runnable: bool = False, times: int = 1) -> Remedy | None:
    """The smallest set of changes with which the plan fits, or else is tight; None if there is none of at
    most three. runnable: only what our back ends have today. times: how many times the cards that there
    are."""
    tight: Remedy | None = None
    possible = list(changes(plan, times))
    for count in range(1, MOST_CHANGES + 1):
        for chosen in combinations(possible, count):
            if len({change.key for change in chosen}) < count:
                continue
            strategy, engine = plan.strategy, plan.engine
            for change in chosen:
                strategy, engine = change.apply(strategy, engine)
            if strategy.offload == "all" and strategy.zero != 3:
                continue  # DeepSpeed offloads weights with ZeRO-3 only
            if engine == "mindspore" and strategy.offload not in ("none", plan.strategy.offload):
                continue  # whose ranks need none: each keeps 1/N
            made = judge.make(plan.spec, strategy, engine, plan.hardware, plan.dtype)
            if made.odd_cards or (runnable and made.lacking):
                continue
            if made.verdict == "fits":
                return _longest(Remedy(chosen, made), plan.strategy.row_tokens, runnable)
            if made.verdict == "tight" and tight is None and plan.answer != "tight":
                tight = _longest(Remedy(chosen, made), plan.strategy.row_tokens, runnable)
    return tight


def _longest(remedy: Remedy, below: int, runnable: bool) -> Remedy:
    """The same, and where it shortens rows, to the most tokens below those asked for that do as well as the
    fewest, which were tried."""
    shorter = next((change for change in remedy.changes if change.key == LENGTH), None)
    if shorter is None:
        return remedy

    def does(tokens: int) -> bool:
        made = length.at(remedy.plan, tokens)
        return made.verdict == remedy.plan.verdict and not (runnable and made.lacking)

    tokens = length.longest(does, below - 1, SHORTEST_ROW) or SHORTEST_ROW
    chosen = tuple(
        replace(change, value=tokens) if change is shorter else change for change in remedy.changes
    )
    return Remedy(chosen, length.at(remedy.plan, tokens))


def changes(plan: Plan, times: int = 1) -> Iterator[Change]:
    """What could be changed, the least first, on so many times the cards that there are."""
    now, count, own = plan.strategy, plan.strategy.cards, PROFILES[plan.engine]
    borrows = not own.splits  # what it lacks is DeepSpeed's; not of programs that share layers
    if plan.odd_cards and now.nodes == 1:
        yield Change("parallel.ranks", plan.hardware.most_together(count))
    if plan.disk_verdict in ("no", "tight") and now.checkpoints > 1:
        yield Change("train.keep", 1)
    if not now.recompute and not plan.profile.always_recomputes:
        yield Change("train.recompute", "full")
    if now.rows > 1:
        yield Change("train.micro_batch", 1)
    kind = can.kind_of(plan.hardware)
    if plan.engine == "torch" and kind != "cpu" and can.verdict(now.method, "mindspore", kind) != "no":
        yield Change("backend", "mindspore")
    levels = (1, 2, 3) if borrows else own.zero
    if count > 1 and not plan.profile.shards and now.tensor == 1:
        yield from (Change("parallel.zero", level) for level in levels if level > now.zero)
    if now.method == "lora" and now.base == "compute":
        yield Change("lora.base", "int8")
    if now.method == "full" and plan.engine != "mindspore" and borrows:
        if now.offload == "none":
            yield Change("parallel.offload", "optimizer")
        if now.offload != "all":
            yield Change("parallel.offload", "all")
    if now.row_tokens > SHORTEST_ROW:
        yield Change(LENGTH, SHORTEST_ROW)  # how long they may be `_longest` finds
    if now.method == "lora" and now.rank > 8:
        yield Change("lora.rank", 8)
    disk_alone = plan.disk_verdict == "no" and plan.card_verdict == "fits" and not plan.lacking
    if now.method == "full" and not disk_alone:  # another training for want of a disk is no remedy
        yield Change("train.method", "lora")
    if plan.lacking:
        yield from (change for change in _PLAIN if change.apply(now, plan.engine) != (now, plan.engine))
    if not plan.hardware.is_cpu:
        most = times * (plan.hardware.count or 1)
        yield from (Change("parallel.ranks", ranks) for ranks in (2 * count, 4 * count) if ranks <= most)


_UNSHARED = Change("parallel.zero", 0)
_PLAIN = (Change("lora.base", "compute"), _UNSHARED, Change("parallel.offload", "none"))
"""Without what a back end may lack."""
