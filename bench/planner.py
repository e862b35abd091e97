"""How far `tengtune plan` is from published peaks of memory, beside the rule of 16 bytes a parameter.

    python bench/planner.py [--rows]

facts/measurements.csv has the published figures with their sources. Scored are rows with a model that is
known, rows of a known length, and a way of sharing that the planner has; what is left out is counted. "fitted
without" leaves one model size out at a time: bytes a logit, slack and context of each program are fitted on
the other sizes.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import product

from tengtune.plan import memory, published
from tengtune.plan.published import Row
from tengtune.plan.strategy import Profile, exactly

_GRID = list(product((0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.4), (1.0, 1.02, 1.05, 1.08), (0.3e9, 1.0e9, 1.8e9)))


def read() -> tuple[list[Row], int]:
    """The rows that can be scored, and how many peaks cannot."""
    peaks = sum(map(published.has_peak, published.entries()))
    rows = [row for row in published.rows() if row.peak_bytes is not None]
    return rows, peaks - len(rows)


def predicted(row: Row) -> float:
    """The expected peak by the planner."""
    return row.predicted()


def naive(row: Row) -> float:
    """16 bytes a trained parameter, 2 a frozen one, shared as ZeRO shares."""
    trained = memory.trained_parameters(row.spec, row.strategy)
    frozen = 0 if row.strategy.method == "full" else row.spec.parameters()
    cards = row.strategy.cards if row.strategy.zero == 3 else 1
    return (16.0 * trained + 2.0 * frozen) / cards


def class_name(row: Row) -> str:
    base = "" if row.strategy.base == "compute" else f" {row.strategy.base}"
    sharing = f" zero {row.strategy.zero}" if row.strategy.cards > 1 else ""
    return f"{row.profile.name} {row.strategy.method}{base}{sharing}"


def peak(row: Row) -> float:
    """The published peak in bytes; every row that is scored has one."""
    assert row.peak_bytes is not None
    return row.peak_bytes


def scores(errors: Iterable[float]) -> str:
    """Median, 90th percentile and worst of the absolute errors, and how many are within 10 and 20%."""
    sizes = sorted(abs(error) for error in errors)
    p90 = sizes[min(len(sizes) - 1, int(0.9 * len(sizes)))]
    within = [sum(size <= limit for size in sizes) / len(sizes) for limit in (0.1, 0.2)]
    return (
        f"{len(sizes):4}  median {statistics.median(sizes):6.1%}  p90 {p90:6.1%}  worst {sizes[-1]:6.1%}"
        f"  within 10% {within[0]:4.0%}  20% {within[1]:4.0%}"
    )


def error(row: Row, guess: Callable[[Row], float]) -> float:
    """Relative error; positive: too much was predicted."""
    return guess(row) / peak(row) - 1


def scaled(profile: Profile, constants: tuple[float, float, float]) -> Profile:
    """The profile with its bytes a logit times the first constant, and with that slack and context."""
    factor, slack, context = constants
    logit = profile.logit_bytes * factor
    return replace(profile, logit_bytes=logit, fragmentation=exactly(slack), context=exactly(context))


def fitted(rows: Sequence[Row]) -> tuple[float, float, float]:
    """The constants of the grid that leave the smallest mean error."""

    def mean(constants: tuple[float, float, float]) -> float:
        return statistics.fmean(
            abs(row.predicted(scaled(row.profile, constants)) / peak(row) - 1) for row in rows
        )

    return min(_GRID, key=mean)


def held_out(rows: Sequence[Row]) -> list[float]:
    """Errors of each size with constants fitted on the other sizes of the same program."""
    found = []
    for program in {row.profile.name for row in rows}:
        mine = [row for row in rows if row.profile.name == program]
        for size in {row.spec.hidden for row in mine}:
            others = [row for row in mine if row.spec.hidden != size]
            if others:
                constants = fitted(others)
                found += [
                    row.predicted(scaled(row.profile, constants)) / peak(row) - 1
                    for row in mine
                    if row.spec.hidden == size
                ]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", action="store_true", help="every row")
    arguments = parser.parse_args()
    rows, left_out = read()
    exact = [row for row in rows if row.exact]
    limits = [row for row in rows if not row.exact]
    print(
        f"{len(exact)} peaks of rows of a known length; {len(limits)} with a limit only; {left_out} left out"
    )
    print("planner            ", scores(error(row, predicted) for row in exact))
    print("fitted without size", scores(held_out(exact)))
    print("16 bytes a param   ", scores(error(row, naive) for row in exact))
    print("limit only: planner", scores(error(row, predicted) for row in limits))
    print("limit only: 16 B   ", scores(error(row, naive) for row in limits))
    for name in sorted({class_name(row) for row in exact}):
        errors = [error(row, predicted) for row in exact if class_name(row) == name]
        print(f"  {name:28} {scores(errors)}  mean {statistics.fmean(errors):+.1%}")
    for row in rows if arguments.rows else []:
        mark = "" if row.exact else "<="
        print(
            f"{row.source:20} {class_name(row):28} h {row.spec.hidden} x {row.strategy.cards}"
            f" {row.strategy.rows} x {mark}{row.strategy.row_tokens}"
            f"  {peak(row) / 1e9:6.1f} GB, planner {row.predicted() / 1e9:6.1f}"
            f" ({error(row, predicted):+.0%}), naive {naive(row) / 1e9:6.1f}"
        )


if __name__ == "__main__":
    main()
