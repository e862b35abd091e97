"""What npu-smi's other queries print: `info -m`, `-l`, `-t board`, `usages`, `common`, `health`, `topo`."""

from __future__ import annotations

import re
from dataclasses import dataclass

_LINE = re.compile(r"\s*([A-Za-z][^:]*?)\s*:\s*(.*?)\s*")
_LABEL = re.compile(r"(NPU|Phy-ID)(\d{1,7})")
_MAP = ("NPU ID", "Chip ID", "Chip Logic ID", "Chip Name")
_FLOPS = 4096 * 2
"""FP16 operations of one core a cycle."""


def pairs(text: str) -> dict[str, str]:
    """key -> value of lines "key : value", NA left out; of a key the first counts, as the card's values come
    before its controller's."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        if (match := _LINE.fullmatch(line)) and match[2] not in ("", "NA"):
            found.setdefault(match[1], match[2])
    return found


@dataclass(frozen=True)
class Map:
    """`info -m`: the number torch has for a card -> (NPU id, chip)."""

    cards: dict[int, tuple[int, int]]
    name: str | None
    skipped: int


def read_map(text: str) -> Map:
    """Rows of NPU ID, Chip ID, Chip Logic ID, Chip Name, in later drivers with more columns between, which
    the header tells; controllers (Mcu) have no logic id."""
    cards: dict[int, tuple[int, int]] = {}
    name, skipped = None, 0
    heads = list(_MAP)
    for line in text.splitlines():
        cells = re.split(r"\s{2,}|\t", line.strip())
        if set(_MAP) <= set(cells):
            heads = cells
            continue
        row = dict(zip(heads, cells, strict=False))
        npu, chip, logic = (row.get(head, "") for head in _MAP[:3])
        if len(cells) != len(heads) or not (_is_id(npu) and _is_id(chip)):
            continue
        if _is_id(logic):
            cards[int(logic)] = (int(npu), int(chip))
            name = name or row[_MAP[3]].removeprefix("Ascend ")
        elif logic == "-":
            skipped += 1
    return Map(cards, name, skipped)


def _is_id(text: str) -> bool:
    return re.fullmatch(r"[0-9]{1,7}", text) is not None


@dataclass(frozen=True)
class Listing:
    """`info -l`: the boards."""

    total: int | None
    npus: tuple[int, ...]
    product: str | None
    chips_per_npu: int | None


def read_list(text: str) -> Listing:
    """The boards that npu-smi lists."""
    found = pairs(text)
    npus = tuple(int(number) for number in re.findall(r"NPU ID\s*:\s*(\d{1,7})\b", text))
    return Listing(_whole(found, "Total Count"), npus, found.get("Product Name"), _whole(found, "Chip Count"))


@dataclass(frozen=True)
class Board:
    """`info -t board`: what npu-smi itself thinks of driver and firmware."""

    npu: int | None
    product: str | None
    driver: str | None
    firmware: str | None
    compatible: bool | None
    pci_bus: str | None


def read_board(text: str) -> Board:
    """A card's board."""
    found = pairs(text)
    verdict = found.get("Compatibility")
    return Board(
        _whole(found, "NPU ID"),
        found.get("Product Name"),
        found.get("Software Version"),
        found.get("Firmware Version"),
        None if verdict is None else verdict == "OK",
        found.get("PCIe Bus Info"),
    )


@dataclass(frozen=True)
class Usages:
    """`info -t usages`: memory in MB."""

    npu: int | None
    ddr_mb: int | None
    hbm_mb: int | None
    hbm_used_pct: int | None
    aivector: bool

    @property
    def first_generation(self) -> bool | None:
        """The first 910 has DDR beside HBM and no separate vector cores; A2 and later the other way round."""
        if self.ddr_mb is None or self.hbm_mb is None:
            return None
        if (self.ddr_mb > 0) == self.aivector:
            return None
        return self.ddr_mb > 0


def read_usages(text: str) -> Usages:
    """A card's memory and whether it has vector cores."""
    found = pairs(text)
    return Usages(
        _whole(found, "NPU ID"),
        _whole(found, "DDR Capacity(MB)"),
        _whole(found, "HBM Capacity(MB)"),
        _whole(found, "HBM Usage Rate(%)"),
        "Aivector Usage Rate(%)" in found,
    )


@dataclass(frozen=True)
class Common:
    """`info -t common`: cores and clock."""

    npu: int | None
    cores: int | None
    mhz: int | None
    temp_c: int | None
    power_w: float | None

    @property
    def fp16_tflops(self) -> float | None:
        """What the matrix units could do at most."""
        return round(self.cores * _FLOPS * self.mhz / 1e6, 1) if self.cores and self.mhz else None


def read_common(text: str) -> Common:
    """A card's cores and clock."""
    found = pairs(text)
    power = found.get("NPU Real-time Power(W)", "")
    return Common(
        _whole(found, "NPU ID"),
        _whole(found, "Aicore Count"),
        _whole(found, "Aicore Freq(MHZ)"),
        _whole(found, "Temperature(C)"),
        float(power) if re.fullmatch(r"\d{1,6}(\.\d{1,6})?", power) else None,
    )


def read_health(text: str) -> tuple[str | None, list[str]]:
    """`info -t health`: the word, and the codes as "0x80E01801", of a card of two dies those of both."""
    found = pairs(text)
    lines = " ".join(re.findall(r"^\s*Error Code\s*:(.*)$", text, re.MULTILINE))
    codes = dict.fromkeys(re.findall(r"\b(?:0[xX])?([0-9A-Fa-f]{8})\b", lines))
    return found.get("Health Status", found.get("Health")), [f"0x{code.upper()}" for code in codes]


@dataclass(frozen=True)
class Topology:
    """`info -t topo`: which card is joined to which, and how."""

    label: str | None
    links: dict[tuple[int, int], str]

    @property
    def kinds(self) -> list[str]:
        """The kinds of links there are."""
        return sorted(set(self.links.values()))

    @property
    def cards(self) -> list[int]:
        """The numbers of the cards."""
        return sorted({card for pair in self.links for card in pair})

    @property
    def pcie_only(self) -> bool:
        """Whether the cards meet on the PCI bus alone."""
        return bool(self.links) and set(self.kinds) <= {"PIX", "PXB", "PHB", "SYS"}

    @property
    def groups(self) -> list[list[int]]:
        """Cards that reach each other without crossing sockets (SYS)."""
        groups: list[set[int]] = []
        for card in self.cards:
            near = {card} | {b for (a, b), kind in self.links.items() if a == card and kind != "SYS"}
            joined = [group for group in groups if group & near]
            groups = [group for group in groups if not group & near] + [near.union(*joined)]
        return [sorted(group) for group in groups]


def read_topo(text: str) -> Topology:
    """The matrix: a header of cards, a row a card; what follows (affinity, legend) is left out."""
    columns: list[int] = []
    links: dict[tuple[int, int], str] = {}
    label = None
    for line in text.splitlines():
        words = line.split()
        names = [match for word in words if (match := _LABEL.fullmatch(word))]
        if len(names) > 1:
            columns, label = [int(match[2]) for match in names], names[0][1]
        elif len(names) == 1 and _LABEL.fullmatch(words[0]) and len(words) > len(columns):
            row = int(names[0][2])
            cells = zip(columns, words[1:], strict=False)
            links |= {(row, column): kind for column, kind in cells if column != row}
    return Topology(label, links)


def _whole(found: dict[str, str], key: str) -> int | None:
    text = found.get(key, "")
    return int(text) if re.fullmatch(r"[0-9]{1,9}", text) else None
