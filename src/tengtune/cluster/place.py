"""This process's place among the processes of a training, as its launcher put it into the environment.

The variables are torchrun's (https://pytorch.org/docs/stable/elastic/run.html): RANK, WORLD_SIZE, LOCAL_RANK,
LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT. Those of MindSpore's msrun are understood as well.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

PROGRESS = "TENGTUNE_PROGRESS"
"""The file into which a rank writes how far it is, see beat()."""


@dataclass(frozen=True)
class Place:
    """rank of world in all, local_rank of local_world on this machine."""

    rank: int = 0
    world: int = 1
    local_rank: int = 0
    local_world: int = 1

    def environment(self, master: str) -> dict[str, str]:
        """The variables that say so; master: "host:port", where rank 0 listens."""
        host, _, port = master.rpartition(":")
        return {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.world),
            "LOCAL_RANK": str(self.local_rank),
            "LOCAL_WORLD_SIZE": str(self.local_world),
            "MASTER_ADDR": host.strip("[]"),
            "MASTER_PORT": port,
        }


def here() -> Place:
    """This process's place; alone where no launcher said anything."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    if "RANK" not in os.environ and under_msrun():
        rank, world = int(os.environ["RANK_ID"]), int(os.environ["MS_WORKER_NUM"])
        return Place(rank, world, int(os.environ.get("DEVICE_ID", "0")), world)
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        return Place()
    defaults = ("0", "1", "0", "1")
    return Place(*(int(os.environ.get(name, value)) for name, value in zip(names, defaults, strict=True)))


def under_msrun() -> bool:
    """Whether msrun started this process: then its scheduler runs already. It does not tell how many ranks
    there are on this machine."""
    return "MS_ROLE" in os.environ and {"RANK_ID", "MS_SCHED_HOST"} <= os.environ.keys()


JOINING = 1
"""Beats of a rank that is ready to meet the others; after the meeting it has more."""

_beats = 0


def beat() -> None:
    """Note that this rank has come one piece of work further: who waits for others has beaten, who hangs
    has not. Nothing where no launcher looks."""
    global _beats
    path = os.environ.get(PROGRESS)
    if path is None:
        return
    _beats += 1
    # Over the old line in one call: a rank that is frozen or killed at any instant leaves a whole line.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        os.pwrite(descriptor, b"%012d %017.6f\n" % (_beats, time.time()), 0)
    finally:
        os.close(descriptor)


def beats(path: Path) -> tuple[int, float]:
    """How often a rank has beaten, and when last (seconds since 1970); (0, 0.0) before the first."""
    try:
        count, when = path.read_text("ascii").split()
        return int(count), float(when)
    except (OSError, ValueError):
        return 0, 0.0
