"""A run file against the host: back end, type, number and choice of cards, memory and disk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from tengtune import capabilities
from tengtune.doctor.access import visible
from tengtune.doctor.cards import holders
from tengtune.doctor.finding import Case, Finding, block, ok, unknown, warn
from tengtune.host.chips import Generation
from tengtune.host.survey import Card
from tengtune.recipe import Recipe
from tengtune.ui.lists import size
from tengtune.ui.problems import Problem

_INSTALL = {"torch": "tengtune[torch]", "mindspore": "tengtune[mindspore]"}


def check(case: Case, recipe: Recipe) -> Iterator[Finding]:
    """All of it."""
    backend = _backend(case, recipe)
    if backend is None:
        names = [recipe.backend] if recipe.backend != "auto" else ["torch", "mindspore"]
        wanted = " / ".join(capabilities.NAMES[name] for name in names)
        yield block("doctor.no_backend", wanted=wanted, install=_INSTALL[names[0]])
        return
    yield from _features(case, recipe, backend)
    yield from _cards(case, recipe, backend)
    yield from _room(case, recipe)


def _backend(case: Case, recipe: Recipe) -> str | None:
    """The back end the run would take; None where it is not installed."""
    names = ("torch", "mindspore") if recipe.backend == "auto" else (recipe.backend,)
    return next((name for name in names if name in case.host.python.packages), None)


def _features(case: Case, recipe: Recipe, backend: str) -> Iterator[Finding]:
    """What the run asks for and its back end has nowhere, or not on these cards."""
    try:
        capabilities.refuse(recipe, None, backend)
    except Problem as problem:
        texts = problem.texts()
        yield block("doctor.refused", asked=texts["what"], reason=texts.get("why", ""), advice=texts["fix"])
        return
    for generation in case.host.generations:
        device = generation.capability if generation else None
        if generation is None or device is None:
            continue
        for name, feature in capabilities.FEATURES.items():
            table = capabilities.table()[name][backend]
            if feature.asked(recipe, None) and table[device] == "no":
                code = "doctor.no_bfloat16" if name == "bfloat16" else "doctor.not_on_card"
                yield block(code, asked=feature.words(recipe), generation=generation.name)


def _cards(case: Case, recipe: Recipe, backend: str) -> Iterator[Finding]:
    """Whether as many cards as the run asks of this machine are there, fit and free."""
    host, wanted = case.host, recipe.parallel.ranks // recipe.parallel.nodes
    if not host.has_cards:
        yield ok("doctor.run_on_cpu", backend=capabilities.NAMES[backend], ranks=wanted)
        return
    if backend == "torch" and "torch_npu" not in host.python.packages:
        yield block("doctor.run_without_npu")
    unfit = [g for g in host.generations if g is not None and g.trainable is False]
    if unfit:
        yield block("doctor.run_on_inference", generation=", ".join(each.name for each in unfit))
    if not host.cards:
        yield unknown("doctor.run_unseen", wanted=wanted)
        return
    chosen = _seen(case)
    if wanted > len(chosen):
        yield block("doctor.too_few", wanted=wanted, count=len(chosen))
        return
    taken = chosen[:wanted]
    held = [card for card in taken if card.in_use]
    free = [card for card in _counted(case) if card.in_use is False and card.chip.health == "OK"]
    ringed = taken[0].generation if taken else None
    if held:
        yield _held(case, held, free, wanted)
    elif ringed is not None and ringed.counts and recipe.parallel.nodes == 1:
        yield _ring(case, ringed, taken, free)
    elif not unfit:
        yield _free(taken)
    if host.topology.pcie_only and wanted > 1:
        yield from _bus_groups(case, taken)


def _counted(case: Case) -> list[Card]:
    """The cards in the order in which frameworks count them."""
    places = {place: logic for logic, place in case.host.logic.items()}
    return sorted(case.host.cards, key=lambda c: places.get((c.chip.npu, c.chip.chip or 0), c.number))


def _seen(case: Case) -> list[Card]:
    """The cards a run sees, in its order."""
    cards, chosen = _counted(case), visible(case)
    return cards if chosen is None else [cards[number] for number in chosen if number < len(cards)]


def _places(case: Case, cards: Sequence[Card]) -> str:
    """What chooses these cards: their numbers as frameworks count them."""
    counted = _counted(case)
    return ",".join(str(counted.index(card)) for card in cards)


def _held(case: Case, held: Sequence[Card], free: list[Card], wanted: int) -> Finding:
    who = "; ".join(f"{card.number}: {holders(case, card) or '?'}" for card in held)
    suitable = _suitable(free, wanted)
    values = {"wanted": wanted, "count": len(held), "cards": _numbers(held), "who": who, "free": len(free)}
    if suitable:
        return block("doctor.held_others", **values, places=_places(case, suitable))
    return block("doctor.held", **values)


def _suitable(free: list[Card], wanted: int) -> list[Card]:
    """So many free cards that may work together; none where there are not."""
    generation = free[0].generation if free else None
    size = generation.ring if generation else None
    if size is not None and 1 < wanted <= size:
        for ring in sorted({card.number // size for card in free}):
            inside = [card for card in free if card.number // size == ring]
            if len(inside) >= wanted:
                return inside[:wanted]
        return []
    return free[:wanted] if len(free) >= wanted else []


def _ring(case: Case, generation: Generation, taken: list[Card], free: list[Card]) -> Finding:
    """The first generation: 1, 2, 4 or 8 cards, and 2 or 4 within one ring."""
    wanted, counts = len(taken), ", ".join(map(str, generation.counts))
    if wanted not in generation.counts:
        return block("doctor.ring_count", wanted=wanted, counts=counts)
    rings = {card.number // (generation.ring or wanted) for card in taken}
    if generation.ring and 1 < wanted <= generation.ring and len(rings) > 1:
        values = {"wanted": wanted, "cards": _numbers(taken)}
        places = _places(case, _suitable(free, wanted))
        return block("doctor.ring_crossed" if places else "doctor.ring_full", **values, places=places)
    return _free(taken)


def _free(taken: list[Card]) -> Finding:
    """Nobody is known to hold them; whether they are free is another thing."""
    make = ok if all(card.in_use is False for card in taken) else unknown
    code = "doctor.run_cards" if make is ok else "doctor.run_cards_unknown"
    return make(code, wanted=len(taken), cards=_numbers(taken))


def _bus_groups(case: Case, taken: list[Card]) -> Iterator[Finding]:
    """Cards that meet on the PCI bus alone: those of two sockets are slow together."""
    groups = [group for group in case.host.topology.groups if {card.number for card in taken} & set(group)]
    largest = max((len(group) for group in case.host.topology.groups), default=0)
    if len(groups) > 1 and len(taken) <= largest:
        yield warn("doctor.bus_groups", cards=_numbers(taken), groups=" | ".join(map(str, groups)))


def _room(case: Case, recipe: Recipe) -> Iterator[Finding]:
    """The merged model lies beside the run; its base is mapped into memory."""
    weights = _weights(recipe.model_folder)
    free = case.host.machine.disk_free
    if weights and free is not None and free < weights:
        yield block("doctor.no_room", need=size(weights), free=size(free), folder=recipe.folder)


def _weights(folder: Path) -> int:
    try:
        return sum(each.stat().st_size for each in folder.glob("*.safetensors"))
    except OSError:
        return 0


def _numbers(cards: Sequence[Card]) -> str:
    return ", ".join(str(card.number) for card in cards)
