"""The container as a whole: what it is given, and for what."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tengtune
from tengtune import facts
from tengtune.docker.machine import Machine
from tengtune.docker.places import Mount
from tengtune.ui.lists import joined
from tengtune.ui.problems import Problem

SHELL = "bash"
NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]+")
"""docker's own rule for names."""
IMAGE = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._:/@-]*")
"""What an image's name consists of: registry, port, tag and digest; it begins like no option."""
USER = re.compile(r"[0-9]{1,10}:[0-9]{1,10}")
"""A user and a group by their numbers: names are those of the image, which is not here."""
MOST_USER = 2**31 - 1
"""The highest number of a user or group that docker takes."""


@dataclass(frozen=True)
class Container:
    """`cards`: numbers on the host; `group`: the group id of their nodes, None where it is not known or is
    root's; `user`: as docker takes it, and `folder`: where it starts, None for the image's own."""

    image: str
    name: str
    cards: tuple[int, ...]
    mounts: tuple[Mount, ...]
    group: int | None = None
    user: str | None = None
    folder: str | None = None

    @property
    def devices(self) -> list[str]:
        """The nodes of the cards, then those that go with them."""
        return [*(f"/dev/davinci{card}" for card in self.cards), *facts.tree("docker.yaml")["devices"]]

    @property
    def environment(self) -> dict[str, str]:
        """The cards by their numbers outside, for Ascend's docker runtime, and inside, counted from 0."""
        return {
            "ASCEND_VISIBLE_DEVICES": ",".join(map(str, self.cards)),
            "ASCEND_RT_VISIBLE_DEVICES": ",".join(str(number) for number in range(len(self.cards))),
        }

    @property
    def to_make(self) -> list[str]:
        """Folders of the host that are mounted and not there yet."""
        return [mount.source for mount in self.mounts if mount.absent]


def host_mounts(machine: Machine) -> tuple[list[Mount], list[str]]:
    """The driver's part of the host, read-only, and what of it is not there; all of it on a machine without a
    card, where nothing can be looked up."""
    found, lacking = [], []
    for row in facts.tree("docker.yaml")["mounts"]:
        paths = [path.format(ascend=machine.ascend) for path in row["paths"]]
        there = [path for path in paths if machine.has(path)] if machine.cards else paths
        if there:
            found.append(Mount(there[0], there[0], row["why"]))
        else:
            lacking.append(paths[0])
    return found, lacking


def check_cards(cards: Sequence[int], machine: Machine) -> tuple[int, ...]:
    """The cards, if this host has them; a host without any is not the one that is meant."""
    missing = [card for card in cards if card not in machine.cards]
    if machine.cards and missing:
        present = joined(machine.cards)
        raise Problem("docker.no_card", where="--cards", missing=joined(missing), present=present)
    return tuple(cards)


def check_name(name: str) -> str:
    """A name that docker takes; Problem for any other."""
    if not NAME.fullmatch(name):
        raise Problem("docker.bad_name", where=f"--name {name}")
    return name


def check_image(image: str) -> str:
    """An image's name; Problem for what cannot be one."""
    if not IMAGE.fullmatch(image):
        raise Problem("docker.bad_image", where=f"--image {image}")
    return image


def check_user(user: str) -> str:
    """UID:GID; Problem for anything else."""
    if not USER.fullmatch(user) or any(int(number) > MOST_USER for number in user.split(":")):
        raise Problem("docker.bad_user", where=f"--user {user}")
    return user


def name_of(run: str) -> str:
    """The container's name for a run of this name, whatever that consists of."""
    kept = re.sub(r"[^a-zA-Z0-9_.-]+", "-", run).strip("-")
    return f"tengtune-{kept}" if kept else "tengtune"


def checkout() -> Path | None:
    """The folder of sources that this tengtune runs from; None for one that was installed as a package."""
    root = Path(tengtune.__file__).resolve().parents[2]
    return root if (root / "pyproject.toml").is_file() else None
