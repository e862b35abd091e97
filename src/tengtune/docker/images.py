"""Which image fits: facts/images.yaml, asked by chip, back end, machine and driver."""

from __future__ import annotations

from dataclasses import dataclass

from tengtune.docker.machine import Machine
from tengtune.docker.table import read
from tengtune.plan import hardware
from tengtune.ui import language
from tengtune.ui.lists import joined
from tengtune.ui.problems import Problem

CHIPS = ("910", "A2", "A3")
"""Generations that train; 910B with a digit is A2, without one 910."""


@dataclass(frozen=True)
class Image:
    """An image with what is known of it: its CANN, the machines it is for, and what must be installed in it
    ("": nothing)."""

    name: str
    cann: str
    machines: tuple[str, ...]
    install: str


def choose(chip: str | None, backend: str, machine: Machine) -> Image:
    """The newest image that fits; a driver or a machine that is not known fits all. Problem where no image
    is known."""
    where = "--image"
    if chip is None:
        raise Problem("docker.chip_unknown", where="--chip", chips=joined(CHIPS))
    if chip not in CHIPS:
        raise Problem("docker.chip_inference", where=chip, chip=chip)
    known = [row for row in read("images")["images"] if (row["chip"], row["backend"]) == (chip, backend)]
    for row in known:
        if machine.architecture in (None, *row["machines"]) and _fits(machine.driver, row["drivers"]):
            return Image(row["image"], str(row["cann"]), tuple(row["machines"]), row["install"])
    raise Problem(
        "docker.image_unknown",
        where=where,
        chip=chip,
        backend=backend,
        machine=machine.architecture or language.say("docker.any_machine"),
        driver=driver_of(machine),
    )


def driver_of(machine: Machine) -> str:
    """The driver in a sentence."""
    if machine.driver is None:
        return language.say("docker.driver_unknown")
    return language.say("docker.driver", version=machine.driver)


def generation(text: str) -> str:
    """The generation that --chip means: "A2", "910b4", "atlas 800t a2". Problem for a name nobody
    listed, and for what is no Ascend card that trains."""
    if (short := text.strip().upper()) in CHIPS:
        return short
    found = hardware.find(text)
    if found.generation is None:
        raise Problem("docker.not_ascend", where=f"--chip {text}", chips=joined(CHIPS))
    return found.generation


def _fits(driver: str | None, versions: list[str]) -> bool:
    """Whether the driver is one of `versions`, or one of theirs: 25.5 stands for 25.5.2 as well."""
    return driver is None or any(driver == each or driver.startswith(f"{each}.") for each in versions)
