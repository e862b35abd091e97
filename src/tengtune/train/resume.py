"""Finding the checkpoint a run goes on from, and refusing one that belongs to another run."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tengtune.backends.base import Source
from tengtune.train import checkpoints
from tengtune.train.checkpoints import DAMAGED, Checkpoint, Shelf
from tengtune.ui.console import Console
from tengtune.ui.problems import Problem, os_errors
from tengtune.weights.stream import PIECE_BYTES

SAMPLE = 1024
"""Elements at each end of a tensor that tell one model from another: tuning moves them all."""


def find(shelf: Shelf, mine: Mapping[str, Any], console: Console, trusted: bool = False) -> Checkpoint | None:
    """The newest whole checkpoint of this run, None when there is none. Damaged ones are passed over, and it
    is said why.

    mine: what must be the same, name -> JSON value. Raises Problem with the differences when they differ,
    and for a checkpoint under another step's name: passed over, it would be cleared away.
    trusted: without those that were saved in a row of bad steps.
    """
    for step in reversed(shelf.steps()):
        try:
            found = checkpoints.read(shelf.path(step))
        except Problem as problem:
            if problem.code != DAMAGED:
                raise
            console.warn("checkpoint.skipped", where=problem.where, reason=problem.values["reason"])
            continue
        if found.state.step != step:
            raise Problem("checkpoint.renamed", where=found.folder, step=found.state.step)
        theirs = found.about.get("same", {})
        if theirs != mine:
            raise Problem(
                "checkpoint.other_run", where=found.folder, difference="\n".join(differences(theirs, mine))
            )
        if not (trusted and found.state.health.in_a_row):
            return found
    return None


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What differs, one "- name: old" and one "+ name: new" a line."""
    lines = []
    for name in sorted({*old, *new}):
        if old.get(name) != new.get(name):
            lines += [f"- {name}: {old.get(name)}", f"+ {name}: {new.get(name)}"]
    return lines


def data_digest(folder: Path) -> str:
    """SHA-256 of the files in a folder, names and contents."""
    digest = hashlib.sha256()
    with os_errors(folder):
        for path in sorted(folder.iterdir()):
            digest.update(f"{path.name} {path.stat().st_size}\n".encode())
            with open(path, "rb") as stream:
                while piece := stream.read(PIECE_BYTES):
                    digest.update(piece)
    return digest.hexdigest()


def model_digest(source: Source) -> str:
    """SHA-256 over every tensor's name, type, shape, first and last elements: the same for the same weights,
    however they are cut into files, and read in a moment whatever their size."""
    digest = hashlib.sha256()
    for name in sorted(source):
        array = source[name]
        flat = array.reshape(-1)
        digest.update(f"{name} {array.dtype.name} {array.shape}\n".encode())
        digest.update(flat[:SAMPLE].tobytes() + flat[-SAMPLE:].tobytes())
    return digest.hexdigest()
