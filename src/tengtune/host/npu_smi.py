"""The table that `npu-smi info` prints.

It comes in four layouts and many widths, with noise before it and rows cut off, so it is read by its header
rows and bars, never by columns. What is not there, or was cut, is None and never 0.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Literal

from tengtune.host import chips
from tengtune.host.chips import Generation

MOST = 1024
"""No machine has so many chips: what goes on is an output without end."""
BIG_MB = 1000
"""A process of this size works on a card; smaller ones only look at it."""

_BUS = re.compile(r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f]")
_TITLE = re.compile(r"[A-Za-z-]+(?: Util)?\([^)]*\)")
_VALUE = re.compile(r"\d+(?:\.\d+)?\s*/\s*\d+(?:\.\d+)?|\S+")
_VERSIONS = re.compile(r"\bnpu-smi\s+(\S+)\s+Version:\s*(\S+)")
_IDLE = re.compile(r"No running processes found in NPU (\d{1,7})")
_EDGE = re.compile(r"(?<![^\s>])\+[=-]{3}")
"""A line between two parts of the table; before it may stand what quotes or stamps it."""
_HEALTH = ("OK", "Warning", "Alarm", "Critical", "UNKNOWN")
_UNITS = {"AICore": "util", "NPU Util": "util", "Memory-Usage": "memory", "HBM-Usage": "hbm"} | {
    "Power": "power", "Temp": "temp", "Hugepages-Usage": "pages",
}  # fmt: skip
_FIRST, _SECOND = ["power", "temp", "pages"], ["util", "memory", "hbm"]
_ZERO = re.compile(r"0(\s*/\s*0)?")
_COLOUR = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
_OPEN = "\0"
"""Marks the cell that a cut row ends in."""

SmiFault = Literal["busy", "denied"]
_ERRORS: dict[str, SmiFault] = {"-8020": "busy", "-8005": "denied"}


@dataclass(frozen=True)
class Chip:
    """One chip's rows; memory in MB. `device` and `phy_id`: where the layout has such a column."""

    npu: int
    chip: int | None
    name: str
    health: str | None
    power_w: float | None = None
    temp_c: int | None = None
    device: int | None = None
    phy_id: int | None = None
    bus_id: str | None = None
    util_pct: int | None = None
    memory_used_mb: int | None = None
    memory_total_mb: int | None = None
    hbm_used_mb: int | None = None
    hbm_total_mb: int | None = None


@dataclass(frozen=True)
class Process:
    """A process on a chip; its name is cut by npu-smi, or empty."""

    npu: int
    chip: int | None
    pid: int
    name: str
    memory_mb: int | None


@dataclass
class Table:
    """What was read. layout: the words over the chips' ids; process_columns: 0 without a process table; told:
    the NPUs whose part of that table is there to its end."""

    tool_version: str | None = None
    driver_version: str | None = None
    layout: str | None = None
    process_columns: int = 0
    chips: list[Chip] = field(default_factory=list)
    processes: list[Process] = field(default_factory=list)
    idle: list[int] = field(default_factory=list)
    told: set[int] = field(default_factory=set)

    @property
    def shows_all_chips(self) -> bool:
        """Whether what follows the chips is there: without it nobody knows how many were cut off."""
        return self.process_columns > 0 or bool(self.told)

    def generation(self, chip: Chip) -> Generation | None:
        """The chip's generation; None for one nobody listed, or with more memory than its name's ever had."""
        found = chips.generation(chip.name, self.layout, chip.memory_total_mb)
        more = found and found.most_mb and chip.hbm_total_mb and chip.hbm_total_mb > found.most_mb
        return None if more else found

    def on(self, chip: Chip) -> list[Process]:
        """The processes on a chip."""
        return [p for p in self.processes if p.npu == chip.npu and p.chip in (chip.chip, None)]

    def in_use(self, chip: Chip) -> bool | None:
        """Whether somebody works on the chip: by a big process, or by its HBM. Nobody does where both say so;
        None where one is not there and the other finds nothing."""
        if any((process.memory_mb or 0) >= BIG_MB for process in self.on(chip)):
            return True
        generation = self.generation(chip)
        if chip.hbm_used_mb is None or generation is None or generation.busy_mb is None:
            return None
        if chip.hbm_used_mb > generation.busy_mb:
            return True
        return False if chip.npu in self.told else None


