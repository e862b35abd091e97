"""Which image fits: facts/images.yaml, asked by chip, back end, machine and driver."""

from __future__ import annotations

from dataclasses import dataclass

from tengtune.docker.machine import Machine
from tengtune.docker.table import read
from tengtune.ui.problems import Problem

CHIPS = ("910", "A2", "A3")
"""Generations that train; 910B with a digit is A2, without one 910."""


@dataclass(frozen=True)
class Image:
    """An image with what is known of it: its CANN, and what must be installed in it ("": nothing)."""

    name: str
    cann: str
    install: str


def choose(chip: str | None, backend: str, machine: Machine) -> Image:
    """The newest image that fits; a driver that is not known fits all. Problem where no image is known."""
    where = "--image"
    if chip is None:
        raise Problem("docker.chip_unknown", where="--chip", chips=", ".join(CHIPS))
    if chip not in CHIPS:
        raise Problem("docker.chip_inference", where=chip, chip=chip)
    known = [row for row in read("images")["images"] if (row["chip"], row["backend"]) == (chip, backend)]
    for row in known:
        if machine.architecture in row["machines"] and _fits(machine.driver, row["drivers"]):
            return Image(row["image"], str(row["cann"]), row["install"])
    raise Problem(
        "docker.image_unknown",
        where=where,
        chip=chip,
        backend=backend,
        machine=machine.architecture,
        driver=machine.driver or "?",
    )


def _fits(driver: str | None, versions: list[str]) -> bool:
    """Whether the driver is one of `versions`, or one of theirs: 25.5 stands for 25.5.2 as well."""
    return driver is None or any(driver == each or driver.startswith(f"{each}.") for each in versions)
