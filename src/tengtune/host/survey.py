"""Everything that is read of a host, in two rounds of commands that run side by side."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tengtune.host import chips, hccn, machine, network, nodes, npu_smi, npu_smi_queries, packages, versions
from tengtune.host.chips import Generation
from tengtune.host.nodes import Node, User
from tengtune.host.npu_smi import Chip, Table
from tengtune.host.place import Output, Place
from tengtune.ui.problems import Problem

INFO, MAP, TOPO = ("npu-smi", "info"), ("npu-smi", "info", "-m"), ("npu-smi", "info", "-t", "topo")
ENVIRONMENT = "/proc/self/environ"
LIST, BUS = ("npu-smi", "info", "-l"), ("lspci", "-nn")


@dataclass(frozen=True)
class Card:
    """A chip with what was asked of it besides."""

    chip: Chip
    generation: Generation | None
    in_use: bool | None
    codes: tuple[str, ...] = ()
    board: npu_smi_queries.Board | None = None
    tflops: float | None = None

    @property
    def number(self) -> int:
        """The number by which its node and its port go: on cards of two dies the physical one."""
        return _number(self.chip)

    @property
    def total_mb(self) -> int | None:
        """Its memory: HBM, or what a card without HBM has."""
        return self.chip.memory_total_mb if self.chip.hbm_total_mb is None else self.chip.hbm_total_mb

    @property
    def used_mb(self) -> int | None:
        """How much of total_mb is used."""
        return self.chip.memory_used_mb if self.chip.hbm_total_mb is None else self.chip.hbm_used_mb


@dataclass(frozen=True)
class Host:
    """One host as it was found."""

    smi: Output
    table: Table
    cards: list[Card]
    boards: npu_smi_queries.Listing
    logic: dict[int, tuple[int, int]]
    topology: npu_smi_queries.Topology
    bus: list[tuple[str, Generation]]
    environment: Mapping[str, str]
    driver: versions.Release | None
    firmware: versions.Release | None
    driver_root: str
    cann: versions.Cann | None
    sourced: bool
    nodes: list[Node]
    user: User
    container: bool
    python: packages.Python
    machine: machine.Machine
    ports: dict[int, hccn.Port] | Problem | None
    nics: dict[int, network.Nic]

    @property
    def has_cards(self) -> bool:
        """Whether anything at all speaks of an Ascend card or its driver."""
        return bool(self.cards or self.bus or self.nodes or self.driver or self.smi.fault != "missing")

    @property
    def generations(self) -> list[Generation | None]:
        """The generations of the cards, each once: by npu-smi, else by the bus."""
        found = [card.generation for card in self.cards] or [generation for _, generation in self.bus]
        return list(dict.fromkeys(found))


def survey(place: Place, folder: Path) -> Host:
    """Read a host. folder: where runs are written, for the disk's free space."""
    disk = machine.disk_query(place, folder)
    first = place.run_all([INFO, MAP, LIST, TOPO, BUS, nodes.LISTING, machine.ARCH, machine.LIBC, disk])
    table = npu_smi.read(first[INFO].text)
    second = place.run_all(_questions(table))
    cards = [_card(chip, table, second) for chip in table.chips]
    environment = _environment(place)
    cann = versions.find_cann(place, environment)
    return Host(
        smi=first[INFO],
        table=table,
        cards=cards,
        boards=npu_smi_queries.read_list(first[LIST].text),
        logic=npu_smi_queries.read_map(first[MAP].text).cards,
        topology=npu_smi_queries.read_topo(first[TOPO].text),
        bus=chips.on_the_bus(place, first[BUS]),
        environment=environment,
        driver=versions.release_of(place, "driver"),
        firmware=versions.release_of(place, "firmware"),
        driver_root=versions.driver_root(place),
        cann=cann,
        sourced=cann is not None and versions.is_sourced(place, cann, environment),
        nodes=nodes.find(place, first[nodes.LISTING]),
        user=nodes.user(place),
        container=nodes.in_container(place),
        python=packages.read(place, environment),
        machine=machine.read(place, first[machine.ARCH], first[machine.LIBC], first[disk]),
        ports=network.ports(place),
        nics=network.nics([card.number for card in cards], second),
    )


def _questions(table: Table) -> list[tuple[str, ...]]:
    """What is asked of each card, once the table has told which there are."""
    chips_of_name = {chip.name: chip for chip in reversed(table.chips)}
    asked = [_query("board", chip) for chip in table.chips]
    asked += [_query("health", chip) for chip in table.chips if chip.health != "OK"]
    asked += [_query("common", chip) for chip in chips_of_name.values()]
    asked += [_query("usages", chip) for chip in table.chips if table.generation(chip) is None]
    return asked + network.queries(_number(chip) for chip in table.chips)


def _query(kind: str, chip: Chip) -> tuple[str, ...]:
    return ("npu-smi", "info", "-t", kind, "-i", str(chip.npu))


def _card(chip: Chip, table: Table, said: Mapping[tuple[str, ...], Output]) -> Card:
    def text(kind: str, of: Chip = chip) -> str:
        output = said.get(_query(kind, of))
        return output.text if output and output.fault != "hangs" else ""  # what has no end has no sense

    generation = table.generation(chip)
    if generation is None and npu_smi_queries.read_usages(text("usages")).first_generation:
        generation = chips.table().generations["910"]
    _, codes = npu_smi_queries.read_health(text("health"))
    board = npu_smi_queries.read_board(text("board"))
    tflops = next(
        (
            npu_smi_queries.read_common(text("common", each)).fp16_tflops
            for each in table.chips
            if each.name == chip.name
        ),
        None,
    )
    return Card(chip, generation, table.in_use(chip), tuple(codes), board, tflops)


def _number(chip: Chip) -> int:
    return chip.npu if chip.phy_id is None else chip.phy_id


def _environment(place: Place) -> Mapping[str, str]:
    """The variables of this process, or those saved of the host as /proc/self/environ."""
    if place.folder is None:
        return dict(os.environ)
    text = place.read(ENVIRONMENT) or ""
    pairs = (pair.partition("=") for pair in text.split("\0" if "\0" in text else "\n"))
    return {name.strip(): value.strip() for name, equals, value in pairs if equals}
