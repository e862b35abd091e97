"""A Ctrl-C in the first step on MindSpore, whose own handler would make SIGTERM of it."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
from tests.faults.test_mindspore_rank_faults import RUN, SECONDS
from tests.faults.test_ranks import end, ranks_of, start
from tests.training_lab import metrics, project, train

IN_THE_FIRST_STEP = """
import mindspore, os, signal

jit, ran = mindspore.jit, []

def interrupted(function, **options):
    graph = jit(function, **options)

    def call(*arguments):
        "A Ctrl-C before the third graph: by then MindSpore has its own handler in place."
        ran.append(function)
        if len(ran) == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return graph(*arguments)

    return call

mindspore.jit = interrupted
"""


def saved_step(run: Path) -> int:
    """The step that the run ended with, as Ctrl-C asked and as its checkpoint has it."""
    (stopped,) = (record for record in metrics(run, "event") if record["event"] == "stopped")
    assert stopped["signal"] == signal.SIGINT
    assert (run.parent / "runs" / "run" / "checkpoints" / f"step_{stopped['step']}").is_dir()
    return int(stopped["step"])


@pytest.mark.slow
def test_one_process_saves_its_first_step(tmp_path: Path) -> None:
    run = project(tmp_path, RUN)
    done = train(run, "-s", "parallel.ranks=1", disturbance=IN_THE_FIRST_STEP)
    assert done.returncode == 130, done.stderr
    assert "SIGINT: finishing this step" in done.stderr
    assert saved_step(run) == 1


@pytest.mark.slow
def test_ranks_save_their_first_step(tmp_path: Path) -> None:
    run = project(tmp_path, RUN)
    process = start(run)
    log, deadline = tmp_path / "runs" / "run" / "log" / "rank_0.log", time.monotonic() + SECONDS
    while not (log.exists() and "memory by the plan" in log.read_text("utf-8")):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    time.sleep(2)  # the step's kernels take longer, if little
    process.send_signal(signal.SIGINT)
    code, said = end(process, SECONDS)
    assert code == 130, said
    assert "stopped as asked" in said
    assert not ranks_of(run)
    assert saved_step(run) >= 1  # a fast machine may be a step further
