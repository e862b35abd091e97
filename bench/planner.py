"""How far `tengtune plan` is from published peaks of memory, beside the rule of 16 bytes a parameter.

    python bench/planner.py [--rows]

facts/measurements.csv has the published figures with their sources. Scored are rows with a model that is
known, rows of a known length, and a way of sharing that the planner has; what is left out is counted. "fitted
without" leaves one model size out at a time: bytes a logit, slack and context of each program are fitted on
the other sizes.
"""

from __future__ import annotations

import argparse
import csv
import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from itertools import product

from tengtune.models import known
from tengtune.models.spec import ModelSpec
from tengtune.plan import memory
from tengtune.plan.profiles import DEEPSPEED, HF_TRAINER, MS_SWIFT
from tengtune.plan.strategy import Profile, Strategy, exactly

TABLE = resources.files("tengtune.facts").joinpath("measurements.csv")
GIB = 1 << 30
IDLE = 3.3e9
"""What npu-smi shows of an idle 910B3; rows of that kind are npu-smi's view."""
_LLAMA = ("llama2-7b", "llama-7b")
_ALIASES = {"qwen-1.8b": "Qwen-1_8B", "14b": "Qwen1.5-14B", "qwen1half-7b": "Qwen1.5-7B"}
_ATTENTION = ("q_proj", "k_proj", "v_proj")
_GRID = list(product((6, 8, 10, 12, 14, 18, 22, 27, 30, 34), (1.0, 1.02, 1.05, 1.08), (0.3e9, 1.0e9, 1.8e9)))


@dataclass(frozen=True)
class Row:
    """A published peak and what was run. `exact`: the rows' length is known, not only its limit."""

    source: str
    spec: ModelSpec
    strategy: Strategy
    profile: Profile
    peak_bytes: float
    idle_bytes: float
    exact: bool

    def predicted(self, profile: Profile | None = None) -> float:
        """The expected peak by the planner."""
        context, link = exactly(0.44e9), 0.2e9
        card = memory.card_bytes(self.spec, self.strategy, profile or self.profile, context, link)
        return card.total.expected + self.idle_bytes

    def naive(self) -> float:
        """16 bytes a trained parameter, 2 a frozen one, shared as ZeRO shares."""
        trained = memory.trained_parameters(self.spec, self.strategy)
        frozen = 0 if self.strategy.method == "full" else self.spec.parameters()
        cards = self.strategy.cards if self.strategy.zero == 3 else 1
        return (16.0 * trained + 2.0 * frozen) / cards

    @property
    def class_name(self) -> str:
        base = "" if self.strategy.base == "compute" else f" {self.strategy.base}"
        sharing = f" zero {self.strategy.zero}" if self.strategy.cards > 1 else ""
        return f"{self.profile.name} {self.strategy.method}{base}{sharing}"


def read() -> tuple[list[Row], int]:
    """The rows that can be scored, and how many peaks cannot."""
    with TABLE.open(encoding="utf-8") as stream:
        entries = [each for each in csv.DictReader(stream) if re.match(r"[\d.]+$", each["peak_mem_GB"])]
    rows = [row for row in map(_row, entries) if row]
    return rows, len(entries) - len(rows)


def _row(entry: dict[str, str]) -> Row | None:
    spec, strategy, profile = _spec(entry["model"]), _strategy(entry), _profile(entry)
    if spec is None or strategy is None or profile is None or "ESTIMATE" in entry["notes"]:
        return None
    unit = GIB if "GiB" in entry["stated"] or "GiB" in entry["notes"] else 1e9
    idle = IDLE if "npu-smi" in entry["notes"] else 0.0
    exact = entry["seq_len"].isdecimal()
    peak = float(entry["peak_mem_GB"]) * unit
    return Row(entry["source_repo_or_doc"], spec, strategy, profile, peak, idle, exact)


def _spec(model: str) -> ModelSpec | None:
    name = re.sub(r"[_-](chat|instruct|int4|int8)\b.*|\s.*", "", model.lower().replace("_", "-"))
    name = name.replace("qwen-1-8b", "qwen-1.8b")
    return known.spec(_ALIASES.get(name, name))


