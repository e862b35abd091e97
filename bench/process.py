"""Measuring a piece of work in a fresh process: its time and its peak of anonymous memory."""

from __future__ import annotations

import json
import subprocess
import sys
from textwrap import indent

SCRIPT = """
import json, os, sys, time
from pathlib import Path
from tengtune.memory import PeakMemory, anonymous_bytes
os.environ["GLOG_v"] = "3"
{imports}

before, start = anonymous_bytes(), time.perf_counter()
with PeakMemory() as peak:
{work}
    seconds = time.perf_counter() - start
print(json.dumps([seconds, peak.bytes - before]))
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


def measure(piece: tuple[str, str], *arguments: object) -> tuple[float, int]:
    """Seconds of the second part of `piece`, after the imports in its first, and by how many bytes anonymous
    memory rose above what it was then. The arguments are sys.argv[1:]. RuntimeError with its last line where
    it fails."""
    imports, work = piece
    script = SCRIPT.format(imports=imports, work=indent(work.strip(), "    "))
    command = [sys.executable, "-c", script, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    seconds, peak = json.loads(done.stdout.splitlines()[-1])
    return seconds, peak
