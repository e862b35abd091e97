"""Cards by the names people have for them: facts/hardware.yaml, read."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, replace
from typing import Any

from tengtune import facts
from tengtune.host import chips
from tengtune.host.place import Place
from tengtune.plan import names
from tengtune.plan.strategy import Range
from tengtune.ui.lists import joined
from tengtune.ui.problems import Problem

GIB = 1 << 30

_SIZE = re.compile(r"(\d{1,4})\s*(?:gib|gb|g)\b", re.ASCII)


@dataclass(frozen=True)
class Hardware:
    """Cards, all alike, of one machine or several.

    name: as npu-smi or their maker calls them. count: of all machines, None where the name gave none.
    memory_bytes: of one card, None for a CPU, whose ranks share the host's. usable_bytes: what frameworks
    get of it, None where nobody measured. generation, chip (npu-smi's name): of Ascend cards.
    host_bytes, disk_bytes: one machine's, None: not known. doubts: codes of texts that say what was read into
    a name. peak_flops: of 16-bit products a second; hbm_bytes_per_s: the card's memory; link_bytes_per_s:
    what a card sends to the others of its machine, in a mesh to each of them; node_bytes_per_s: to other
    machines. None: not known.
    counts: how many cards of one machine may work together; empty: any number.
    """

    name: str
    count: int | None
    memory_bytes: int | None
    usable_bytes: int | None
    context: Range
    link_bytes: float
    generation: str | None = None
    chip: str | None = None
    host_bytes: int | None = None
    disk_bytes: int | None = None
    nodes: int = 1
    doubts: tuple[str, ...] = ()
    peak_flops: Range | None = None
    hbm_bytes_per_s: float | None = None
    link_bytes_per_s: float | None = None
    node_bytes_per_s: float | None = None
    mesh: bool = False
    counts: tuple[int, ...] = ()

    @property
    def is_cpu(self) -> bool:
        return self.memory_bytes is None

    @property
    def plain_attention(self) -> bool:
        """Whether it is known to have no fused attention. (facts/npus.yaml)"""
        known = chips.table().generations.get(self.generation or "")
        return known is not None and known.fused_attention is False

    def together(self, cards: int) -> bool:
        """Whether so many cards of one machine may work together. (facts/npus.yaml)"""
        return not self.counts or cards in self.counts

    def most_together(self, cards: int) -> int:
        """Of so many cards of one machine the most that may work together."""
        return max((count for count in self.counts if count <= cards), default=cards)


def table() -> dict[str, Any]:
    """facts/hardware.yaml."""
    found: dict[str, Any] = facts.tree("hardware.yaml")
    return found


def find(text: str) -> Hardware:
    """The hardware that "4x atlas-300t-a2", "910b4", "2x Atlas 800 (9000)", "8张910A", "2x8x 910b4" (machines
    x cards), "a100-80g", "8x32g" or "cpu" names.

    A machine of several cards without a number means all its cards, with one so many machines, but for the
    number of its own cards: "8x Atlas 800T A2" are the eight of one. More Ascend cards than a machine holds
    are several machines. Problem for a name nobody listed, with the nearest, and for cards that do not train.
    """
    try:
        counted = names.counted(text)
    except names.BadCountError:
        raise _bad_count(text) from None
    if counted is None:
        raise _unknown(text, text)
    found = _named(counted.name, text)
    if found.count == 1 and (counted.machines, counted.cards, counted.number) == (None, None, None):
        return replace(found, count=None)
    machines, cards, doubts = _spread(found, counted)
    if cards is None:
        raise _bad_count(text)
    return replace(found, count=machines * cards, nodes=machines, doubts=(*found.doubts, *doubts))


def _spread(card: Hardware, counted: names.Counted) -> tuple[int, int | None, tuple[str, ...]]:
    """Machines, cards of each (None: nobody knows how many a machine holds), and what was read into it."""
    own, most, number = card.count or 1, _most(card), counted.number
    guessed = ("plan.counted_machines",)
    if counted.cards is not None and counted.machines is not None:
        return counted.machines, counted.cards, ()
    if counted.machines is not None:
        return counted.machines, own if own > 1 else most, () if own > 1 else guessed
    if own > 1 and counted.cards is None and number != own:
        return number or 1, own, guessed if number and number > 1 else ()
    cards = counted.cards or number or 1
    if most is None or cards <= most:
        return 1, cards, ("plan.counted_cards",) if own > 1 and number else ()
    machines = next(count for count in range(-(-cards // most), cards + 1) if cards % count == 0)
    return machines, cards // machines, guessed


def _most(card: Hardware) -> int | None:
    """How many such cards a machine holds; None where that is not known."""
    most: dict[str, int] = table()["machines"]
    return most.get(card.chip or "", most.get(card.generation or ""))


def with_this_host(found: Hardware) -> Hardware:
    """The hardware in this machine: its memory."""
    from tengtune.host.machine import memory

    return replace(found, host_bytes=memory(Place()))


def _named(name: str, text: str) -> Hardware:
    """The hardware of a name: CPU, product, chip, another maker's card, or a mere size."""
    tree = table()
    if names.key(name) == "cpu":
        return Hardware("CPU", None, None, None, _range(tree["other"]), 0.0)
    stated = _SIZE.search(name)
    if stated and not int(stated[1]):
        raise _unknown(text, name)
    bare, without = names.key(name), names.key(_SIZE.sub("", name))
    products = {names.key(each): (each, values) for each, values in tree["products"].items()}
    known = {names.key(each): each for each in tree["chips"]}
    others = {names.key(each): each for each in tree["others"]}
    for candidate in (bare, without):
        meant, *doubt = tree["aliases"].get(candidate, [candidate])
        candidate = names.key(meant)
        if candidate == "910b":  # to people the A2 cards, to npu-smi a card of the first generation
            found = replace(ascend("910B3", int(stated[1]) if stated else 64), name="910B")
            doubt = ["plan.which_910b"]
        elif candidate in products:
            found = _product(*products[candidate], stated)
        elif candidate in known:
            chip = known[candidate]
            found = ascend(chip, int(stated[1]) if stated else tree["chips"][chip])
        else:
            continue
        return replace(found, doubts=(*found.doubts, *doubt))
    if without in others:
        chip = others[without]
        size = int(stated[1]) if stated else tree["others"][chip]
        context, link = _range(tree["other"]), tree["other"]["link_gb"] * 1e9
        shown = f"{chip.upper()} {size} GB"
        card = Hardware(shown, 1, size * GIB, None, context, link, doubts=("plan.nominal",))
        return _with_speed(card, chip)
    if stated and not without:
        card = ascend(f"{stated[1]} GB", int(stated[1]))
        return replace(card, doubts=("plan.any_card", *card.doubts))
    known_chips = chips.table()
    unfit = [
        *known_chips.names,
        *(each for each, of in known_chips.generations.items() if of.trainable is False),
    ]
    other = next((each for each in (*unfit, *tree["inference"]) if names.key(each) == bare), None)
    if other is not None:
        raise Problem("plan.no_training", where=text, name=_shown(other), exit_code=3)
    raise _unknown(text, name)


def _product(name: str, values: dict[str, Any], stated: re.Match[str] | None) -> Hardware:
    tree = table()
    size = int(stated[1]) if stated else tree["chips"][values["chip"]]
    card = ascend(values["chip"], size)
    doubts = ("plan.memory_unproved",) if values.get("doubt") == "memory" and not stated else ()
    card = replace(card, name=_shown(name), count=values["cards"], doubts=(*card.doubts, *doubts))
    return _linked(card, values.get("links"))


def _shown(name: str) -> str:
    """A name of the table as its maker writes it."""
    return " ".join(
        each.title() if each in ("atlas", "pro", "duo") else each.upper() for each in name.split()
    )


def ascend(chip: str, size_gib: int) -> Hardware:
    """An Ascend card of this nominal memory; `chip` as npu-smi calls it."""
    known, made = table()["ascend"], chips.table()
    generation = "A3" if chip == "A3" else made.names.get(chip)
    usable = known["usable_gib"].get(size_gib)
    card = Hardware(
        chip,
        1,
        size_gib * GIB,
        None if usable is None else int(usable * GIB),
        _range(known),
        known["link_gb"] * 1e9,
        generation=generation,
        chip=chip if chip in table()["chips"] else None,
        counts=made.generations[generation].counts if generation else (),
        doubts=() if usable is not None else ("plan.nominal",),
    )
    return _with_speed(card, chip)


def _with_speed(card: Hardware, name: str) -> Hardware:
    """The card with its peak, its memory's bandwidth and its links, as far as they are known."""
    speed = table()["speeds"].get(name)
    if speed is None:
        return card
    peak = Range(*(1e12 * number for number in speed["tflops"]))
    doubts = ("plan.peak_derived",) if speed.get("doubt") == "peak" else ()
    card = replace(card, peak_flops=peak, hbm_bytes_per_s=speed["hbm_gb_s"] * 1e9)
    return _linked(replace(card, doubts=(*card.doubts, *doubts)), speed.get("links"))


def _linked(card: Hardware, name: str | None) -> Hardware:
    """The card with its links to others, by their kind."""
    if name is None:
        return card
    links = table()["links"][name]
    inside, between = links["gb_s"], links.get("node_gb_s")
    return replace(
        card,
        link_bytes_per_s=None if inside is None else inside * 1e9,
        node_bytes_per_s=None if between is None else between * 1e9,
        mesh=links.get("mesh", False),
    )


def here() -> Hardware | None:
    """This machine's cards, as npu-smi tells them; None where there are none."""
    from tengtune.host import npu_smi

    place = Place()
    table = npu_smi.read(place.run(("npu-smi", "info")).text)
    sizes = [chip.hbm_total_mb or chip.memory_total_mb for chip in table.chips]
    if not sizes or None in sizes:
        return None
    chip, size = table.chips[0], min(size for size in sizes if size is not None)
    generation = table.generation(chip)
    found = ascend("A3" if generation and generation.name == "A3" else chip.name, round(size / 1024))
    return with_this_host(replace(found, count=len(sizes)))


def _range(values: dict[str, Any]) -> Range:
    low, expected, high = (1e9 * number for number in values["context_gb"])
    return Range(low, expected, high)


def _bad_count(text: str) -> Problem:
    return Problem("plan.bad_count", where=text, most=names.MOST)


def _unknown(text: str, name: str) -> Problem:
    """Nothing is called `name`, which is of `text`."""
    tree = table()
    known = [*tree["products"], *(name.lower() for name in tree["chips"]), *tree["others"], "cpu"]
    keys = {names.key(each): each for each in known}
    found = difflib.get_close_matches(names.key(name), list(keys), n=3, cutoff=0.5)
    near = [keys[each] for each in found] or ["atlas 800t a2", "910b4", "8x64g"]
    return Problem("plan.unknown_hardware", where=text, near=joined(each.replace(" ", "-") for each in near))
