"""What a card is, by the name npu-smi or the PCI bus has for it: facts/npus.yaml, read."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tengtune import facts
from tengtune.host.place import Output, Place


@dataclass(frozen=True)
class Generation:
    """A generation of chips; see facts/npus.yaml for the fields."""

    name: str
    bf16: bool | None = None
    fused_attention: bool | None = None
    trainable: bool | None = None
    busy_mb: int | None = None
    most_mb: int | None = None
    pci: str | None = None
    kernels: str | None = None
    package: str | None = None
    capability: str | None = None
    counts: tuple[int, ...] = ()
    ring: int | None = None
    last_cann: str | None = None
    last_torch_npu: str | None = None
    last_mindspore: str | None = None


@dataclass(frozen=True)
class Facts:
    """All that is known of chips."""

    generations: dict[str, Generation]
    names: dict[str, str]
    layouts: list[dict[str, Any]] = field(default_factory=list)


@functools.cache
def table() -> Facts:
    """facts/npus.yaml."""
    tree = facts.tree("npus.yaml")
    generations = {
        name: Generation(name, **{**values, "counts": tuple(values.get("counts", ()))})
        for name, values in tree["generations"].items()
    }
    return Facts(generations, tree["names"], tree["layouts"])


def generation(name: str, layout: str | None = None, ddr_mb: int | None = None) -> Generation | None:
    """The generation of a card that npu-smi calls `name` in a table of `layout`; None for one nobody listed.

    ddr_mb: what the table has as the card's memory beside HBM.
    """
    known = table()
    plain = name.removeprefix("Ascend").lstrip()
    if plain in known.names and (
        plain == name or plain != "910B"
    ):  # "Ascend910B" is said of both generations
        return known.generations[known.names[plain]]
    for rule in known.layouts:
        if rule["layout"] == layout and name in rule["names"] and (bool(ddr_mb) or not rule.get("ddr")):
            return known.generations[rule["generation"]]
    return None


VENDOR = "0x19e5"
"""The maker's number on the PCI bus, as /sys has it."""
_LSPCI = re.compile(r"^\s*([0-9a-fA-F:.]+)\s.*(?:19e5:|Huawei.*\bDevice )([0-9a-fA-F]{4})\b", re.MULTILINE)


def on_the_bus(place: Place, lspci: Output) -> list[tuple[str, Generation]]:
    """(address, generation) of the Ascend cards on the PCI bus, there without any driver: from lspci, or
    from /sys where there is no such command."""
    by_id = {each.pci: each for each in table().generations.values() if each.pci}
    found = [(match[1], match[2].lower()) for match in _LSPCI.finditer(lspci.text)]
    return [(address, by_id[device]) for address, device in found or _sysfs(place) if device in by_id]


def _sysfs(place: Place) -> Iterable[tuple[str, str]]:
    folder = "/sys/bus/pci/devices"
    for address in place.names(folder):
        if (place.read(f"{folder}/{address}/vendor") or "").strip() == VENDOR:
            device = (place.read(f"{folder}/{address}/device") or "").strip()
            yield address, device.removeprefix("0x").lower()
