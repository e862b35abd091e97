"""RANK_TABLE_FILE: which rank sits on which card of which server, for MindSpore's rank-table start-up.

Version 1.0 is written as the reference's hccl_tools.py writes it (JSON, indent 4, all values strings); 1.0
and 1.2 (super pods) are read and checked. Source of the formats: mindformers r1.0, the HCCL documentation.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from tengtune import files
from tengtune.host.hccn import Port, is_address, is_usable
from tengtune.json_file import read_object
from tengtune.ui import lists
from tengtune.ui.lists import joined
from tengtune.ui.problems import Problem

NUMBER = re.compile("[0-9]{1,7}")
"""A card or a rank, as a text."""
_NAME = re.compile(r"(?![0-9.]+$)[\w.:-]{1,200}", re.ASCII)
"""A server that is named: part of a file's name, and no address that is none."""
RING = 4
"""Cards 0-3 and 4-7 of a server of the first 910 generation are two rings."""
RING_COUNTS = (1, 2, 4, 8, 16)
"""How many of its cards a job may take there."""


@dataclass(frozen=True)
class Device:
    """A card: its physical number (/dev/davinciN), its port's address (None: not in the table), its rank."""

    card: int
    address: str | None
    rank: int


@dataclass(frozen=True)
class Server:
    """A machine of the table: its address or name, and its cards in the table's order."""

    name: str
    devices: tuple[Device, ...]


@dataclass(frozen=True)
class Fault:
    """Something that is wrong with a table (blocking) or may be; code and values of its text."""

    code: str
    blocking: bool
    values: Mapping[str, object]


Table = Sequence[Server]


def make(server: str, ports: Mapping[int, Port]) -> Table:
    """A table of one server; ranks in the order of `ports`. Problem for a server that has no such name."""
    _check_server(server, "--server-ip")
    devices = (Device(card, port.address, rank) for rank, (card, port) in enumerate(ports.items()))
    return [Server(server, tuple(devices))]


def merge(tables: Sequence[Table]) -> Table:
    """One table of several; ranks are numbered anew, in the order of the tables and of the ranks in each."""
    servers = [server for table in tables for server in table]
    starts = accumulate((len(server.devices) for server in servers), initial=0)
    return [
        Server(s.name, tuple(Device(d.card, d.address, start + i) for i, d in enumerate(_by_rank(s))))
        for s, start in zip(servers, starts, strict=False)
    ]


def _by_rank(server: Server) -> list[Device]:
    return sorted(server.devices, key=lambda device: device.rank)


def file_name(table: Table) -> str:
    """The name hccl_tools.py and merge_hccl.py would give it."""
    if len(table) == 1:
        (server,) = table
        cards = "".join(str(device.card) for device in server.devices)
        return f"hccl_{len(server.devices)}p_{cards}_{server.name}.json"
    return f"hccl_{len(table)}s_{sum(len(server.devices) for server in table)}p.json"


def write(table: Table, path: Path) -> None:
    """Write the table as version 1.0."""
    servers = [
        {
            "server_id": server.name,
            "device": [
                {"device_id": str(d.card), "device_ip": d.address, "rank_id": str(d.rank)}
                for d in server.devices
            ],
            "host_nic_ip": "reserve",
        }
        for server in table
    ]
    head = {"version": "1.0", "server_count": str(len(table))}
    files.write_text(path, json.dumps({**head, "server_list": servers, "status": "completed"}, indent=4))


def read(path: Path, versions: Sequence[str] = ("1.0", "1.2")) -> tuple[Table, list[Fault]]:
    """The table in a file of one of the versions, and what its frame has wrong (counts, status, super pods).
    Problem where it is no rank table, or of another version."""
    found = read_object(path, "ranktable.no_table")
    version = found.get("version")
    if version not in versions:
        known = joined(f'"{each}"' for each in versions)
        raise Problem("ranktable.version", where=path, found=json.dumps(version), known=known)
    listed = _list(found, "server_list", path)
    table = [_server(server, f"{path}: server_list[{i}]") for i, server in enumerate(listed)]
    return table, list(_frame(found, table))


def _server(entry: dict[str, Any], where: str) -> Server:
    name = entry.get("server_id")
    if not isinstance(name, str):
        raise Problem("ranktable.no_table", where=where, reason="server_id")
    _check_server(name, where)
    devices = _list(entry, "device", where)
    return Server(name, tuple(_device(each, f"{where}.device[{i}]") for i, each in enumerate(devices)))


def _check_server(name: str, where: str) -> None:
    if not (is_address(name) or _NAME.fullmatch(name)):
        raise Problem("ranktable.bad_server", where=where, text=name)


def _device(entry: dict[str, Any], where: str) -> Device:
    numbers = []
    for key in ("device_id", "rank_id"):
        text = str(entry.get(key))
        if not NUMBER.fullmatch(text):
            raise Problem("ranktable.no_table", where=where, reason=key)
        numbers.append(int(text))
    address = entry.get("device_ip")
    if address is not None and not (isinstance(address, str) and is_address(address)):
        raise Problem("ranktable.bad_address", where=where, text=address)
    return Device(numbers[0], address, numbers[1])


def _list(entry: dict[str, Any], key: str, where: object) -> list[dict[str, Any]]:
    """The list of objects under a key, not empty."""
    value = entry.get(key)
    if not isinstance(value, list) or not value or not all(isinstance(each, dict) for each in value):
        raise Problem("ranktable.no_table", where=where, reason=key)
    return value


