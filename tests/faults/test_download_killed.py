"""A download that is killed anywhere leaves no model behind, and the same call finishes it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from tests.fault_lab import KILLED_ANYWHERE
from tests.hub_lab import NEEDED, SHARDS, get
from tests.hubs import REPO, Hub

KILLER = """
import io, json, os, sys
from pathlib import Path
from tengtune.hub import base, huggingface, modelscope
from tengtune.hub.download import bring
from tengtune.hub.plan import Wish
from tengtune.ui.console import Console

repo, source, step = sys.argv[1], sys.argv[2], int(sys.argv[3])

def child(folder, point):
    if os.fork() == 0:
        if point is not None:
            count = [point]
            for name in ("fsync", "replace"):
                setattr(os, name, killing(count, getattr(os, name)))
            base.Digest.update = killing(count, base.Digest.update)
        bring(Wish(repo, folder, source), Console("quiet", io.StringIO(), io.StringIO()))
        os._exit(0)
    return os.wait()[1]

for point in range(0, 1000, step):
    folder = Path(f"m{point}")
    status = child(folder, point)
    sizes = {f.name: f.stat().st_size for f in folder.iterdir()} if folder.exists() else {}
    again = child(folder, None)
    print(json.dumps([status, sizes, again]), flush=True)
    if status == 0:
        break
"""


def test_killed_anywhere(hub: Hub, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLED_ANYWHERE + KILLER, REPO, "modelscope", "5"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "HF_HUB_OFFLINE": "0", "TRANSFORMERS_OFFLINE": "0"},
    )
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(rows) > 8
    assert [row[0] for row in rows] == [9] * (len(rows) - 1) + [0]
    assert all(again == 0 for _, _, again in rows)
    others = NEEDED - {"config.json"}
    for _, sizes, _ in rows:
        named = {name for name in sizes if not name.endswith(".partial")}
        assert all(sizes[name] == len(hub.files[name]) for name in named - {"download.json"})
        assert "config.json" not in named or others < named
    for folder in tmp_path.glob("m*"):
        assert {path.name for path in folder.iterdir()} == NEEDED | {"download.json"}
        assert all((folder / name).read_bytes() == hub.files[name] for name in NEEDED)


def test_what_a_killed_download_wrote_is_not_fetched_again(hub: Hub, tmp_path: Path, source: str) -> None:
    folder = tmp_path / "m"
    get(folder, source)
    (folder / "download.json").unlink()
    (folder / "config.json").unlink()
    os.truncate(folder / SHARDS[0], 123_456)
    (folder / SHARDS[0]).rename(folder / f"{SHARDS[0]}.partial")
    hub.requests.clear()
    get(folder, source)
    assert [(r.path, r.start) for r in hub.requests if r.path.startswith("/cdn/")] == [
        (f"/cdn/{SHARDS[0]}", 123_456),
        ("/cdn/config.json", 0),
    ]
    assert (folder / SHARDS[0]).read_bytes() == hub.files[SHARDS[0]]


def test_ctrl_c_does_not_wait_for_a_silent_server(hub: Hub, tmp_path: Path) -> None:
    hub.cuts[SHARDS[0]] = [1000]
    hub.silent = threading.Event()
    child = subprocess.Popen(
        [sys.executable, "-m", "tengtune", "download", REPO, "--to", str(tmp_path / "m")],
        stderr=subprocess.PIPE,
        text=True,
        # A suite in the background of a shell ignores Ctrl-C, and would hand that down.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert hub.silent.wait(timeout=60)
    child.send_signal(signal.SIGINT)
    told = child.communicate(timeout=40)[1]  # ModelScope's client would wait for 60 seconds
    assert child.returncode == 130
    assert "Stopped by Ctrl-C" in told
    assert not (tmp_path / "m" / "config.json").exists()
