"""Whether the frameworks compute here: small programs on each card, and what comes of them.

What is tried are the steps by which the vendor's guides verify an installation: the framework loads and sees
the card, products and attention are right, and two cards can sum. Each program is a process of its own, so
that a driver that hangs or a library that crashes takes nothing along.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tengtune import capabilities
from tengtune.cards import VISIBLE
from tengtune.cluster import hccl
from tengtune.cluster.launch import free_port
from tengtune.cluster.place import Place
from tengtune.doctor import choice
from tengtune.doctor.access import visible
from tengtune.doctor.finding import Case, Finding, listed, ok, unknown
from tengtune.doctor.outcome import findings
from tengtune.doctor.trial import Probe, run
from tengtune.host.place import Place as Local
from tengtune.host.survey import Card
from tengtune.ui.console import Console
from tengtune.ui.lists import joined

_CHOSEN_BY = {"npu": VISIBLE, "cuda": "CUDA_VISIBLE_DEVICES"}
CPU = "cpu"


@dataclass(frozen=True)
class Spot:
    """Where to probe: on the CPU, or on the card that people know as `card`, and frameworks as `place`. bf16:
    whether its generation has bfloat16, None where nobody knows."""

    device: str = CPU
    card: int = 0
    place: str = ""
    bf16: bool | None = None


def check(case: Case, console: Console, seconds: float) -> Iterator[Finding]:
    """All of it: each framework that is installed, alone on each card, then on two together."""
    backends = [name for name in capabilities.NAMES if name in case.host.python.packages]
    if case.recipe is not None and case.recipe.backend != "auto":
        backends = [name for name in backends if name == case.recipe.backend]
    held = [card for card in _cards(case) if card.in_use]
    if held:
        yield unknown("doctor.probe_held", cards=listed(held))
    if backends:
        names = joined(capabilities.NAMES[backend] for backend in backends)
        console.say("doctor.probing", names=names, seconds=f"{seconds:g}")
    for backend in backends:
        spots = _spots(case, backend)
        if spots:
            yield from _notes(backend, spots)
            yield from _probed(case, backend, spots, seconds)


def _cards(case: Case) -> list[Card]:
    """The cards that the run would take, or that this shell sees."""
    return choice.seen(case) if case.recipe is None else choice.taken(case)


def _spots(case: Case, backend: str) -> list[Spot]:
    """The cards of a back end that nobody holds, else the CPU."""
    packages, host = case.host.python.packages, case.host
    if host.has_cards and (backend == "mindspore" or "torch_npu" in packages):
        if host.cards:
            places = {card.number: str(place) for place, card in enumerate(choice.counted(case))}
            free = [card for card in _cards(case) if not card.in_use]
            generations = {card.number: card.generation for card in free}
            return [
                Spot("npu", number, places[number], each.bf16 if each else None)
                for number, each in generations.items()
            ]
        numbers = visible(case) or [node.card for node in host.nodes if node.card is not None]
        return [Spot("npu", number, str(number)) for number in numbers or [0]]
    nvidia = [name.removeprefix("nvidia") for name in Local().names("/dev") if name.startswith("nvidia")]
    if backend == "torch" and "+cpu" not in packages["torch"].version:
        return [Spot("cuda", int(number), number) for number in nvidia if number.isdecimal()] or [Spot()]
    return [Spot()]


def _notes(backend: str, spots: Sequence[Spot]) -> Iterator[Finding]:
    """What is not tried, and why."""
    framework = capabilities.NAMES[backend]
    if spots[0].device == CPU:
        yield ok("doctor.probe_cpu", framework=framework)
    elif len(spots) == 1:
        yield ok("doctor.probe_one", framework=framework)
    without = [str(spot.card) for spot in spots if spot.bf16 is False]
    if without and backend == "torch":
        yield ok("doctor.probe_without_bf16", cards=joined(without))


def _probed(case: Case, backend: str, spots: Sequence[Spot], seconds: float) -> Iterator[Finding]:
    with tempfile.TemporaryDirectory(prefix="tengtune-probe-") as folder:
        ends = run([_alone(backend, spot) for spot in spots], Path(folder), seconds)
    yield from findings([(spot.card, end) for spot, end in zip(spots, ends, strict=True)], seconds)
    two = [spots[0], spots[0]] if spots[0].device == CPU else spots[:2]
    single = case.recipe is not None and case.recipe.parallel.ranks == 1
    if len(two) < 2 or single or not all(end.whole for end in ends[:2]):
        return
    with tempfile.TemporaryDirectory(prefix="tengtune-probe-") as folder:
        ends = run(_pair(backend, two, seconds), Path(folder), seconds, together=True)
    # Who failed is told, not who waited for it.
    told = min(ends, key=lambda end: (end.whole, end.code is None))
    yield from findings([(spot.card, told) for spot in two], seconds)


def _alone(backend: str, spot: Spot) -> Probe:
    trials = ["product_float16", "attention"]
    if backend == "torch" and spot.bf16 is not False:  # the MindSpore back end does not compute in it
        trials.insert(1, "product_bfloat16")
    if spot.device == "npu":
        trials.append("fused")
    return Probe(backend, spot.device, tuple(trials), _chosen([spot]))


def _pair(backend: str, spots: Sequence[Spot], seconds: float) -> list[Probe]:
    master, device = f"127.0.0.1:{free_port()}", spots[0].device
    joined = hccl.variables(seconds) if device == "npu" else {}
    return [
        Probe(backend, device, ("sum",), _chosen(spots), Place(i, 2, i, 2).environment(master) | joined)
        for i in range(2)
    ]


def _chosen(spots: Sequence[Spot]) -> dict[str, str]:
    name = _CHOSEN_BY.get(spots[0].device)
    return {name: ",".join(spot.place for spot in spots)} if name else {}
