"""Cards by the names people have for them: facts/hardware.yaml, read."""

from __future__ import annotations

import difflib
import functools
import re
import unicodedata
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any

from tengtune.host import chips
from tengtune.host.place import Place
from tengtune.plan.strategy import Range
from tengtune.ui.problems import Problem

GIB = 1 << 30

_COUNTED = re.compile(
    r"(?:(\d{1,5})\s*[x×*]\s*(?=\d+\s*[x×*]))?(?:(\d{1,5})\s*[x×*]\s*)?(.+?)(?:\s*[x×*]\s*(\d{1,5}))?",
    re.ASCII,
)
_SIZE = re.compile(r"(\d{1,4})\s*(?:gib|gb|g)", re.ASCII)
_NOISE = re.compile(
    r"昇腾|华为|英伟达|\b(?:huawei|nvidia|ascend|geforce|sxm\d?|pcie|npu|gpu|cards?|of)\b", re.ASCII
)
# How Chinese counts: 2 台 8 卡, 4 张; cards before the name or behind it.
_MACHINES = re.compile(r"(\d{1,5})\s*(?:台|机|节点)的?\s*(.+)", re.ASCII)
_BEFORE = re.compile(r"^(\d+)\s*(?:张卡|块卡|张|块|卡)的?\s*(?=\S)", re.ASCII)
_BEHIND = re.compile(r"(?<=\S)\s*,?\s*\b(\d+)\s*(?:张卡|块卡|张|块|卡)$", re.ASCII)


@dataclass(frozen=True)
class Hardware:
    """Cards, all alike, of one machine or several.

    name: as npu-smi or their maker calls them. count: of all machines, None where the name gave none.
    memory_bytes: of one card, None for a CPU, whose ranks share the host's. usable_bytes: what frameworks
    get of it, None where nobody measured. generation: of Ascend cards. host_bytes, disk_bytes: one
    machine's, None: not known. doubts: codes of texts that say what was read into a name. peak_flops: of
    16-bit products a second; hbm_bytes_per_s: the card's memory; link_bytes_per_s: what a card sends to the
    others of its machine, in a mesh to each of them; node_bytes_per_s: to other machines. None: not known.
    """

    name: str
    count: int | None
    memory_bytes: int | None
    usable_bytes: int | None
    context: Range
    link_bytes: float
    generation: str | None = None
    host_bytes: int | None = None
    disk_bytes: int | None = None
    nodes: int = 1
    doubts: tuple[str, ...] = ()
    peak_flops: Range | None = None
    hbm_bytes_per_s: float | None = None
    link_bytes_per_s: float | None = None
    node_bytes_per_s: float | None = None
    mesh: bool = False

    @property
    def is_cpu(self) -> bool:
        return self.memory_bytes is None


@functools.cache
def facts() -> dict[str, Any]:
    """facts/hardware.yaml."""
    import yaml

    text = resources.files("tengtune.facts").joinpath("hardware.yaml").read_text("utf-8")
    tree: dict[str, Any] = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return tree


def find(text: str) -> Hardware:
    """The hardware that "4x atlas-300t-a2", "910b4", "8x Atlas 800T A2", "a100-80g", "8x32g" or "cpu" names.

    A machine without a number means all its cards. Problem for a name nobody listed, with the nearest, and
    for cards that do not train.
    """
    folded = _folded(text)
    several = _MACHINES.fullmatch(folded)
    if several is not None:
        one, nodes = find(several[2]), int(several[1])
        if one.count is None or one.nodes > 1 or not nodes:
            raise _unknown(text)
        return replace(one, count=one.count * nodes, nodes=nodes)
    match = _COUNTED.fullmatch(folded)
    if match is None:
        raise _unknown(text)
    machines, before, name, after = match.groups()
    if (before and after) or any(count and not int(count) for count in (machines, before, after)):
        raise _unknown(text)
    found, nodes = _named(_plain(name), text), int(machines or 1)
    each = int(before or after) if before or after else None
    if each is not None and found.count is not None and found.count > 1:
        found = replace(found, doubts=(*found.doubts, "plan.counted_cards"))
    if each is None and found.count == 1:
        return replace(found, count=None)
    return replace(found, count=(each or found.count or 1) * nodes, nodes=nodes)


def with_this_host(found: Hardware) -> Hardware:
    """The hardware in this machine: its memory."""
    from tengtune.host.machine import memory

    return replace(found, host_bytes=memory(Place()))