def fault(text: str) -> SmiFault | None:
    """Why npu-smi has no table: the cards are taken by another container, or this user may not look."""
    return next((name for number, name in _ERRORS.items() if re.search(rf"ret is {number}\b", text)), None)


def read(text: str) -> Table:
    """The table in what npu-smi printed; an empty one where there is none. Of several (`watch`, a log) the
    last that is not cut."""
    reader = _Reader()
    for line in _COLOUR.sub("", text).splitlines():
        reader.line(line.strip())
    tables = [reader.table, *reversed(reader.earlier)]
    return max(tables, key=lambda table: (len(table.chips), len(table.told)))


class _Reader:
    """Goes through the lines; a chip is two of them."""

    def __init__(self) -> None:
        self.table, self.earlier = Table(), list[Table]()
        self.heads: dict[str, int] = {}
        self.first, self.second = list(_FIRST), list(_SECOND)
        self.process_heads: list[str] = []
        self.listing: int | None = None
        self.waiting = False

    def line(self, line: str) -> None:
        """One line of the output. listing: the NPU whose processes are being told."""
        if (match := _IDLE.search(line)) and line.endswith("|"):  # else "NPU 1" may be the half of "NPU 12"
            self._told()
            self.table.idle.append(int(match[1]))
            self.table.told.add(int(match[1]))
        if _EDGE.search(line):
            self.waiting = False
            self._told()
        line = line[max(line.find("|"), 0) :]  # what quotes it, or stamps it, stands before
        if not line.startswith("|") or line == "|":
            return
        closed = line.endswith("|")
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not closed:
            cells[-1] += _OPEN
        if match := _VERSIONS.search(line):
            if self.table.chips:
                self.earlier.append(self.table)
                self.table, self.listing, self.waiting = Table(), None, False
            self.table.tool_version, self.table.driver_version = (
                match[1],
                _version(match[2]) if closed else None,
            )
        elif any(cell.startswith("Process id") for cell in cells):
            self.table.process_columns, self.process_heads = len(cells), cells
        elif "Health" in cells:
            self._head(cells)
        elif "Bus-Id" in cells:
            self._second_head(cells)
        else:
            self._row(cells)

    def _told(self) -> None:
        """The part of the NPU whose processes were listed is at its end."""
        if self.listing is not None:
            self.table.told.add(self.listing)
        self.listing = None

    def _head(self, cells: list[str]) -> None:
        self.first = _titles(cells[-1])
        self.heads = {"health": cells.index("Health")}
        self.table.layout = "NPU ID | Name" if cells[0] == "NPU ID" else None

    def _second_head(self, cells: list[str]) -> None:
        self.second = _titles(cells[-1])
        self.heads["bus"] = cells.index("Bus-Id")
        if self.table.layout is None:
            self.table.layout = " ".join(cells[0].split())

    def _row(self, cells: list[str]) -> None:
        second = self.waiting and self._second_row(cells)
        self.waiting = not second and not self._process(cells) and self._first_row(cells)

    def _first_row(self, cells: list[str]) -> bool:
        """Whether it is the first row of a chip, which is then taken."""
        names = " ".join(cells[:2]).split() if self.table.layout == "NPU ID | Name" else cells[0].split()
        if len(names) < 2 or not _number(names[0]) or _OPEN in " ".join(names):
            return False
        if len(self.table.chips) >= MOST:
            return False
        if names[1] == "NA" or any(map(_BUS.fullmatch, cells)):  # a second row whose first is lost
            return False
        at = self.heads.get("health", 1)
        health = cells[at] if at < len(cells) and cells[at] in _HEALTH else None
        if _number(names[1]) and health is None:  # a card may be called 310, but then it has a health
            return False
        values = _values(cells[-1], self.first) if len(cells) > 2 else {}
        power = values.get("power")
        self.table.chips.append(
            Chip(
                int(names[0]),
                None,
                " ".join(names[1:]),
                health,
                power_w=float(power) if power and re.fullmatch(r"\d{1,6}(\.\d{1,6})?", power) else None,
                temp_c=_whole(values.get("temp")),
            )
        )
        return True

    def _second_row(self, cells: list[str]) -> bool:
        """Whether it is the second row of the chip above, which is then completed."""
        layout = self.table.layout
        numbers = cells[0].split()
        at = self.heads.get("bus", 1)
        bus = cells[at] if at < len(cells) else ""
        four = layout == "NPU ID | Name"
        if not (four or (numbers and _number(numbers[0]))) or not (_BUS.fullmatch(bus) or bus == "NA"):
            return False
        values = _values(cells[-1], self.second) if len(cells) > at + 1 else {}
        memory, hbm = _pair(values.get("memory")), _pair(values.get("hbm"))
        other = _whole(numbers[1]) if len(numbers) > 1 else None
        self.table.chips[-1] = replace(
            self.table.chips[-1],
            chip=_whole(numbers[0]) if numbers and not four else None,
            device=other if layout == "Chip Device" else None,
            phy_id=other if layout == "Chip Phy-ID" else None,
            bus_id=bus,
            util_pct=_whole(values.get("util")),
            memory_used_mb=memory[0],
            memory_total_mb=memory[1],
            hbm_used_mb=hbm[0],
            hbm_total_mb=hbm[1],
        )
        return True

    def _process(self, cells: list[str]) -> bool:
        """Whether it is a row of the process table, which is then taken."""
        ids, heads = cells[0].split(), self.process_heads
        more = len(cells) - len(heads)
        if heads and more > 0 and "Process name" in heads:  # a bar in the name
            at = heads.index("Process name")
            cells = [*cells[:at], "|".join(cells[at : at + more + 1]), *cells[at + more + 1 :]]
        if not heads or len(cells) != len(heads) or _OPEN in cells[-1] or not all(map(_number, ids)):
            return False
        row = dict(zip(heads, cells, strict=True))
        pid = row.get("Process id", "")
        if not ids or not _number(pid):
            return False
        memory = next((row[head] for head in heads if head.startswith("Process memory")), None)
        chip = int(ids[1]) if len(ids) > 1 else None
        if self.listing != int(ids[0]):
            self._told()
        self.listing = int(ids[0])
        self.table.processes.append(
            Process(int(ids[0]), chip, int(pid), row.get("Process name", ""), _whole(memory))
        )
        return True


