"""A plan with rows of another length, and the longest that is good for something."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tengtune.plan import judge
from tengtune.plan.judge import Plan

LONGEST = 1 << 20
"""Tokens of a row, as --seq-len takes them: longer ones are not looked at."""


def at(plan: Plan, tokens: int) -> Plan:
    """The plan with rows of so many tokens."""
    strategy = replace(plan.strategy, row_tokens=tokens)
    return judge.make(plan.spec, strategy, plan.engine, plan.hardware, plan.dtype)


def longest(good: Callable[[int], bool], most: int, step: int) -> int | None:
    """The longest row of a multiple of `step` tokens, up to `most`, that is good, by halving: longer rows
    never need less. None where none is."""
    low, high = 0, most // step
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if good(step * middle) else (low, middle - 1)
    return step * low or None
