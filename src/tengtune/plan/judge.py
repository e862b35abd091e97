"""A plan: the sum held against what the hardware has."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Literal

from tengtune.models.spec import ModelSpec
from tengtune.plan import can, machine, memory, time
from tengtune.plan.hardware import Hardware
from tengtune.plan.profiles import DEEPSPEED, ON_CPU, OURS, PLAIN_ATTENTION, PROFILES
from tengtune.plan.strategy import Profile, Range, Strategy

Verdict = Literal["fits", "tight", "no", "unknown"]
Answer = Literal["fits", "tight", "no", "unknown", "cannot"]
"""A verdict, or that the training cannot be run there today, whatever the memory."""
_WORST: tuple[Verdict, ...] = ("no", "tight", "unknown", "fits")

TIGHT = 0.95
"""Of what there is: public out-of-memory reports lie within a few percent of the limit."""
UNMEASURED = 0.9
"""Of the nominal memory, where nobody measured what a framework gets of it; Ascend cards give 92 to 95%."""


@dataclass(frozen=True)
class Plan:
    """What is asked, the program whose sum it is, and the sum.

    engine: what was asked for; profile: what the sum is of; dtype: as the run file has it. lacking: features
    of capabilities.yaml that the back end does not have on such a device today.
    """

    spec: ModelSpec
    strategy: Strategy
    engine: str
    profile: Profile
    hardware: Hardware
    dtype: str
    card: memory.Card
    host: Range
    disk: Range
    lacking: tuple[str, ...]

    @functools.cached_property
    def pace(self) -> time.Pace | None:
        """How fast it trains; None where no peak of the hardware is known."""
        return time.pace(self.spec, self.strategy, self.profile, self.hardware)

    @property
    def computes_in(self) -> str:
        """The compute type: `auto` resolved."""
        return can.resolved(self.dtype, self.engine, can.kind_of(self.hardware))

    @property
    def odd_cards(self) -> bool:
        """Whether so many cards of a machine cannot work together."""
        return not self.hardware.together(self.strategy.cards // self.strategy.nodes)

    @property
    def answer(self) -> Answer:
        """The verdict; where that is not no, `cannot` for what the back end or the cards cannot do."""
        return "cannot" if self.verdict != "no" and (self.lacking or self.odd_cards) else self.verdict

    @property
    def card_verdict(self) -> Verdict:
        """Of the cards; a CPU's ranks share the host's memory."""
        return self.host_verdict if self.hardware.is_cpu else judged_card(self.card.total, self.hardware)

    @property
    def host_verdict(self) -> Verdict:
        return judged(self.host, self.hardware.host_bytes)

    @property
    def disk_verdict(self) -> Verdict:
        return judged(self.disk, self.hardware.disk_bytes)

    @property
    def verdict(self) -> Verdict:
        """The worst of the three; host and disk count where they are known."""
        return worst(self.card_verdict, self.host_verdict, self.disk_verdict)

    @property
    def short(self) -> tuple[str, ...]:
        """What beside the cards is not enough."""
        return short(self.host_verdict, self.disk_verdict)


def short(host: Verdict, disk: Verdict) -> tuple[str, ...]:
    """What beside the cards is not enough: "host", "disk"."""
    return tuple(name for name, verdict in (("host", host), ("disk", disk)) if verdict == "no")


def judged(need: Range, there: int | None) -> Verdict:
    """Whether so much is there."""
    if there is None:
        return "unknown"
    if need.expected > there:
        return "no"
    return "tight" if need.expected > TIGHT * there or need.high > there else "fits"


def judged_card(need: Range, hardware: Hardware) -> Verdict:
    """Whether one card has so much, by what frameworks get of it where that was measured."""
    if hardware.usable_bytes is not None:
        return judged(need, hardware.usable_bytes)
    nominal = float(hardware.memory_bytes or 0)
    if need.low > nominal:
        return "no"
    return "fits" if need.high <= UNMEASURED * nominal else "unknown"


def worst(card: Verdict, host: Verdict, disk: Verdict) -> Verdict:
    """The worst of the three; host and disk count where they are known."""
    return min([card, *(each for each in (host, disk) if each != "unknown")], key=_WORST.index)


def make(spec: ModelSpec, strategy: Strategy, engine: str, hardware: Hardware, dtype: str = "auto") -> Plan:
    """The plan of one strategy. dtype: of the run file. Other programs keep attention's scores where the
    cards have no fused attention."""
    if hardware.plain_attention and engine not in OURS:
        strategy = replace(strategy, flash=False)
    profile = reckoned(engine, strategy, hardware)
    card = memory.card_bytes(spec, strategy, profile, hardware.context, hardware.link_bytes)
    host = machine.host_bytes(spec, strategy, profile)
    if hardware.is_cpu:
        host = host + card.total * (strategy.cards / strategy.nodes)
    disk = machine.disk_bytes(spec, strategy, profile)
    lacks = can.lacking(spec, strategy, engine, can.kind_of(hardware), dtype)
    return Plan(spec, strategy, engine, profile, hardware, dtype, card, host, disk, lacks)


def reckoned(engine: str, strategy: Strategy, hardware: Hardware) -> Profile:
    """Whose figures the sum has: DeepSpeed's where the program has no such level of ZeRO; its own where it
    lacks the offload alone, which then takes gradients and optimizer off its cards, float32 masters too, and
    no card needs more for it."""
    own = PROFILES[engine]
    if hardware.is_cpu:
        own = ON_CPU.get(engine, own)
    elif hardware.plain_attention:
        own = PLAIN_ATTENTION.get(engine, own)
    if strategy.zero not in own.zero:
        return DEEPSPEED
    if strategy.offload in own.offload:
        return own
    full = own.full
    if full.weights > strategy.width_bytes:
        optimizer = full.optimizer + full.weights
        full = replace(full, weights=strategy.width_bytes, optimizer=optimizer)
    return replace(own, full=full, offload_factor=DEEPSPEED.offload_factor)


def choose(spec: ModelSpec, strategy: Strategy, hardware: Hardware, zero: int | None) -> Plan:
    """What is shown where our back ends can run it in no way that fits, and no option says how cards share
    the work: the first that would fit of PyTorch with the whole model on each, MindSpore with 1/N of all, and
    ZeRO-1 to 3; else the first that is tight; else the one that needs least. With offload, which none of them
    has, always the one that needs least."""
    offloads = strategy.offload != "none"
    asked = [("torch", 0), ("mindspore", 0), *_ZERO] if strategy.cards > 1 else [("torch", 0)]
    if zero is not None:
        asked = [(engine, zero) for engine in OURS] if offloads else [("torch", zero)]
    plans = [make(spec, replace(strategy, zero=level), engine, hardware) for engine, level in asked]
    for wanted in () if offloads else ("fits", "tight", "unknown"):
        found = next((plan for plan in plans if plan.verdict == wanted), None)
        if found is not None:
            return found
    return min(plans, key=lambda plan: plan.card.total.expected)


_ZERO = [("torch", level) for level in (1, 2, 3)]
