"""A data step that is killed or meets a full disk leaves nothing half made; a rerun ends the same."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests import tiny
from tests.unit.test_data_step import CONFIG

KILLER = """
import os, signal, sys
from pathlib import Path
from tengtune import engine, pipeline, recipe
from tengtune.data.store import open_store
from tengtune.ui.console import Console

chosen = recipe.load(Path(sys.argv[1]))
folder = chosen.folder / "data"

def bytes_of():
    return {p.relative_to(folder): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}

def in_child(work):
    child = os.fork()
    if child == 0:
        work()
        os._exit(0)
    return os.waitpid(child, 0)[1]

def make():
    engine.prepare(chosen, fresh=False)
    engine.execute(pipeline.step("data"), chosen, Console("quiet", out=open(os.devnull, "w")))

def make_and_die(point):
    count = [point]
    def killing(function):
        def call(*arguments, **options):
            count[0] -= 1
            if count[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **options)
        return call
    for name in ("fsync", "replace", "mkdir", "unlink", "rmdir"):
        setattr(os, name, killing(getattr(os, name)))
    make()

assert in_child(make) == 0
expected = bytes_of()
for point in range(1000):
    (chosen.folder / "data.json").unlink(missing_ok=True)  # so that the step runs again
    killed = in_child(lambda: make_and_die(point))
    for name in ("train", "heldout"):
        if (folder / name).exists():
            open_store(folder / name)  # what has its name is whole
    assert in_child(make) == 0
    assert bytes_of() == expected, point
    if killed == 0:
        break
print(point)
"""

MEMORY = """
import os, sys
from pathlib import Path
from tengtune import recipe
from tengtune.memory import PeakMemory, anonymous_bytes
from tengtune.steps import data
from tengtune.ui.console import Console

before = anonymous_bytes()
with PeakMemory(interval_s=0.005) as peak:
    data.run(recipe.load(Path(sys.argv[1])), Console("quiet", out=open(os.devnull, "w")))
print(peak.bytes - before)
"""

FULL_DISK = """
import resource, sys
from tengtune.cli.main import main
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]),) * 2)
main(["data", sys.argv[1]])
"""


def make_run(folder: Path, records: int, words: int) -> Path:
    """A run file over that many records."""
    tiny.tiny_tokenizer(folder / "model")
    (folder / "model" / "config.json").write_text(json.dumps(CONFIG), "utf-8")
    with open(folder / "data.jsonl", "w", encoding="utf-8") as stream:
        for i in range(records):
            record = {"instruction": f"question {i}", "output": "words " * words}
            stream.write(json.dumps(record) + "\n")
        stream.write("{broken\n")
    path = folder / "run.yaml"
    path.write_text("model: model\ndata: {files: [data.jsonl], seq_len: 256, heldout: 0.1}\n", "utf-8")
    return path


def python(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )


@pytest.mark.slow
def test_killed_anywhere_it_leaves_nothing_half_made_and_goes_on(tmp_path: Path) -> None:
    done = python(KILLER, make_run(tmp_path, 40, 3))
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 20  # points at which it was killed


@pytest.mark.parametrize("limit", [1_000, 20_000])
def test_a_full_disk_is_said_and_leaves_no_store(tmp_path: Path, limit: int) -> None:
    done = python(FULL_DISK, make_run(tmp_path, 400, 10), limit)
    assert done.returncode == 3, done.stderr
    assert "io.no_space" in done.stderr
    assert "Traceback" not in done.stderr
    left = [p.name for p in (tmp_path / "runs" / "run" / "data").rglob("*") if p.is_file()]
    assert set(left) <= {"dropped.jsonl"}


@pytest.mark.slow
def test_memory_is_bounded(tmp_path: Path) -> None:
    """Millions of tokens, as Python lists some 36 bytes each, pass through a fraction of that."""
    run = make_run(tmp_path, 20_000, 150)
    done = python(MEMORY, run)
    assert done.returncode == 0, done.stderr
    about = (tmp_path / "runs" / "run" / "data" / "train" / "store.json").read_text("utf-8")
    assert json.loads(about)["tokens"] > 4e6
    assert 20e6 < int(done.stdout) < 120e6
