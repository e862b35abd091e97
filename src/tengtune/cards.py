"""How many Ascend cards this process may use, looked up without a framework."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

VISIBLE = "ASCEND_RT_VISIBLE_DEVICES"
"""CANN's own variable: the cards a process may use, by number, as "0,3"; a process counts them from 0."""


def count(backend: str = "auto", devices: Path = Path("/dev")) -> int:
    """Cards that a back end could train on: the driver's device nodes davinci0, davinci1, ..., as far as
    VISIBLE leaves them; 0 where torch_npu, or for MindSpore that itself, is not installed, whatever is in the
    machine."""
    if not _drives_cards(backend):
        return 0
    names = (node.name.removeprefix("davinci") for node in devices.glob("davinci*"))
    present = {int(name) for name in names if name.isdecimal()}  # davinci_manager is no card
    chosen = os.environ.get(VISIBLE)
    if chosen is None:
        return len(present)
    return len(present & {int(part) for part in chosen.split(",") if part.strip().isdecimal()})


def _drives_cards(backend: str) -> bool:
    """Whether what a run's `backend` comes to here is installed so that it may find cards."""
    if backend == "auto":  # as it is chosen: torch first
        backend = "torch" if importlib.util.find_spec("torch") else "mindspore"
    return importlib.util.find_spec("torch_npu" if backend == "torch" else "mindspore") is not None
