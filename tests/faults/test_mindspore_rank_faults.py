"""Ranks on MindSpore under the real launcher: two machines, a rank that dies, the other back end after it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from tests.faults.test_ranks import RUN_MANY, TENGTUNE, end, free_port, losses, ranks_of, start
from tests.mindformers_lab import adapter_in_mindformers, in_layout, mindspore_joins, same, wide
from tests.training_lab import metrics, project

RUN = RUN_MANY.replace("lr: 10", "lr: 0.01").replace("max_steps: 6", "max_steps: 30") + "backend: mindspore\n"
SECONDS = 300
"""MindSpore's ranks take long to load, meet and compile on a busy machine."""


def schedulers(run: Path) -> list[int]:
    """Process ids of MindSpore's schedulers whose environment names the run."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            line, variables = (folder / "cmdline").read_bytes(), (folder / "environ").read_bytes()
        except OSError:
            continue
        if b"mindspore.scheduler" in line and str(run.parent).encode() in variables:
            found.append(int(folder.name))
    return found


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One process on PyTorch, from beginning to end."""
    run = project(tmp_path_factory.mktemp("alone"), RUN)
    code, said = end(start(run, "-s", "backend=torch", "-s", "parallel.ranks=1"))
    assert code == 0, said
    return run


def assert_alike(run: Path, alone: Path) -> None:
    """Losses and adapters are the same but for rounding."""
    for ours, theirs in zip(losses(run), losses(alone), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-4)
    file = Path("runs", "run", "adapter", "adapter_model.safetensors")
    ours, theirs = (load_file(each.parent / file) for each in (run, alone))
    assert ours.keys() == theirs.keys()
    for name, expected in theirs.items():
        np.testing.assert_allclose(ours[name], expected, rtol=1e-2, atol=1e-4, err_msg=name)


@pytest.mark.slow
def test_two_machines_train_as_one(alone: Path, tmp_path: Path) -> None:
    """And MindSpore joins the parts that the two leave to the adapter that they trained, bit for bit."""
    run = project(tmp_path, RUN)
    meet = ("-s", "parallel.nodes=2", "--master", f"127.0.0.1:{free_port()}")
    tree = ("-s", "output.layout=mindformers")
    for process in [start(run, *meet, *tree, "--node-rank", str(node)) for node in (0, 1)]:
        code, said = end(process, SECONDS)
        assert code == 0, said
        assert "DISTRIBUTED" not in said
    assert_alike(run, alone)
    trained = tmp_path / "runs" / "run"
    mindspore_joins(trained)
    merged = tmp_path / "ours.safetensors"
    ours = [*TENGTUNE, "merge", "--shards", str(trained / "output"), "--out", str(merged)]
    subprocess.run(ours, check=True, capture_output=True)
    wanted = {
        **in_layout(load_file(tmp_path / "model" / "model.safetensors"), "mindformers", {}),
        **adapter_in_mindformers(load_file(trained / "adapter" / "adapter_model.safetensors"), qwen1=False),
    }
    same(load_file(merged), wanted)
    same(dict(np.load(trained / "theirs_checkpoint_network.npz")), wide(wanted))


@pytest.mark.slow
def test_after_a_killed_rank_the_other_back_end_goes_on(alone: Path, tmp_path: Path) -> None:
    run = project(tmp_path, RUN)
    process = start(run, "-s", "train.save_every=1")
    deadline = time.monotonic() + SECONDS
    path = tmp_path / "runs" / "run" / "metrics.jsonl"
    while not (path.exists() and any(r["step"] >= 2 for r in metrics(run, "loss"))):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert schedulers(run)
    os.kill(ranks_of(run)[1], signal.SIGKILL)
    code, said = end(process)
    assert code == 4, said
    assert "Rank 1 failed first: killed by SIGKILL" in said
    assert not ranks_of(run)
    code, said = end(start(run, "-s", "backend=torch", "-s", "parallel.ranks=1"))
    assert code == 0, said
    assert "the checkpoint was saved with mindspore cpu float32" in said
    assert_alike(run, alone)
    while schedulers(run) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not schedulers(run)


def ignores(pid: int, number: int) -> bool:
    """Whether a process ignores a signal."""
    status = Path(f"/proc/{pid}/status").read_text()
    return bool(int(status.partition("SigIgn:")[2].split()[0], 16) >> (number - 1) & 1)


def test_the_scheduler_outlives_what_asks_the_ranks_to_end() -> None:
    """A Ctrl-C reaches it as well, and the ranks can't save without it. It ends with who started it."""
    environment = {"MS_ROLE": "MS_SCHED", "MS_WORKER_NUM": "2", "MS_SCHED_HOST": "127.0.0.1"}
    starter = subprocess.Popen(
        [
            *(sys.executable, "-c"),
            "import os, subprocess, sys, time\n"
            "module = [sys.executable, '-m', 'tengtune.backends.mindspore.scheduler', str(os.getpid())]\n"
            "print(subprocess.Popen(module).pid, flush=True)\ntime.sleep(300)",
        ],
        env={**os.environ, **environment, "MS_SCHED_PORT": str(free_port())},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert starter.stdout
    with starter.stdout:
        scheduler = int(starter.stdout.readline())
        deadline = time.monotonic() + 60
        while not ignores(scheduler, signal.SIGHUP) and time.monotonic() < deadline:
            time.sleep(0.05)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(scheduler, number)
        time.sleep(0.5)
        assert ignores(scheduler, signal.SIGINT)  # it is still there
        starter.kill()
        starter.wait()
    while Path(f"/proc/{scheduler}").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not Path(f"/proc/{scheduler}").exists()
