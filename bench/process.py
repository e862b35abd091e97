"""Measuring a piece of work in a fresh process: its time and its peak of anonymous memory."""

from __future__ import annotations

import json
import subprocess
import sys
from textwrap import indent
from typing import NamedTuple

SCRIPT = """
import json, os, sys, time
from pathlib import Path
from tengtune.memory import PeakMemory, anonymous_bytes
os.environ["GLOG_v"] = "3"
{imports}

before, start, cpu = anonymous_bytes(), time.perf_counter(), time.process_time()
with PeakMemory() as peak:
{work}
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
print(json.dumps([seconds, cpu, peak.bytes - before]))
"""

COPY = (
    "import subprocess",
    """
subprocess.run(["cp", "-r", "--reflink=never", *sys.argv[1:]], check=True)
out = Path(sys.argv[2])
subprocess.run(["sync", *map(str, out.iterdir() if out.is_dir() else [out])], check=True)
""",
)
"""A plain copy of argument 1 as argument 2, with fsync: imports and work of `measure`."""


class Measured(NamedTuple):
    """Seconds by the wall and of the process; by how many bytes anonymous memory rose."""

    seconds: float
    cpu_s: float
    peak_bytes: int


def measure(piece: tuple[str, str], *arguments: object) -> Measured:
    """What the second part of `piece` takes, after the imports in its first. The arguments are sys.argv[1:].
    RuntimeError with its last line where it fails."""
    imports, work = piece
    script = SCRIPT.format(imports=imports, work=indent(work.strip(), "    "))
    command = [sys.executable, "-c", script, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    return Measured(*json.loads(done.stdout.splitlines()[-1]))
