"""A script run by several ranks on this machine, without the launcher."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tengtune.cluster.launch import free_port
from tengtune.cluster.place import Place


def run_ranks(script: str, world: int, *arguments: str) -> None:
    """Run Python code in `world` processes that can meet; all must end well."""
    master = f"127.0.0.1:{free_port()}"
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


def under_msrun(script: str, world: int, folder: Path, *arguments: str) -> None:
    """Run Python code in `world` processes that MindSpore's launcher starts; all must end well. The script
    and the ranks' logs go into `folder`."""
    file = folder / "script.py"
    file.write_text(script)
    where = [f"--master_port={free_port()}", f"--log_dir={folder}"]
    ranks = [f"--worker_num={world}", f"--local_worker_num={world}", "--join=True"]
    # The script's folder is no place to import tests from.
    paths = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    programs = [
        str(Path(sys.executable).parent),
        os.environ["PATH"],
    ]  # msrun starts `python`, whichever that is
    done = subprocess.run(
        [sys.executable, "-m", "mindspore.parallel.cluster.run", *ranks, *where, str(file), *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PATH": os.pathsep.join(programs)},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    logs = "".join(log.read_text()[-1500:] for log in sorted(folder.glob("worker_*.log")))
    assert done.returncode == 0, logs + done.stderr[-1500:]
