"""A training that is killed, or whose disk fails, at any point ends in the same adapter by the same command.

One process with everything loaded forks a child for each trial. The child's file operations are counted; at
its point the child dies as by `kill -9` (a write has then written half), or meets a full disk.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.fault_lab import python
from tests.training_lab import STEPS, project

pytestmark = pytest.mark.slow

PROBLEMS = {"ENOSPC": "io.no_space", "EROFS": "io.not_permitted"}

HARNESS = """
import errno, json, os, random, shutil, signal, sys, time
from pathlib import Path
from tests.training_lab import adapter, metrics
from tengtune import files
from tengtune.cli.main import main
from tengtune.backends.torch import step
from tengtune.steps import data, train
from tengtune.train import metrics as metrics_module
from tengtune.weights import adapter as adapter_module

run, mode, *numbers = Path(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:])
folder, spare, screen = run.parent / "runs" / "run", run.parent / "spare", run.parent / "screen.txt"
point, done = 0, 0

def fail():
    if mode in ("kill", "random"):
        os.kill(os.getpid(), signal.SIGKILL)
    raise OSError(getattr(errno, mode), mode)

def counted(function):
    def call(*arguments, **options):
        global done
        done += 1
        if done == point:
            fail()
        return function(*arguments, **options)
    return call

class Counted:
    "A file each of whose writes may be the one that fails, half done."
    def __init__(self, stream): self.stream = stream
    def __getattr__(self, name): return getattr(self.stream, name)
    def __enter__(self): return self
    def __exit__(self, *rest): self.stream.close()
    def write(self, data):
        global done
        done += 1
        if done == point:
            self.stream.write(data[: len(data) // 2])
            self.stream.flush()
            fail()
        return self.stream.write(data)

def counted_open(path, mode="r", **options):
    stream = open(path, mode, **options)
    return stream if mode in ("r", "rb") else Counted(stream)

def start(command, counting=False):
    "Begin a command in a fork; its process id."
    pid = os.fork()
    if pid:
        return pid
    sys.stdout = sys.stderr = open(screen, "w")
    if counting:
        for name in ("fsync", "replace", "mkdir", "rmdir", "unlink"):
            setattr(os, name, counted(getattr(os, name)))
        files.open = metrics_module.open = counted_open
    try:
        main([command, str(run), "--json"])
    except SystemExit as end:
        print(done)
        sys.stdout.flush()
        os._exit(end.code or 0)

def end(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def reset():
    "The run folder as it was before training: only the data step done."
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(spare, folder)

def report(**values):
    print(json.dumps({
        **values,
        "adapter": adapter(run),
        "steps": [line["step"] for line in metrics(run, "loss")],
        "unfinished": [p.name for p in folder.rglob("*") if p.name.endswith(files.PARTIAL)],
        "saved": sorted(p.name for p in (folder / "checkpoints").iterdir()),
        "weights_of_step": json.loads((folder / "train.json").read_text())["figures"]["weights_of_step"],
    }), flush=True)

assert end(start("data")) == 0
shutil.copytree(folder, spare)
began = time.monotonic()
assert end(start("train", counting=mode != "random")) == 0, screen.read_text()
seconds = time.monotonic() - began
points = int(screen.read_text().split()[-1])
report(points=points)
if mode == "random":
    seed, trials = numbers
    random.seed(seed)
    for trial in range(trials):
        reset()
        kills = 0
        for _ in range(random.randint(1, 3)):
            pid = start("train")
            time.sleep(random.uniform(0, seconds))
            os.kill(pid, signal.SIGKILL)
            kills += end(pid) != 0
        assert end(start("train")) == 0, screen.read_text()
        report(kills=kills)
else:
    for point in range(1, points + 1, *numbers):
        reset()
        code = end(start("train", counting=True))
        last = screen.read_text().splitlines()[-2:-1] or ["{}"]
        problem = json.loads(last[0]).get("problem", "") if code == 3 else ""
        report(point=point, code=code, problem=problem, again=end(start("train")))
"""


def trials(folder: Path, *arguments: object) -> tuple[Any, list[Any]]:
    """The undisturbed training's outcome, and that of each trial."""
    done = python(HARNESS, project(folder), *arguments, OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    whole, *rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert whole["steps"] == list(range(1, STEPS + 1))
    assert whole["saved"] == ["step_4", "step_6"]
    assert whole["weights_of_step"] == 4  # the best evaluation's, which is not the last one's
    assert whole["unfinished"] == []
    return whole, rows


def check(whole: Any, row: Any) -> None:
    """A disturbed training must have come to the undisturbed one's end."""
    for key in ("adapter", "steps", "unfinished", "weights_of_step"):
        assert row[key] == whole[key], (key, row)
    assert set(whole["saved"]) <= set(row["saved"]), row


def test_killed_at_every_file_operation(tmp_path: Path) -> None:
    whole, rows = trials(tmp_path, "kill", 1)
    # Three checkpoints of 6 tensors in 2 files, the adapter, 9 lines of metrics, 2 records.
    assert len(rows) == whole["points"] > 120
    for row in rows:
        check(whole, row)
        assert (row["code"], row["again"]) == (-9, 0), row


@pytest.mark.parametrize("fault", ["ENOSPC", "EROFS"])
def test_a_full_or_read_only_disk_at_file_operations(tmp_path: Path, fault: str) -> None:
    """Every eighth operation; what fails while something is deleted does not always have to matter."""
    whole, rows = trials(tmp_path, fault, 8)
    assert len(rows) == -(-whole["points"] // 8)
    for row in rows:
        check(whole, row)
        assert row["again"] == 0
        assert row["code"] in (0, 3), row
        assert row["problem"] == ("" if row["code"] == 0 else PROBLEMS[fault])
    assert sum(row["code"] == 3 for row in rows) > 10


def test_killed_at_random_moments(tmp_path: Path) -> None:
    whole, rows = trials(tmp_path, "random", 1, 5)
    assert len(rows) == 5
    for row in rows:
        check(whole, row)


@pytest.mark.soak
def test_killed_at_200_random_moments(tmp_path: Path) -> None:
    whole, rows = trials(tmp_path, "random", 2, 200)
    assert sum(row["kills"] for row in rows) > 100
    for row in rows:
        check(whole, row)
