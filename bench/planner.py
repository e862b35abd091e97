"""How far `tengtune plan` is from published peaks of memory and speeds, beside other estimators.

    python bench/planner.py [--rows | --facts]

facts/measurements.csv has the published figures with their sources. Scored are rows with a model that is
known, rows of a known length, and a way of sharing that the planner has; what is left out is counted.
"without size" leaves one model size out at a time: a program's constants (memory: a factor on its bytes a
logit, slack and context; time: factors on its share of the peak and on the time to start a kernel) are fitted
on the other sizes. A speed above 65% of the peak is held to be a printing error and left out.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import product
from typing import TypeVar

from tengtune.plan import memory, published, score, time
from tengtune.plan.hardware import Hardware
from tengtune.plan.published import Row
from tengtune.plan.score import timed, used
from tengtune.plan.strategy import exactly

MEMORY_GRID = tuple(
    product((0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.4), (1.0, 1.02, 1.05, 1.08), (0.3e9, 1.0e9, 1.8e9))
)
TIME_GRID = tuple(product((0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3), (0.8, 0.9, 1.0, 1.1, 1.2)))
Guess = Callable[[Row], "float | None"]
T = TypeVar("T")


def read() -> tuple[list[Row], int]:
    """The rows whose peak can be scored, and how many peaks cannot."""
    peaks = sum(map(published.has_peak, published.entries()))
    rows = [row for row in published.rows() if row.peak_bytes is not None]
    return rows, peaks - len(rows)


def predicted(row: Row) -> float:
    """The expected peak by the planner."""
    return row.predicted()


# Other estimators' rules, as far as each goes; None where it has none.


def naive(row: Row) -> float:
    """16 bytes a trained parameter, 2 a frozen one, shared as ZeRO shares."""
    trained = memory.trained_parameters(row.spec, row.strategy)
    frozen = 0 if row.strategy.method == "full" else row.spec.parameters()
    return (16.0 * trained + 2.0 * frozen) / _sharing(row)


def deepspeed_estimator(row: Row) -> float | None:
    """estimate_zero2_ and estimate_zero3_model_states_mem_needs without offload: 2P + 18P/N, and 4 x the
    largest layer + 18P/N; it takes all parameters for trained."""
    zero, count = row.strategy.zero, row.spec.parameters()
    if row.strategy.method != "full" or zero < 2:
        return None
    whole = 2.0 * count if zero == 2 else 4.0 * memory.counts(row.spec).embedding
    return whole + 18.0 * count / row.strategy.cards


def accelerate_estimator(row: Row) -> float | None:
    """`accelerate estimate-memory`: training with Adam is 4 x the weights; of full tuning."""
    return 4 * 2.0 * row.spec.parameters() if row.strategy.method == "full" else None


def korthikanti(row: Row) -> float:
    """States, s b h (34 + 5 a s / h) a layer, 2 s b h with recompute (arXiv 2205.05198); 4 a logit."""
    spec, strategy = row.spec, row.strategy
    scores = 5.0 * spec.heads * strategy.row_tokens / spec.hidden
    unit = 2.0 if strategy.recompute else 34.0 + scores
    layers = unit * strategy.tokens * spec.hidden * spec.layers
    return naive(row) + layers + 4.0 * strategy.tokens * spec.vocab


def llama_factory(row: Row) -> float:
    """Its README's table, in bytes a parameter: full 18, in bfloat16 throughout 8, LoRA 2, on 8 bits 1, on 4
    bits 0.5; of all cards together."""
    pure = row.profile.full.optimizer < 8
    full = 8.0 if pure else 18.0
    lora = {"compute": 2.0, "int8": 1.0, "int8-all": 1.0, "int4": 0.5}[row.strategy.base]
    each = full if row.strategy.method == "full" else lora
    return each * row.spec.parameters() / _sharing(row)


def _sharing(row: Row) -> int:
    return row.strategy.cards if row.strategy.zero == 3 else 1


PEERS: dict[str, Guess] = {
    "16 bytes a parameter": naive,
    "DeepSpeed's estimator": deepspeed_estimator,
    "accelerate, 4x": accelerate_estimator,
    "Korthikanti, logits": korthikanti,
    "LLaMA-Factory's table": llama_factory,
}


def class_name(row: Row) -> str:
    base = "" if row.strategy.base == "compute" else f" {row.strategy.base}"
    sharing = f" zero {row.strategy.zero}" if row.strategy.cards > 1 else ""
    sharing = " split" if row.strategy.replicas < row.strategy.cards else sharing
    return f"{row.profile.name} {row.strategy.method}{base}{sharing}"


def peak(row: Row) -> float:
    """The published peak in bytes; every row that is scored has one."""
    assert row.peak_bytes is not None
    return row.peak_bytes


def scores(errors: Iterable[float]) -> str:
    """Median, 90th percentile and worst of the absolute errors, and how many are within 10 and 20%."""
    sizes = sorted(abs(error) for error in errors)
    p90 = score.ninth(sizes)
    within = [sum(size <= limit for size in sizes) / len(sizes) for limit in (0.1, 0.2)]
    return (
        f"{len(sizes):4}  median {statistics.median(sizes):6.1%}  p90 {p90:6.1%}  worst {sizes[-1]:6.1%}"
        f"  within 10% {within[0]:4.0%}  20% {within[1]:4.0%}"
    )


def error(row: Row, guess: Guess) -> float | None:
    """Relative error; positive: too much was predicted."""
    figure = guess(row)
    return None if figure is None else figure / peak(row) - 1


def errors(rows: Iterable[Row], guess: Guess) -> list[float]:
    """Those that there are."""
    return [each for each in (error(row, guess) for row in rows) if each is not None]


def fitted(rows: Sequence[Row], grid: Sequence[T], miss: Callable[[Row, T], float]) -> T:
    """The constants of the grid that leave the smallest mean error."""
    return min(grid, key=lambda constants: statistics.fmean(abs(miss(row, constants)) for row in rows))


def held_out(rows: Sequence[Row], grid: Sequence[T], miss: Callable[[Row, T], float]) -> list[float]:
    """Errors of each size with constants fitted on the other sizes of the same program."""
    found = []
    for program in {row.profile.name for row in rows}:
        mine = [row for row in rows if row.profile.name == program]
        for size in {row.spec.hidden for row in mine}:
            others = [row for row in mine if row.spec.hidden != size]
            if others:
                constants = fitted(others, grid, miss)
                found += [miss(row, constants) for row in mine if row.spec.hidden == size]
    return found


def memory_miss(row: Row, constants: tuple[float, float, float]) -> float:
    """The error of a peak with bytes a logit times the first constant, and with that slack and context."""
    factor, slack, context = constants
    logit = row.profile.logit_bytes * factor
    profile = replace(row.profile, logit_bytes=logit, fragmentation=exactly(slack), context=exactly(context))
    return row.predicted(profile) / peak(row) - 1


def card(row: Row) -> Hardware:
    """The cards of a row; every row that is scored has some."""
    assert row.card is not None
    return row.card


def speed(row: Row) -> float:
    """The published tokens a second and card; every row that is scored has it."""
    assert row.tokens_per_s is not None
    return row.tokens_per_s


def time_miss(row: Row, constants: tuple[float, float] = (1.0, 1.0)) -> float:
    """The error of a speed with the share of the peak and the time to start kernels times these."""
    return score.speed_error(row, *constants)


def peak_share(row: Row) -> float:
    """The error of the usual rule: hardware FLOPs at 40% of the peak."""
    peak_flops = card(row).peak_flops
    assert peak_flops is not None
    flops = time.token_flops(row.spec, row.strategy, row.profile)
    return 0.4 * peak_flops.expected / flops / speed(row) - 1


def print_memory(every: bool) -> None:
    rows, left_out = read()
    exact = [row for row in rows if row.exact]
    limits = [row for row in rows if not row.exact]
    print(f"{len(exact)} peaks, rows of a known length; {len(limits)} with a limit only; {left_out} left out")
    print("planner              ", scores(errors(exact, predicted)))
    print("planner, without size", scores(held_out(exact, MEMORY_GRID, memory_miss)))
    whole = [row for row in exact if row.strategy.replicas == row.strategy.cards]  # they split no layers
    for name, guess in PEERS.items():
        print(f"{name:21}", scores(errors(whole, guess)))
    print("limit only: planner  ", scores(errors(limits, predicted)))
    print("limit only: 16 bytes ", scores(errors(limits, naive)))
    for name in sorted({class_name(row) for row in exact}):
        some = errors([row for row in exact if class_name(row) == name], predicted)
        print(f"  {name:28} {scores(some)}  mean {statistics.fmean(some):+.1%}")
    for row in rows if every else []:
        mark = "" if row.exact else "<="
        print(
            f"{row.source:20} {class_name(row):28} h {row.spec.hidden} x {row.strategy.cards}"
            f" {row.strategy.rows} x {mark}{row.strategy.row_tokens}"
            f"  {peak(row) / 1e9:6.1f} GB, planner {row.predicted() / 1e9:6.1f}"
            f" ({predicted(row) / peak(row) - 1:+.0%}), naive {naive(row) / 1e9:6.1f}"
        )


def print_time(every: bool) -> None:
    rows = timed()
    print(f"{len(rows)} speeds, {sum(row.tokens_per_s is not None for row in published.rows())} read")
    print("planner              ", scores(map(time_miss, rows)))
    print("planner, without size", scores(held_out(rows, TIME_GRID, time_miss)))
    print("40% of the peak      ", scores(map(peak_share, rows)))
    for name in sorted({class_name(row) for row in rows}):
        some = [time_miss(row) for row in rows if class_name(row) == name]
        print(f"  {name:28} {scores(some)}  mean {statistics.fmean(some):+.1%}")
    for row in rows if every else []:
        print(
            f"{row.model:14} {class_name(row):28} x {row.strategy.cards} {row.strategy.rows} x"
            f" {row.strategy.row_tokens}  {speed(row):7.0f} tokens/s, MFU {used(row):4.0%},"
            f" planner {time_miss(row):+.0%}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", action="store_true", help="every row")
    parser.add_argument("--facts", action="store_true", help="facts/scores.yaml instead")
    arguments = parser.parse_args()
    if arguments.facts:
        print("# How far published peaks and speeds lie from the planner's: how many there are,")
        print("# the median error, that which one in ten exceeds, and the largest.")
        print("# Made by bench/planner.py --facts.")
        for name, kinds in score.table().items():
            print(f"{name}: {{{', '.join(f'{kind}: {each}' for kind, each in kinds.items())}}}")
        return
    print_memory(arguments.rows)
    print()
    print_time(arguments.rows)


if __name__ == "__main__":
    main()
