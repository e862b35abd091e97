"""Killing a process at every step of its work, and filling its disk, for the tests of faults."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

KILLED_ANYWHERE = """
import os, signal

def killing(count, function):
    "After `count` more calls of anything wrapped so, the process dies as by `kill -9`."
    def call(*arguments, **options):
        count[0] -= 1
        if count[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **options)
    return call

def killed_anywhere(work, out):
    "Do work(advance) in a child that dies at its n-th step, n = 0, 1, ... until it lives; say what is left."
    for point in range(1000):
        child = os.fork()
        if child == 0:
            count = [point]
            for name in ("fsync", "replace", "mkdir"):
                setattr(os, name, killing(count, getattr(os, name)))
            work(killing(count, lambda written: None))
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        files = sorted(out.rglob("*")) if out.is_dir() else [out] if out.exists() else None
        sizes = files and {str(f.relative_to(out)): f.stat().st_size for f in files if f.is_file()}
        print(point, status, sizes, sorted(f.name for f in out.parent.iterdir()), sep="\\t")
        if status == 0:
            break
"""
"""Put before a script: it defines killed_anywhere(work, out)."""


def python(script: str, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1", **environment},
    )


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path | None]:
    """A disk of 400 kB in memory, where this machine lets us mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        yield None
        return
    yield folder
    subprocess.run(["umount", str(folder)], check=True)