def _objects(entry: dict[str, Any], key: str) -> list[dict[str, Any]]:
    """The objects in the list under a key, if there is one."""
    value = entry.get(key)
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _frame(found: dict[str, Any], table: Table) -> Iterator[Fault]:
    count = found.get("server_count")
    if str(count) != str(len(table)):
        yield Fault("ranktable.count", True, {"told": count, "found": len(table)})
    if found.get("status") != "completed":
        yield Fault("ranktable.status", True, {"status": found.get("status")})
    devices = [device for entry in found["server_list"] for device in entry["device"]]
    numbers = {key for key in ("device_id", "rank_id") for each in devices if isinstance(each[key], int)}
    numbers |= {"server_count"} if isinstance(count, int) else set()
    if numbers:
        yield Fault("ranktable.numbers", True, {"keys": joined(sorted(numbers))})
    if found["version"] == "1.2":
        yield from _super_pods(found, table)


def _super_pods(found: dict[str, Any], table: Table) -> Iterator[Fault]:
    """Version 1.2: every server lies in one super pod, every card has its number there."""
    servers = [server for pod in _objects(found, "super_pod_list") for server in _objects(pod, "server_list")]
    listed = [str(server.get("server_id")) for server in servers]
    for server in table:
        if (times := listed.count(server.name)) != 1:
            yield Fault("ranktable.super_pod", True, {"server": server.name, "times": times})
    for entry in found["server_list"]:
        lacking = [str(d.get("device_id")) for d in entry["device"] if d.get("super_device_id") in (None, "")]
        if lacking:
            values = {"server": entry["server_id"], "cards": joined(lacking)}
            yield Fault("ranktable.super_device", True, values)
    for pod in _objects(found, "super_pod_list"):
        inside = {str(server.get("server_id")) for server in _objects(pod, "server_list")}
        numbers = Counter(
            str(device["super_device_id"])
            for entry in found["server_list"]
            for device in entry["device"]
            if entry["server_id"] in inside and device.get("super_device_id") not in (None, "")
        )
        if twice := [number for number, times in numbers.items() if times > 1]:
            yield Fault("ranktable.super_device_twice", True, {"numbers": lists.listed(twice)})


def faults(table: Table) -> Iterator[Fault]:
    """What is wrong with the servers, cards and ranks of a table."""
    for name, times in Counter(server.name for server in table).items():
        if times > 1:
            yield Fault("ranktable.server_twice", True, {"server": name, "times": times})
    devices = [device for server in table for device in server.devices]
    addresses = Counter(str(ipaddress.ip_address(d.address)) for d in devices if d.address)
    for address, times in addresses.items():
        if times > 1:
            yield Fault("ranktable.address_twice", True, {"address": address, "times": times})
        if not is_usable(address):
            yield Fault("ranktable.unusable", len(table) > 1, {"address": address})
    ranks = sorted(device.rank for device in devices)
    if ranks != list(range(len(devices))):
        yield Fault("ranktable.ranks", True, {"count": len(devices), "last": len(devices) - 1})
    sizes = {server.name: len(server.devices) for server in table}
    if len(set(sizes.values())) > 1:  # no refusal: HCCL's sources have multiModuleDiffDeviceNumMode for it
        told = joined(f"{name}: {size}" for name, size in sizes.items())
        yield Fault("ranktable.uneven", False, {"sizes": told})
    for server in table:
        yield from _faults_of(server, alone=len(table) == 1)


def _faults_of(server: Server, alone: bool) -> Iterator[Fault]:
    cards, ranks = [d.card for d in server.devices], [d.rank for d in server.devices]
    name = {"server": server.name}
    for card, times in Counter(cards).items():
        if times > 1:
            yield Fault("ranktable.server_card_twice", True, {**name, "card": card})
    own = [str(d.card) for d in server.devices if d.address and d.address == server.name]
    if own:
        yield Fault("ranktable.servers_own", True, {**name, "cards": joined(own)})
    lacking = [str(d.card) for d in server.devices if d.address is None]
    if lacking:
        yield Fault("ranktable.no_address", not alone, {**name, "cards": joined(lacking)})
    if max(ranks) - min(ranks) >= len(ranks):
        yield Fault("ranktable.interleaved", True, name)
    if crosses_rings(cards):
        yield Fault("ranktable.rings", False, {**name, "cards": joined(cards)})


def crosses_rings(cards: Sequence[int]) -> bool:
    """Whether a job may not take these cards on a server of the first 910 generation: other numbers than 1,
    2, 4, 8 (16 on two boards), or 2 or 4 cards out of both rings."""
    if len(cards) not in RING_COUNTS:
        return True
    return len(cards) <= RING and len({card // RING for card in cards}) > 1


def network_fault(ports: Mapping[int, Port]) -> Fault | None:
    """The cards' subnets, where netmasks are known: on a first-generation server cards k and k+4 share one,
    on later ones all do."""
    networks = {card: port.network for card, port in ports.items()}
    if None in networks.values() or len(set(networks.values())) == 1:
        return None
    if all(networks[card] == networks.get(card % RING, networks[card]) for card in networks):
        return None
    return Fault("ranktable.networks", False, {"networks": joined(f"{c}: {n}" for c, n in networks.items())})
