"""What the host has: cards, driver, and files that a container needs. Read from the file system alone."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tengtune.host.chips import on_the_bus
from tengtune.host.place import Output, Place


@dataclass(frozen=True)
class Machine:
    """`cards`: numbers of the nodes /dev/davinciN; `group`: the group id that owns them, None without a card;
    `chip`: 910, A2, A3 or 310P, None where PCI ids do not tell; `driver`: its version in lower case;
    `ascend`: the folder the driver is installed in; `architecture`: None without a card, as the command is
    for another machine then; `root` is "/" but in tests."""

    cards: tuple[int, ...]
    group: int | None
    chip: str | None
    driver: str | None
    ascend: str
    architecture: str | None
    root: Path

    def has(self, path: str) -> bool:
        """Whether there is such a file or folder."""
        return (self.root / path.lstrip("/")).exists()


def look(root: Path = Path("/")) -> Machine:
    """The host whose file system this is."""
    nodes = {
        int(node.name.removeprefix("davinci")): node
        for node in (root / "dev").glob("davinci*")
        if node.name.removeprefix("davinci").isdecimal()
    }
    ascend = _settings(root / "etc/ascend_install.info").get("Driver_Install_Path_Param", "/usr/local/Ascend")
    driver = _settings(root / ascend.lstrip("/") / "driver/version.info").get("Version")
    return Machine(
        cards=tuple(sorted(nodes)),
        group=nodes[min(nodes)].stat().st_gid if nodes else None,
        chip=_chip(root),
        driver=driver.lower() if driver else None,
        ascend=ascend.rstrip("/"),
        architecture=platform.machine() if nodes else None,
        root=root,
    )


def _settings(path: Path) -> Mapping[str, str]:
    """The lines KEY=VALUE of a file; none where it cannot be read."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    pairs = (line.partition("=") for line in lines)
    return {key.strip(): value.strip() for key, _, value in pairs if value.strip()}


def _chip(root: Path) -> str | None:
    """The one kind of card on the PCI bus; None for none, and for several."""
    kinds = {generation.name for _, generation in on_the_bus(Place(root), Output(""))}
    return kinds.pop() if len(kinds) == 1 else None
