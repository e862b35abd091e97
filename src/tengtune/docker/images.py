"""Which image fits: facts/images.yaml, asked by chip, back end, machine and driver."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tengtune import facts
from tengtune.docker.machine import Machine
from tengtune.plan import hardware
from tengtune.ui import language
from tengtune.ui.lists import joined
from tengtune.ui.problems import Problem

NAMES = {"torch": "PyTorch", "mindspore": "MindSpore"}
CHIPS = ("910", "A2", "A3")
"""Generations that train; 910B with a digit is A2, without one 910."""


@dataclass(frozen=True)
class Image:
    """An image with what is known of it: its CANN, the machines it is for, what must be installed in it ("":
    nothing), and the drivers that its CANN is published for."""

    name: str
    cann: str
    machines: tuple[str, ...]
    install: str
    drivers: tuple[str, ...] = ()


def choose(chip: str | None, backend: str, machine: Machine) -> Image:
    """The newest image that fits; a driver or a machine that is not known fits all. Problem where no image
    is known."""
    where = "--image"
    if chip is None:
        raise Problem("docker.chip_unknown", where="--chip", chips=joined(CHIPS))
    if chip not in CHIPS:
        raise Problem("docker.chip_inference", where=chip, chip=chip)
    known = [
        row for row in facts.tree("images.yaml")["images"] if (row["chip"], row["backend"]) == (chip, backend)
    ]
    for row in known:
        if machine.architecture in (None, *row["machines"]) and _fits(machine.driver, row["drivers"]):
            fixed = (row["image"], str(row["cann"]), tuple(row["machines"]), row["install"])
            return Image(*fixed, tuple(row["drivers"]))
    if not known:
        raise Problem("docker.backend_unknown", where=where, chip=chip, backend=NAMES[backend])
    drivers = joined(dict.fromkeys(each.upper() for row in known for each in row["drivers"]))
    raise Problem(
        "docker.image_unknown",
        where=where,
        chip=chip,
        backend=NAMES[backend],
        drivers=drivers,
        driver=driver_of(machine),
    )


def driver_of(machine: Machine) -> str:
    """The driver, and the machine type where it is known."""
    driver = language.say("docker.driver_unknown") if machine.driver is None else machine.driver
    return f"{driver} ({machine.architecture})" if machine.architecture else driver


def generation(text: str) -> str:
    """The generation that --chip means: "A2", "910b4", "atlas 800t a2". Problem for a name nobody
    listed, and for what is no Ascend card that trains."""
    if (short := text.strip().upper()) in CHIPS:
        return short
    try:
        found = hardware.find(text)
    except Problem as problem:
        if problem.code != "plan.unknown_hardware":
            raise
        raise Problem("docker.chip_unlisted", where=f"--chip {text}", chips=joined(CHIPS)) from problem
    if found.generation is None:
        raise Problem("docker.not_ascend", where=f"--chip {text}", chips=joined(CHIPS))
    return found.generation


def check_slots(cards: Sequence[int], text: str) -> None:
    """Problem for a card's number that a server which --chip names as a product does not have."""
    slots = None if text.strip().upper() in CHIPS else hardware.find(text).count
    beyond = [card for card in cards if slots is not None and slots > 1 and card >= slots]
    if beyond:
        missing, last = joined(map(str, beyond)), (slots or 1) - 1
        raise Problem("docker.no_slot", where="--cards", product=text.strip(), missing=missing, last=last)


def _fits(driver: str | None, versions: list[str]) -> bool:
    """Whether the driver is one of `versions`, or one of theirs: 25.5 stands for 25.5.2 as well."""
    return driver is None or any(driver == each or driver.startswith(f"{each}.") for each in versions)
