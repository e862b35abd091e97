"""The cards' own network ports: hccn.conf and what hccn_tool says of each."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tengtune.host import hccn
from tengtune.host.place import Output, Place
from tengtune.ui.problems import Problem

TOOL = "hccn_tool"
_ASKED = {"link": ("-link", "-g"), "health": ("-net_health", "-g"), "tls": ("-tls", "-g")}
_READ = {
    "link": re.compile(r"^\s*link status:\s*(\w{1,20})\s*$", re.MULTILINE),
    "health": re.compile(r"^\s*net health status:\s*(\w{1,20})\s*$", re.MULTILINE),
    "tls": re.compile(r"\btls switch\[(\d)\]"),
}


@dataclass(frozen=True)
class Nic:
    """A card's port: link UP or DOWN, health "Success", "Fault" or "Init", TLS "0" or "1"; None where the
    tool did not say."""

    link: str | None
    health: str | None
    tls: str | None


def queries(cards: Iterable[int]) -> list[tuple[str, ...]]:
    """The commands that ask for the ports of cards."""
    return [_query(card, part) for card in cards for part in _ASKED]


def nics(cards: Iterable[int], said: Mapping[tuple[str, ...], Output]) -> dict[int, Nic]:
    """Card -> port, from what the commands printed; nothing where there is no such tool."""
    found = {}
    for card in cards:
        outputs = {part: said[_query(card, part)] for part in _ASKED}
        if outputs["link"].fault != "missing":
            words = {part: read(part, output.text) for part, output in outputs.items()}
            found[card] = Nic(words["link"], words["health"], words["tls"])
    return found


def _query(card: int, part: str) -> tuple[str, ...]:
    return (TOOL, "-i", str(card), *_ASKED[part])


def read(part: str, text: str) -> str | None:
    """What hccn_tool prints for -link, -net_health or -tls."""
    match = _READ[part].search(text)
    return match[1] if match else None


def ports(place: Place) -> dict[int, hccn.Port] | Problem | None:
    """The addresses in hccn.conf; None where there is no such file, a Problem where it is wrong."""
    name = str(hccn.CONF)
    text = place.read(name)
    if text is None:
        reason = os.strerror(errno.EACCES)
        return Problem("io.not_permitted", where=name, reason=reason) if place.exists(name) else None
    try:
        return hccn.parse_conf(text, name)
    except Problem as problem:
        return problem
