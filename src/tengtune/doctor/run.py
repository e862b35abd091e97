"""A run file against the host: back end, type, number and choice of cards, memory and disk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from tengtune import capabilities
from tengtune.doctor import choice, compat, needs
from tengtune.doctor.cards import holders
from tengtune.doctor.finding import Case, Finding, block, listed, ok, unknown, warn
from tengtune.host.chips import Generation
from tengtune.host.survey import Card
from tengtune.recipe import Recipe
from tengtune.ui.lists import clauses, joined, size
from tengtune.ui.problems import Problem


def check(case: Case, recipe: Recipe) -> Iterator[Finding]:
    """All of it."""
    names = ("torch", "mindspore") if recipe.backend == "auto" else (recipe.backend,)
    backend = next((name for name in names if name in case.host.python.packages), None)
    if backend is None:  # the rest is judged all the same, as if it were there
        wanted = " / ".join(capabilities.NAMES[name] for name in names)
        yield block("doctor.no_backend", wanted=wanted, extra=names[0])
        backend = names[0]
    yield from _features(case, recipe, backend)
    yield from _cards(case, recipe, backend)
    room = list(_room(case, recipe))
    yield from room
    needed = needs.check(case, recipe, backend)
    yield from (each for each in needed if not (room and "need_disk" in each.code))


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
        if capabilities.table()[recipe.train.method][backend][device] == "no":
            values = {"backend": capabilities.NAMES[backend], "since": compat.MINDSPORE_SINCE}
            names = {"generation": generation.name, "last": generation.last_mindspore or "?"}
            yield block("doctor.no_backend_on_card", **values, **names, run=recipe.called())
            continue
        for name, feature in capabilities.FEATURES.items():
            table = capabilities.table()[name][backend]
            if feature.asked(recipe, None) and table[device] == "no":
                code = "doctor.no_bfloat16" if name == "bfloat16" else "doctor.not_on_card"
                values = {"asked": feature.words(recipe), "generation": generation.name}
                yield block(code, **values, run=recipe.called())


def _cards(case: Case, recipe: Recipe, backend: str) -> Iterator[Finding]:
    """Whether as many cards as the run asks of this machine are there, fit and free."""
    host, wanted = case.host, choice.asked(recipe)
    if not host.has_cards:
        cores = host.machine.cores
        make = warn if cores is not None and wanted > cores else ok
        code = "doctor.run_on_few_cores" if make is warn else "doctor.run_on_cpu"
        yield make(code, backend=capabilities.NAMES[backend], ranks=wanted, cores=cores)
        return
    if "torch" in host.python.packages and backend == "torch" and "torch_npu" not in host.python.packages:
        yield block("doctor.run_without_npu")
    unfit = [g for g in host.generations if g is not None and g.trainable is False]
    if unfit:
        names = joined(each.name for each in unfit)
        yield block("doctor.run_on_inference", generation=names, run=recipe.called())
    if not host.cards:
        yield unknown("doctor.run_unseen", wanted=wanted)
        return
    if wanted > (count := len(choice.seen(case))):
        if not choice.all_seen(case, wanted):
            yield unknown("doctor.run_cards_cut", wanted=wanted, count=count)
            return
        ranks = choice.fewer(recipe, choice.seen(case))
        yield block("doctor.too_few", wanted=wanted, count=count, run=recipe.called(), ranks=ranks)
        return
    taken = choice.taken(case)
    held = [card for card in taken if card.in_use]
    ringed = taken[0].generation
    if held:
        yield _held(case, recipe, held, wanted)
    elif ringed is not None and ringed.counts and recipe.parallel.nodes == 1:
        yield _ring(case, recipe, ringed, taken)
    elif not unfit:
        yield _free(taken)
    if host.topology.pcie_only and wanted > 1:
        yield from _bus_groups(case, taken)


def _held(case: Case, recipe: Recipe, held: Sequence[Card], wanted: int) -> Finding:
    who = clauses(f"{card.number}: {holders(case, card) or '?'}" for card in held)
    free = choice.free(case)
    values = {"wanted": wanted, "count": len(held), "cards": listed(held), "who": who, "free": len(free)}
    if others := choice.suitable(free, wanted):
        return block("doctor.held_others", **values, places=choice.places(case, others))
    if not free:
        return block("doctor.held_all", **values)
    return block("doctor.held", **values, run=recipe.called(), ranks=choice.fewer(recipe, free))


def _ring(case: Case, recipe: Recipe, generation: Generation, taken: list[Card]) -> Finding:
    """The first generation: 1, 2, 4 or 8 cards, and 2 or 4 within one ring."""
    wanted, counts = len(taken), joined(generation.counts)
    values = {"wanted": wanted, "cards": listed(taken), "run": recipe.called()}
    ranks = choice.fewer(recipe, choice.free(case))
    if wanted not in generation.counts:
        return block("doctor.ring_count", **values, counts=counts, ranks=ranks)
    rings = {card.number // (generation.ring or wanted) for card in taken}
    if generation.ring and 1 < wanted <= generation.ring and len(rings) > 1:
        if others := choice.suitable(choice.free(case), wanted):
            return block("doctor.ring_crossed", **values, places=choice.places(case, others))
        return block("doctor.ring_full", **values, ranks=ranks)
    return _free(taken)


def _free(taken: list[Card]) -> Finding:
    """Nobody is known to hold them; whether they are free is another thing."""
    make = ok if all(card.in_use is False for card in taken) else unknown
    code = "doctor.run_cards" if make is ok else "doctor.run_cards_unknown"
    return make(code, wanted=len(taken), cards=listed(taken))


def _bus_groups(case: Case, taken: list[Card]) -> Iterator[Finding]:
    """Cards that meet on the PCI bus alone: those of two sockets are slow together."""
    groups = case.host.topology.groups
    touched = [group for group in groups if {card.chip.npu for card in taken} & set(group)]
    fitting = next((group for group in groups if len(group) >= len(taken)), None)
    if len(touched) > 1 and fitting:
        others = [card for card in choice.counted(case) if card.chip.npu in fitting][: len(taken)]
        names = " | ".join(joined(group) for group in touched)
        values = {"cards": listed(taken), "groups": names, "places": choice.places(case, others)}
        yield warn("doctor.bus_groups", **values)


def _room(case: Case, recipe: Recipe) -> Iterator[Finding]:
    """The merged model lies beside the run; its base is mapped into memory."""
    need = weights(recipe.model_folder) if case.weights is None else case.weights
    free = case.host.machine.disk_free
    if need and free is not None and free < need:
        yield block("doctor.no_room", need=size(need), free=size(free), folder=recipe.folder)


def weights(folder: Path) -> int:
    """Bytes of a model's weights; 0 where they can't be read."""
    try:
        return sum(each.stat().st_size for each in folder.glob("*.safetensors"))
    except OSError:
        return 0
