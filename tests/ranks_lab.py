"""A script run by several ranks on this machine, without the launcher."""

from __future__ import annotations

import os
import subprocess
import sys

from tengtune.cluster.launch import _free_port
from tengtune.cluster.place import Place


def run_ranks(script: str, world: int, *arguments: str) -> None:
    """Run Python code in `world` processes that can meet; all must end well."""
    master = f"127.0.0.1:{_free_port()}"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", script, *arguments],
            env={**os.environ, **Place(rank, world, rank, world).environment(master)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]
    ends = [(process.communicate(timeout=240)[1], process.returncode) for process in processes]
    for errors, code in ends:
        assert code == 0, errors[-3000:]