def _folded(text: str) -> str:
    """Lower case, wide letters and digits as usual ones, and 8 卡 as 8x."""
    usual = unicodedata.normalize("NFKC", text).strip().lower()
    return _BEFORE.sub(r"\1x ", _BEHIND.sub(r" x\1", usual)).strip()


def _plain(name: str) -> str:
    words = re.sub(r"[-_/,()\s]+", " ", name).strip()
    return re.sub(r"\s+", " ", _NOISE.sub(" ", words)).strip()


def _named(name: str, text: str) -> Hardware:
    """The hardware of a plain name: CPU, product, chip, another maker's card, or a mere size."""
    tree = facts()
    if name == "cpu":
        return Hardware("CPU", None, None, None, _range(tree["other"]), 0.0)
    bare = name.removeprefix("atlas ")
    products = {each.removeprefix("atlas "): (each, values) for each, values in tree["products"].items()}
    stated = _SIZE.search(bare)
    if stated and not int(stated[1]):
        raise _unknown(text)
    without = _SIZE.sub("", bare).strip()
    for candidate in (bare, without):
        if candidate in products:
            return _product(*products[candidate], stated)
    names = {each.lower().replace("-", " "): each for each in tree["chips"]}
    for candidate in (bare, without):
        if candidate == "910b":  # to people the A2 cards, to npu-smi a card of the first generation
            card = ascend("910B3", int(stated[1]) if stated else 64)
            return replace(card, name="910B", doubts=(*card.doubts, "plan.which_910b"))
        if candidate in names:
            return ascend(names[candidate], int(stated[1]) if stated else tree["chips"][names[candidate]])
    if without in tree["others"]:
        size = int(stated[1]) if stated else tree["others"][without]
        context, link = _range(tree["other"]), tree["other"]["link_gb"] * 1e9
        name = f"{without.upper()} {size} GB"
        card = Hardware(name, 1, size * GIB, None, context, link, doubts=("plan.nominal",))
        return _with_speed(card, without)
    if stated and not without:
        card = ascend(f"{stated[1]} GB", int(stated[1]))
        return replace(card, doubts=("plan.any_card", *card.doubts))
    known = chips.facts().names
    other = next((each for each in known if each.lower() == bare.replace(" ", "-")), None)
    if other is not None:
        raise Problem("plan.no_training", where=text, name=other, exit_code=3)
    raise _unknown(text)


def _product(name: str, values: dict[str, Any], stated: re.Match[str] | None) -> Hardware:
    tree = facts()
    size = int(stated[1]) if stated else tree["chips"][values["chip"]]
    card = ascend(values["chip"], size)
    doubts = ("plan.memory_unproved",) if values.get("doubt") == "memory" and not stated else ()
    words = [word.title() if word == "atlas" else word.upper() for word in name.split()]
    card = replace(card, name=" ".join(words), count=values["cards"], doubts=(*card.doubts, *doubts))
    return _linked(card, values.get("links"))


def ascend(chip: str, size_gib: int) -> Hardware:
    """An Ascend card of this nominal memory; `chip` as npu-smi calls it."""
    known = facts()["ascend"]
    usable = known["usable_gib"].get(size_gib)
    card = Hardware(
        chip,
        1,
        size_gib * GIB,
        None if usable is None else int(usable * GIB),
        _range(known),
        known["link_gb"] * 1e9,
        generation="A3" if chip == "A3" else chips.facts().names.get(chip),
        doubts=() if usable is not None else ("plan.nominal",),
    )
    return _with_speed(card, chip)


def _with_speed(card: Hardware, name: str) -> Hardware:
    """The card with its peak, its memory's bandwidth and its links, as far as they are known."""
    speed = facts()["speeds"].get(name)
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
    links = facts()["links"][name]
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


def _unknown(text: str) -> Problem:
    tree = facts()
    known = [*tree["products"], *(name.lower() for name in tree["chips"]), *tree["others"], "cpu"]
    plain = _plain(re.sub(r"^\d+\s*[x×*]", "", _folded(text)))
    near = difflib.get_close_matches(plain, known, n=3, cutoff=0.5) or ["atlas 800t a2", "910b4", "8x64g"]
    return Problem(
        "plan.unknown_hardware", where=text, near=", ".join(each.replace(" ", "-") for each in near)
    )