def _strategy(entry: dict[str, str]) -> Strategy | None:
    shared = re.match(r"(single|dp|zero(\d))(?! \+)", entry["strategy"])
    length = re.search(r"\d+", entry["seq_len"])
    if not shared or not length or "liger" in entry["notes"]:
        return None
    method, swift = entry["method"], "ms-swift" in entry["source_repo_or_doc"]
    full_script = method == "full" and not swift and "8 B/param" not in entry["notes"]
    base = "int8" if "int8" in method else "int4" if method.startswith("qlora") else "compute"
    return replace(
        Strategy(),
        method="full" if method.startswith("full") else "lora",
        cards=int(entry["devices"]),
        rows=int(entry["micro_batch"]),
        row_tokens=int(length[0]),
        zero=int(shared[2] or (2 if full_script else 0)),
        recompute=entry["recompute"] != "none",
        rank=int(entry["lora_rank"] or 8),
        base=base,
        targets=_ATTENTION if swift else Strategy().targets,
        train_embeddings=method == "lora+emb",
        flash=entry["flash_attn"] not in ("no", "false"),
    )


def _profile(entry: dict[str, str]) -> Profile | None:
    source, method, shared = entry["source_repo_or_doc"], entry["method"], entry["strategy"]
    if source == "QwenLM/Qwen":
        if "8 B/param" in entry["notes"] and method == "full":
            return replace(HF_TRAINER, full=MS_SWIFT.full)  # all in bfloat16
        # Its GPTQ and full scripts run DeepSpeed on one card, too.
        if method.startswith("qlora"):
            return replace(DEEPSPEED, logit_bytes=exactly(8))
        return HF_TRAINER if method.startswith("lora") and shared == "single" else DEEPSPEED
    if source.startswith("QwenLM/"):
        return HF_TRAINER
    if source == "modelscope/ms-swift":
        return DEEPSPEED if method == "full" and "zero" in shared else MS_SWIFT
    return None


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
    return guess(row) / row.peak_bytes - 1


def fitted(rows: Sequence[Row], profile: Profile) -> Profile:
    """The profile with bytes a logit, slack and context of the grid that leave the smallest mean error."""

    def with_constants(constants: tuple[float, float, float]) -> Profile:
        logit, slack, context = map(exactly, constants)
        return replace(profile, logit_bytes=logit, fragmentation=slack, context=context)

    def mean(each: Profile) -> float:
        return statistics.fmean(abs(error(row, lambda r: r.predicted(each))) for row in rows)

    return min(map(with_constants, _GRID), key=mean)


def held_out(rows: Sequence[Row]) -> list[float]:
    """Errors of each size with constants fitted on the other sizes of the same program."""
    found = []
    for profile in {row.profile.name: row.profile for row in rows}.values():
        mine = [row for row in rows if row.profile.name == profile.name]
        for size in {row.spec.hidden for row in mine}:
            others = [row for row in mine if row.spec.hidden != size]
            if not others:
                continue
            made = fitted(others, profile)
            for row in (row for row in mine if row.spec.hidden == size):
                changed = replace(
                    row.profile,
                    logit_bytes=made.logit_bytes,
                    fragmentation=made.fragmentation,
                    context=made.context,
                )
                found.append(error(row, lambda r, changed=changed: r.predicted(changed)))  # type: ignore[misc]
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
    print("planner            ", scores(error(row, Row.predicted) for row in exact))
    print("fitted without size", scores(held_out(exact)))
    print("16 bytes a param   ", scores(error(row, Row.naive) for row in exact))
    print("limit only: planner", scores(error(row, Row.predicted) for row in limits))
    print("limit only: 16 B   ", scores(error(row, Row.naive) for row in limits))
    for name in sorted({row.class_name for row in exact}):
        errors = [error(row, Row.predicted) for row in exact if row.class_name == name]
        print(f"  {name:28} {scores(errors)}  mean {statistics.fmean(errors):+.1%}")
    for row in rows if arguments.rows else []:
        mark = "" if row.exact else "<="
        print(
            f"{row.source:20} {row.class_name:28} h {row.spec.hidden} x {row.strategy.cards}"
            f" {row.strategy.rows} x {mark}{row.strategy.row_tokens}"
            f"  {row.peak_bytes / 1e9:6.1f} GB, planner {row.predicted() / 1e9:6.1f}"
            f" ({error(row, Row.predicted):+.0%}), naive {row.naive() / 1e9:6.1f}"
        )


if __name__ == "__main__":
    main()