def _version(text: str) -> str | None:
    return text if re.match(r"\w+(?:\.\w+)", text) else None


def _titles(cell: str) -> list[str]:
    """What the values below a header cell are, in their order."""
    words: list[str] = _TITLE.findall(cell)
    return [_UNITS.get(word.partition("(")[0], "?") for word in words]


def _values(cell: str, titles: list[str]) -> dict[str, str]:
    """title -> value, of those that are whole. Nothing where there are more or fewer values than titles."""
    found: list[str] = _VALUE.findall(cell.removesuffix(_OPEN))
    if cell.endswith(_OPEN):
        # Cut: only a count of 0 is whole for sure, any other number may have had more digits.
        cut = dict(zip(titles, found, strict=False))
        return {title: value for title, value in cut.items() if title != "power" and _ZERO.fullmatch(value)}
    if len(found) != len(titles):
        short = titles == _SECOND and len(found) == 2  # no header was seen: a chip without HBM
        return dict(zip(titles, found, strict=False)) if short else {}
    return dict(zip(titles, found, strict=True))


def _pair(value: str | None) -> tuple[int | None, int | None]:
    """ "123 / 456" as two numbers."""
    match = re.fullmatch(r"(\d{1,9})\s*/\s*(\d{1,9})", value or "")
    return (int(match[1]), int(match[2])) if match else (None, None)


def _number(text: str) -> bool:
    return re.fullmatch(r"[0-9]{1,9}", text) is not None


def _whole(text: str | None) -> int | None:
    return int(text) if text and _number(text) else None
