"""A plan: the sum held against what the hardware has."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from importlib import resources
from typing import Literal

from tengtune.models.spec import ModelSpec
from tengtune.plan import memory, time
from tengtune.plan.hardware import Hardware
from tengtune.plan.profiles import DEEPSPEED, OURS, PROFILES
from tengtune.plan.strategy import Offload, Profile, Range, Strategy

Verdict = Literal["fits", "tight", "no", "unknown"]
_WORST: tuple[Verdict, ...] = ("no", "tight", "unknown", "fits")

TIGHT = 0.95
"""Of what there is: public out-of-memory reports lie within a few percent of the limit."""
UNMEASURED = 0.9
"""Of the nominal memory, where nobody measured what a framework gets of it; Ascend cards give 92 to 95%."""


@dataclass(frozen=True)
class Plan:
    """What is asked, the program whose sum it is, and the sum. lacking: features of capabilities.yaml that
    the back end does not have today; `engine` is what was asked for, `profile` what the sum is of."""

    spec: ModelSpec
    strategy: Strategy
    engine: str
    profile: Profile
    hardware: Hardware
    card: memory.Card
    host: Range
    disk: Range
    lacking: tuple[str, ...]

    @functools.cached_property
    def pace(self) -> time.Pace | None:
        """How fast it trains; None where no peak of the hardware is known."""
        return time.pace(self.spec, self.strategy, self.profile, self.hardware)

    @property
    def card_verdict(self) -> Verdict:
        """Of the cards; a CPU's ranks share the host's memory."""
        if self.hardware.is_cpu:
            return self.host_verdict
        if self.hardware.usable_bytes is not None:
            return judged(self.card.total, self.hardware.usable_bytes)
        nominal = float(self.hardware.memory_bytes or 0)
        if self.card.total.low > nominal:
            return "no"
        return "fits" if self.card.total.high <= UNMEASURED * nominal else "unknown"

    @property
    def host_verdict(self) -> Verdict:
        return judged(self.host, self.hardware.host_bytes)

    @property
    def disk_verdict(self) -> Verdict:
        return judged(self.disk, self.hardware.disk_bytes)

    @property
    def verdict(self) -> Verdict:
        """The worst of the three; host and disk count where they are known."""
        known = [each for each in (self.host_verdict, self.disk_verdict) if each != "unknown"]
        return min([self.card_verdict, *known], key=_WORST.index)


def judged(need: Range, there: int | None) -> Verdict:
    """Whether so much is there."""
    if there is None:
        return "unknown"
    if need.expected > there:
        return "no"
    return "tight" if need.expected > TIGHT * there or need.high > there else "fits"


def make(spec: ModelSpec, strategy: Strategy, engine: str, hardware: Hardware) -> Plan:
    """The plan of one strategy. What our back ends lack is reckoned as DeepSpeed has it."""
    profile = PROFILES[engine]
    if strategy.zero not in profile.zero or strategy.offload not in profile.offload:
        profile = DEEPSPEED
    card = memory.card_bytes(spec, strategy, profile, hardware.context, hardware.link_bytes)
    host = memory.host_bytes(spec, strategy, profile)
    if hardware.is_cpu:
        host = host + card.total * (strategy.cards / strategy.nodes)
    disk = memory.disk_bytes(spec, strategy, profile)
    return Plan(spec, strategy, engine, profile, hardware, card, host, disk, lacking(strategy, engine))


def choose(spec: ModelSpec, strategy: Strategy, hardware: Hardware, zero: int | None) -> Plan:
    """Where neither run file nor options say how cards share the work: the first that fits of PyTorch with
    the whole model on each, MindSpore with 1/N of all, and ZeRO-1 to 3; else the first that is tight; else
    the one that needs least."""
    asked = [("torch", 0)] if strategy.cards == 1 else [("torch", 0), ("mindspore", 0), *_ZERO]
    if zero is not None:
        asked = [("torch", zero)]
    plans = [make(spec, replace(strategy, zero=level), engine, hardware) for engine, level in asked]
    for wanted in ("fits", "tight", "unknown"):
        found = next((plan for plan in plans if plan.verdict == wanted), None)
        if found is not None:
            return found
    return min(plans, key=lambda plan: plan.card.total.expected)


_ZERO = [("torch", level) for level in (1, 2, 3)]


def lacking(strategy: Strategy, engine: str) -> tuple[str, ...]:
    """What the plan asks of our back end that it has on no device today; nothing is said of other
    programs."""
    if engine not in OURS:
        return ()
    asked = [strategy.method, f"zero_{strategy.zero}" if strategy.zero else "", _OFFLOADS[strategy.offload]]
    if strategy.method == "lora":
        asked.append(
            {"compute": "", "int8": "int8_base", "int8-all": "int8_all", "int4": "int4_base"}[strategy.base]
        )
    table = _capabilities()
    return tuple(name for name in asked if name and not _has(table, name, engine))


_OFFLOADS: dict[Offload, str] = {"none": "", "optimizer": "offload_optimizer", "all": "offload_all"}


def _has(table: dict[str, dict[str, dict[str, str]]], name: str, engine: str) -> bool:
    return name in table and set(table[name][engine].values()) != {"no"}


@functools.cache
def _capabilities() -> dict[str, dict[str, dict[str, str]]]:
    """facts/capabilities.yaml, without capabilities.py, which loads pydantic."""
    import yaml

    text = resources.files("tengtune.facts").joinpath("capabilities.yaml").read_text(encoding="utf-8")
    table: dict[str, dict[str, dict[str, str]]] = yaml.load(text, Loader=yaml.BaseLoader)
    return table
