"""Which cards a run would take, and which others it could."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tengtune.doctor.access import visible
from tengtune.doctor.finding import Case
from tengtune.host.survey import Card

if TYPE_CHECKING:
    from tengtune.recipe import Recipe


def counted(case: Case) -> list[Card]:
    """The cards in the order in which frameworks count them."""
    places = {place: logic for logic, place in case.host.logic.items()}
    return sorted(case.host.cards, key=lambda c: places.get((c.chip.npu, c.chip.chip or 0), c.number))


def places(case: Case, cards: Sequence[Card]) -> str:
    """What chooses these cards: their numbers as frameworks count them, "0,3"."""
    every = counted(case)
    return ",".join(str(place) for place, card in enumerate(every) if card in cards)


def seen(case: Case) -> list[Card]:
    """The cards a process sees, in its order."""
    cards, chosen = counted(case), visible(case)
    return cards if chosen is None else [cards[number] for number in chosen if number < len(cards)]


def all_seen(case: Case, wanted: int) -> bool:
    """Whether `seen` has all there are: npu-smi's table is not cut, or no more are chosen than it has."""
    chosen = visible(case)
    return case.host.table.shows_all_chips or (chosen is not None and len(chosen) < wanted)


def usable(case: Case) -> int:
    """How many cards the run's back end would find on the host, as tengtune.cards counts them."""
    packages, backend = case.host.python.packages, case.recipe.backend if case.recipe else "auto"
    if backend == "auto":
        backend = "torch" if "torch" in packages else "mindspore"
    return len(seen(case)) if ("torch_npu" if backend == "torch" else "mindspore") in packages else 0


def asked(recipe: Recipe) -> int:
    """How many cards a run asks of this machine."""
    return recipe.parallel.ranks // recipe.parallel.nodes


def taken(case: Case) -> list[Card]:
    """The cards that the run would take; all where none is judged."""
    return counted(case) if case.recipe is None else seen(case)[: asked(case.recipe)]


def free(case: Case) -> list[Card]:
    """The cards that are well and held by nobody."""
    return [card for card in counted(case) if card.in_use is False and card.chip.health == "OK"]


def suitable(cards: list[Card], wanted: int) -> list[Card]:
    """So many of these cards that may work together; none where there are not."""
    generation = cards[0].generation if cards else None
    size = generation.ring if generation else None
    if size is not None and 1 < wanted <= size:
        for ring in sorted({card.number // size for card in cards}):
            inside = [card for card in cards if card.number // size == ring]
            if len(inside) >= wanted:
                return inside[:wanted]
        return []
    return cards[:wanted] if len(cards) >= wanted else []


def fewer(recipe: Recipe, cards: list[Card]) -> int:
    """The most ranks, fewer than the run asks for, that these cards can share the batch of; at least 1."""
    train, nodes = recipe.train, recipe.parallel.nodes
    counts = cards[0].generation.counts if cards and cards[0].generation else ()
    fitting = [
        number
        for number in range(1, asked(recipe))
        if train.global_batch % (train.micro_batch * number * nodes) == 0
        and (not counts or number in counts)
        and suitable(cards, number)
    ]
    return max(fitting, default=1) * nodes
