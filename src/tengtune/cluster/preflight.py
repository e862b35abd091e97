"""Before the first step: whether all ranks are on the same run."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tengtune import __version__
from tengtune.train.ranks import Ranks
from tengtune.train.resume import differences
from tengtune.ui.console import Console
from tengtune.ui.problems import Problem

MARK = "mark"
"""The file in log/ by which ranks on other machines know the run folder."""
CLOCKS_S = 5.0


def check_folder(ranks: Ranks, log: Path) -> None:
    """Whether all ranks see rank 0's run folder, told by the mark that its launcher put there. Problem that
    names the first that does not, the same on every rank."""
    if ranks.world == 1:
        return
    mark = (log / MARK).read_text("ascii") if (log / MARK).is_file() else None
    first, *others = (json.loads(text) for text in ranks.gather(json.dumps([mark, str(log)])))
    for rank, (theirs, folder) in enumerate(others, 1):
        if theirs != first[0]:
            raise Problem("cluster.not_shared", where=folder, rank=rank, folder=folder)


def check_run(ranks: Ranks, same: Mapping[str, Any], log: Path, console: Console) -> None:
    """Compare what the ranks have before them. same: what a checkpoint would have to have in common with this
    run. Problem that names the first rank that differs, the same on every rank."""
    if ranks.world == 1:
        return
    versions = {"tengtune": __version__, "python": platform.python_version()}
    mine = {"run": {**versions, **same}, "clock": time.time()}
    first, *others = (json.loads(text) for text in ranks.gather(json.dumps(mine)))
    for rank, other in enumerate(others, 1):
        if other["run"] != first["run"]:
            difference = "\n".join(differences(first["run"], other["run"]))
            raise Problem("cluster.unlike", where=log, rank=rank, difference=difference)
    clocks = [first["clock"], *(other["clock"] for other in others)]
    if max(clocks) - min(clocks) > CLOCKS_S:
        console.warn("cluster.clocks", seconds=round(max(clocks) - min(clocks)))
