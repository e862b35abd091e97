"""The cards: are they there, what are they, are they well, are they free."""

from __future__ import annotations

from collections.abc import Iterator

from tengtune.doctor import choice
from tengtune.doctor.finding import Case, Finding, block, listed, ok, unknown, warn
from tengtune.host import npu_smi
from tengtune.host.survey import Card
from tengtune.ui import language
from tengtune.ui.lists import clauses, joined

_LEVELS = {"Warning": warn, "Alarm": block, "Critical": block}
_UNEQUAL = 1.1
"""Cards of one kind differ by megabytes; of two kinds by gigabytes."""


def check(case: Case) -> Iterator[Finding]:
    """All of it; without any card one line."""
    host = case.host
    if not host.has_cards:
        yield ok("doctor.no_card")
        return
    yield from _seen(case)
    yield from _kinds(case)
    for card in host.cards:
        if card.chip.health != "OK":
            yield _health(case, card)
    yield from _busy(case)


def _seen(case: Case) -> Iterator[Finding]:
    """Whether npu-smi shows the cards."""
    host = case.host
    smi = host.smi
    if smi.fault == "hangs":
        yield unknown("doctor.smi_hangs", seconds=f"{case.seconds:g}")
    elif (reason := npu_smi.fault(smi.text)) == "busy":
        yield block("doctor.smi_busy")
    elif reason == "denied":
        yield block("doctor.smi_denied")
    elif smi.fault == "missing" and host.driver is not None:
        yield warn("doctor.smi_missing", root=host.driver_root)
    elif not host.cards and smi.fault != "missing":
        said = smi.text.strip().splitlines()
        total = host.boards.total
        yield unknown("doctor.smi_unread", said=said[-1][:120] if said else "", total=total or "?")
    elif host.cards and not host.table.shows_all_chips:
        yield unknown("doctor.smi_cut", count=len(host.cards))
    if not host.cards and host.bus:
        names = joined(dict.fromkeys(generation.name for _, generation in host.bus))
        yield ok("doctor.on_the_bus", count=len(host.bus), generation=names)


def _kinds(case: Case) -> Iterator[Finding]:
    """What the cards are."""
    groups: dict[tuple[str, str], list[Card]] = {}
    for card in case.host.cards:
        generation = card.generation.name if card.generation else ""
        groups.setdefault((card.chip.name, generation), []).append(card)
    for (name, generation), cards in groups.items():
        values = {"cards": listed(cards), "count": len(cards), "name": name, "generation": generation}
        known = cards[0].generation
        if known is None:
            yield unknown("doctor.chip_unknown", **values)
        elif known.trainable is None:
            yield unknown("doctor.chip_unproved", **values)
        elif not known.trainable:
            yield warn("doctor.chip_inference", **values)
        else:
            speed = f", {cards[0].tflops:g} TFLOPS" if cards[0].tflops else ""
            yield ok("doctor.chip", **values, size=gigabytes(cards[0].total_mb), speed=speed)
    totals = [card.total_mb for card in case.host.cards if card.total_mb]
    if len(groups) > 1 or (totals and max(totals) > _UNEQUAL * min(totals)):
        alike = max(groups.values(), key=len)
        names = joined(name for name, _ in groups)
        yield warn("doctor.mixed", names=names, places=choice.places(case, alike))


def _health(case: Case, card: Card) -> Finding:
    """What ails a card, in the words of its codes. One that the run does not take is in nobody's way."""
    health = card.chip.health
    values = {"card": card.number, "health": health or "?"}
    meanings, fixes = [], []
    if card.codes:
        from tengtune.explain import known

        errors = known.load()
        for code in card.codes:
            error = errors.get(f"health_{code[2:]}")
            meanings.append(error.means if error else code)
            fixes += [error.fix] if error else []
    why = clauses(meanings) or language.say("doctor.no_code")
    fix = " ".join(fixes) or language.say("doctor.ask_health", card=card.chip.npu)
    make = _LEVELS.get(health or "", unknown)
    if make is block and case.recipe is not None and card not in choice.taken(case):
        make = warn
    return make("doctor.health", **values, reason=why, advice=fix)


def _busy(case: Case) -> Iterator[Finding]:
    """Who holds which cards."""
    cards = case.host.cards
    held = [card for card in cards if card.in_use]
    named = [card for card in held if case.host.table.on(card.chip)]
    unseen = [card for card in held if card not in named]
    places = choice.places(case, choice.free(case)) if held else ""
    if named:
        who = clauses(f"{card.number}: {holders(case, card)}" for card in named)
        pids = {each.pid for card in named for each in case.host.table.on(card.chip)}
        values = {"cards": listed(named), "who": who, "pids": " ".join(map(str, sorted(pids)))}
        yield warn("doctor.busy" if places else "doctor.busy_all", **values, places=places)
    for code, told in (("doctor.busy_unseen", True), ("doctor.busy_unnamed", False)):
        if some := [card for card in unseen if (card.chip.npu in case.host.table.told) is told]:
            used = joined(gigabytes(card.used_mb) for card in some)
            yield warn(code, cards=listed(some), used=used, npu=some[0].chip.npu)
    free = [card for card in cards if card.in_use is False]
    if cards and len(free) == len(cards):
        yield ok("doctor.free", count=len(free))
    doubtful = [card for card in cards if card.in_use is None and card.generation and card.generation.busy_mb]
    if lost := [card for card in doubtful if card.chip.hbm_used_mb is None]:
        yield unknown("doctor.memory_unknown", cards=listed(lost))
    untold = [card for card in doubtful if card not in lost]
    if untold and case.host.table.shows_all_chips:  # else it is said of all
        yield unknown("doctor.busy_unknown", cards=listed(untold))


def holders(case: Case, card: Card) -> str:
    """The processes on a card, the biggest first."""
    found = sorted(case.host.table.on(card.chip), key=lambda process: -(process.memory_mb or 0))
    return joined(f"{each.name or '?'} ({each.pid}, {gigabytes(each.memory_mb)})" for each in found[:3])


def gigabytes(megabytes: int | None) -> str:
    """The GB, of 1e9 bytes, of so many of npu-smi's MB, which are MiB."""
    return "?" if megabytes is None else f"{megabytes * 2**20 / 1e9:.1f} GB"
