"""How many Ascend cards this process may use, looked up without a framework."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

VISIBLE = "ASCEND_RT_VISIBLE_DEVICES"
"""CANN's own variable: the cards a process may use, by number, as "0,3"; a process counts them from 0."""


def count(devices: Path = Path("/dev")) -> int:
    """Cards that torch could train on: the driver's device nodes davinci0, davinci1, ..., as far as VISIBLE
    leaves them; 0 where torch_npu is not installed, whatever is in the machine."""
    if importlib.util.find_spec("torch_npu") is None:
        return 0
    names = (node.name.removeprefix("davinci") for node in devices.glob("davinci*"))
    present = {int(name) for name in names if name.isdecimal()}  # davinci_manager is no card
    chosen = os.environ.get(VISIBLE)
    if chosen is None:
        return len(present)
    return len(present & {int(part) for part in chosen.split(",") if part.strip().isdecimal()})
