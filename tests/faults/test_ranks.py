"""Ranks that die, hang, cannot meet or are on another run: named, and nobody is left running."""

from __future__ import annotations

import json
import os
import platform
import re
import signal
import socket
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest
from tests.training_lab import RUN, adapter, metrics, project

import tengtune
from tengtune import engine, lock
from tengtune import recipe as recipes
from tengtune.cluster import launch as launching
from tengtune.cluster import place, preflight
from tengtune.steps import train as train_step
from tengtune.ui.console import Console
from tengtune.ui.problems import Problem

RUN_MANY = RUN.replace("global_batch: 2", "global_batch: 4").replace("early_stop: 9", "log_every: 1") + (
    "parallel: {ranks: 2}\n"
)
ENDLESS = RUN_MANY.replace("max_steps: 6", "max_steps: 100000")
TENGTUNE = [sys.executable, "-m", "tengtune"]


def start(run: Path, *options: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TENGTUNE_LANG": "en"}
    command = [*TENGTUNE, "train", str(run), *options]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def end(process: subprocess.Popen[str], seconds: float = 90) -> tuple[int, str]:
    """Exit code and what was said."""
    try:
        said, _ = process.communicate(timeout=seconds)
    finally:
        process.kill()
        process.wait()
    return process.returncode, said


def ranks_of(run: Path) -> dict[int, int]:
    """The processes of a run's ranks that are alive: rank -> process id."""
    found = {}
    for folder in Path("/proc").iterdir():
        try:
            command = (folder / "cmdline").read_bytes().decode()
            variables = (folder / "environ").read_bytes().split(b"\0")
        except (OSError, UnicodeDecodeError):
            continue
        if "tengtune.cli.rank" in command and str(run) in command:
            (rank,) = (int(v[5:]) for v in variables if v.startswith(b"RANK="))
            found[rank] = int(folder.name)
    return found


def wait_for_step(run: Path, step: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        path = run.parent / "runs" / "run" / "metrics.jsonl"
        if path.exists() and any(record["step"] >= step for record in metrics(run, "loss")):
            return
        time.sleep(0.05)
    raise AssertionError("no step in time")


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two ranks from beginning to end."""
    run = project(tmp_path_factory.mktemp("unbroken"), RUN_MANY)
    code, said = end(start(run))
    assert code == 0, said
    assert "2 ranks on 1 machine" in said
    return run


def losses(run: Path) -> list[tuple[int, float]]:
    return [(record["step"], record["loss"]) for record in metrics(run, "loss")]


@pytest.mark.slow
def test_one_process_has_the_same_losses(unbroken: Path, tmp_path: Path) -> None:
    run = project(tmp_path, RUN_MANY)
    code, said = end(start(run, "-s", "parallel.ranks=1"))
    assert code == 0, said
    for (step, loss), (same, other) in zip(losses(run), losses(unbroken), strict=True):
        assert (step, loss) == (same, pytest.approx(other, rel=1e-5))
    scores = [[r["heldout_loss"] for r in metrics(each, "heldout_loss")] for each in (run, unbroken)]
    assert scores[0] == pytest.approx(scores[1], rel=1e-5)
    assert len(scores[0]) == 2


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_rank_is_named_and_the_same_command_goes_on(
    rank: int, unbroken: Path, tmp_path: Path
) -> None:
    run = project(tmp_path, RUN_MANY)
    process = start(run, "-s", "train.max_steps=6", "-s", "train.save_every=1", "-s", "train.stall_minutes=1")
    wait_for_step(run, 2)
    alive = ranks_of(run)
    if rank in alive:  # else it was faster than we
        os.kill(alive[rank], signal.SIGKILL)
        code, said = end(process)
        assert code in (0, 4), said
        assert code == 0 or f"Rank {rank} failed first: killed by SIGKILL" in said
        noted = [(each["event"], each["rank"], each["signal"]) for each in metrics(run, "signal")]
        assert code == 0 or noted == [("rank_failed", rank, signal.SIGKILL)]
    end(process)
    assert not ranks_of(run)
    code, said = end(start(run, "-s", "train.save_every=1"))
    assert code == 0, said
    assert losses(run) == losses(unbroken)
    assert adapter(run) == adapter(unbroken)


@pytest.mark.slow
def test_a_rank_that_hangs_is_named(tmp_path: Path) -> None:
    run = project(tmp_path, ENDLESS)
    process = start(run, "-s", "train.stall_minutes=0.1")
    wait_for_step(run, 1)
    os.kill(ranks_of(run)[1], signal.SIGSTOP)
    code, said = end(process)
    assert code == 4, said
    assert "Rank 1 hangs" in said, said
    assert not ranks_of(run)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_ends_all(number: signal.Signals, tmp_path: Path) -> None:
    run = project(tmp_path, ENDLESS)
    process = start(run)
    wait_for_step(run, 1)
    process.send_signal(number)
    code, said = end(process)
    assert code == 128 + number, said
    assert not ranks_of(run)
    (step,) = (r["step"] for r in metrics(run, "event") if r["event"] == "stopped")
    assert (tmp_path / "runs" / "run" / "checkpoints" / f"step_{step}").is_dir()


@pytest.mark.slow
def test_ranks_end_when_their_launcher_is_killed(tmp_path: Path) -> None:
    run = project(tmp_path, ENDLESS)
    process = start(run)
    wait_for_step(run, 1)
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 40
    while ranks_of(run) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not ranks_of(run)


@pytest.mark.slow
def test_a_rank_with_a_fault_of_its_own_is_told_in_its_words(tmp_path: Path) -> None:
    run = project(tmp_path, RUN_MANY)
    log = tmp_path / "runs" / "run" / "log"
    log.mkdir(parents=True)
    (log / "metrics_rank_1.jsonl").mkdir()  # what only rank 1 writes cannot be written
    code, said = end(start(run))
    assert code in (2, 3), said
    assert "Rank 1 failed first: exit code" in said
    assert "metrics_rank_1.jsonl" in said
    assert not ranks_of(run)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def nodes(folder: Path, second: Path, *options: str) -> tuple[subprocess.Popen[str], subprocess.Popen[str]]:
    """Two "machines" on this one that meet at 127.0.0.1."""
    meet = ("-s", "parallel.nodes=2", "--master", f"127.0.0.1:{free_port()}", *options)
    return start(folder, *meet, "--node-rank", "0"), start(second, *meet, "--node-rank", "1")


@pytest.mark.slow
def test_two_machines_with_one_folder_train_as_one(unbroken: Path, tmp_path: Path) -> None:
    run = project(tmp_path, RUN_MANY)
    for process in nodes(run, run):
        code, said = end(process)
        assert code == 0, said
        assert "2 ranks on 2 machines, 1 of them here" in said
    assert losses(run) == losses(unbroken)
    assert adapter(run) == adapter(unbroken)


@pytest.mark.slow
def test_a_machine_may_come_while_the_first_works_in_the_run_folder(tmp_path: Path) -> None:
    run = project(tmp_path, RUN_MANY)
    with lock.held(engine.lock_file(recipes.load(run))):
        meet = ("-s", "parallel.nodes=2", "--master", f"127.0.0.1:{free_port()}")
        second = start(run, *meet, "--node-rank", "1")
        while second.poll() is None and not ranks_of(run):
            time.sleep(0.05)
        assert list(ranks_of(run)) == [1]
        second.terminate()
        assert end(second)[0] == 128 + signal.SIGTERM
    assert not (tmp_path / "runs" / "run" / "run.yaml").exists()


@pytest.mark.slow
def test_a_machine_may_be_there_before_the_data(unbroken: Path, tmp_path: Path) -> None:
    run = project(tmp_path, RUN_MANY)
    meet = ("-s", "parallel.nodes=2", "--master", f"127.0.0.1:{free_port()}")
    second = start(run, *meet, "--node-rank", "1")
    deadline = time.monotonic() + 60
    while not ranks_of(run) and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(4)  # long enough to look for data that is not there
    assert not (tmp_path / "runs" / "run" / "data").exists()
    for process in (start(run, *meet, "--node-rank", "0"), second):
        code, said = end(process)
        assert code == 0, said
    assert losses(run) == losses(unbroken)


@pytest.mark.slow
def test_a_machine_on_another_run_or_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    run, other = project(tmp_path / "a", RUN_MANY), project(tmp_path / "b", RUN_MANY)
    code, said = end(
        subprocess.Popen([*TENGTUNE, "data", str(other), "-q"], stdout=subprocess.PIPE, text=True)
    )
    assert code == 0, said
    ends = [end(process) for process in nodes(run, other)]
    assert [code for code, _ in ends] == [2, 2]
    assert "Rank 1 does not see rank 0's run folder" in ends[0][1]
    ends = [end(p) for p in nodes(run, run, "--force")]
    assert [code for code, _ in ends] == [0, 0], ends


@pytest.mark.slow
def test_a_lost_machine_ends_the_other(tmp_path: Path) -> None:
    run = project(tmp_path, ENDLESS)
    first, second = nodes(run, run, "-s", "train.stall_minutes=1")
    wait_for_step(run, 1)
    os.kill(ranks_of(run)[1], signal.SIGKILL)
    code, said = end(first)
    assert code == 4, said
    assert "The connection to another rank is gone" in said
    code, said = end(second)
    assert code == 4, said
    assert "Rank 1 failed first: killed by SIGKILL" in said
    assert not ranks_of(run)


@pytest.mark.slow
def test_ctrl_c_on_one_machine_stops_both_and_blames_nobody(tmp_path: Path) -> None:
    run = project(tmp_path, ENDLESS)
    first, second = nodes(run, run)
    wait_for_step(run, 1)
    second.send_signal(signal.SIGINT)
    for process in (first, second):
        code, said = end(process)
        assert code == 130, said
        assert "failed first" not in said
    assert not ranks_of(run)


@pytest.mark.slow
def test_ctrl_c_while_ranks_still_load_shows_no_traceback(tmp_path: Path) -> None:
    run = project(tmp_path, ENDLESS)
    process = start(run)
    deadline = time.monotonic() + 60
    while not ranks_of(run) and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    code, said = end(process)
    assert code == 130, said
    assert "Traceback" not in said
    assert not ranks_of(run)


def test_a_port_that_is_taken_is_said(tmp_path: Path) -> None:
    run = project(tmp_path, RUN_MANY)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        master = f"127.0.0.1:{taken.getsockname()[1]}"
        code, said = end(start(run, "-s", "parallel.nodes=2", "--master", master, "--node-rank", "0"))
    assert code == 3, said
    assert f"Rank 0 cannot listen on {master}" in said


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (("-s", "parallel.nodes=2"), "cluster.no_master"),
        (("-s", "parallel.nodes=2", "--master", "here"), "cluster.bad_master"),
        (("-s", "parallel.nodes=2", "--master", "h:1", "--node-rank", "2"), "cluster.node_rank"),
        (("-s", "parallel.nodes=3"), "cluster.uneven"),
        (("-s", "parallel.ranks=3"), "recipe.batch"),
    ],
)
def test_what_cannot_be_is_said_before_anything_starts(
    options: tuple[str, ...], code: str, tmp_path: Path
) -> None:
    status, said = end(start(project(tmp_path, RUN_MANY), "--dry-run", *options))
    assert (status, code in said) == (2, True), said


@pytest.mark.parametrize(
    "variables",
    [
        {"RANK": "1", "WORLD_SIZE": "2"},
        {"MS_ROLE": "MS_WORKER", "RANK_ID": "1", "MS_WORKER_NUM": "2", "MS_SCHED_HOST": "127.0.0.1"},
        {"MS_ROLE": "MS_SCHED", "RANK_ID": "0", "MS_WORKER_NUM": "2", "MS_SCHED_HOST": "127.0.0.1"},
    ],
)
def test_torchrun_and_msrun_are_not_needed(
    variables: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of the processes that they start is told so, and begins nothing."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    code, said = end(start(project(tmp_path, RUN_MANY)))
    assert (code, "cluster.foreign_launcher" in said) == (2, True), said
    assert not (tmp_path / "runs" / "run").exists()


def test_a_dry_run_prints_what_would_be_started(tmp_path: Path) -> None:
    code, said = end(start(project(tmp_path, RUN_MANY), "--dry-run", "--json"))
    assert code == 0, said
    lines = json.loads(said.splitlines()[-1])["commands"]
    assert [re.match(r"RANK=(\d) WORLD_SIZE=2 LOCAL_RANK=\1 ", line) is not None for line in lines] == [
        True,
        True,
    ]
    assert all("-m tengtune.cli.rank" in line for line in lines)
    assert not (tmp_path / "runs").exists()
    assert not ranks_of(tmp_path / "run.yaml")


def test_a_dry_run_says_what_a_step_is(tmp_path: Path) -> None:
    run = project(tmp_path, RUN_MANY)
    options = ("-s", "train.global_batch=8", "-s", "train.micro_batch=2", "-s", "train.max_steps=5")
    code, said = end(start(run, "--dry-run", *options))
    assert code == 0, said
    assert "2 ranks on this machine, 2 in all. A step takes 8 rows" in said
    assert "each rank does 2 at a time, 2 times a step" in said
    assert "tengtune data " in said
    command = [sys.executable, "-m", "tengtune", "data", str(run), *options]
    subprocess.run(command, check=True, capture_output=True)
    code, said = end(start(run, "--dry-run", *options))
    assert (code, "5 steps in all" in said) == (0, True), said


@pytest.mark.slow
def test_when_all_ranks_hang_the_launcher_ends_them(tmp_path: Path) -> None:
    run = project(tmp_path, ENDLESS)
    process = start(run, "-s", "train.stall_minutes=0.05")
    wait_for_step(run, 1)
    for pid in ranks_of(run).values():
        os.kill(pid, signal.SIGSTOP)
    code, said = end(process)
    assert code == 4, said
    assert "hangs: it has done nothing" in said
    assert not ranks_of(run)


@pytest.mark.slow
def test_a_second_signal_ends_at_once_and_blames_nobody(tmp_path: Path) -> None:
    run = project(tmp_path, ENDLESS)
    process = start(run)
    wait_for_step(run, 1)
    for pid in ranks_of(run).values():
        os.kill(pid, signal.SIGSTOP)  # so that none can answer the first
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    code, said = end(process)
    assert code == 130, said
    assert "failed first" not in said
    assert not ranks_of(run)


def test_other_settings_of_the_data_are_told_before_the_first_step(tmp_path: Path) -> None:
    """The rows are rank 0's, so that they are the same whatever the others' run files say of them."""
    run = project(tmp_path, RUN_MANY)
    mine, theirs = (
        {"run": train_step._data_settings(recipes.load(run, overrides))}
        for overrides in ((), ["data.heldout=0.3"])
    )
    versions = {"tengtune": tengtune.__version__, "python": platform.python_version()}
    texts = [json.dumps({"run": {**versions, **each["run"]}, "clock": 0.0}) for each in (mine, theirs)]
    ranks = types.SimpleNamespace(world=2, gather=lambda text: texts)
    with pytest.raises(Problem) as caught:
        preflight.check_run(ranks, mine["run"], tmp_path, Console("quiet"))  # type: ignore[arg-type]
    assert (caught.value.code, caught.value.values["rank"]) == ("cluster.unlike", 1)
    assert "data.heldout" in str(caught.value.values["difference"])


def test_a_machine_leaves_the_files_of_the_others_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = project(tmp_path, RUN_MANY)
    log = tmp_path / "runs" / "run" / "log"
    log.mkdir(parents=True)
    theirs = [log / name for name in ("rank_0.log", "rank_0.beats", "rank_10.log", "result.json", "mark")]
    ours = [log / name for name in ("rank_1.log", "rank_1.beats", "rank_1.end")]
    for path in (*theirs, *ours):
        path.write_text("before", "utf-8")
    monkeypatch.setenv("TENGTUNE_NODE_RANK", "1")
    monkeypatch.setenv("TENGTUNE_MASTER", "127.0.0.1:1")
    monkeypatch.setattr(
        launching, "Crew", lambda *arguments, **options: types.SimpleNamespace(run=lambda: None)
    )
    recipe = recipes.load(run, ["parallel.nodes=2"])
    assert launching.launch(recipe, Console("quiet"), anew=False) == ([], {})
    assert [path.read_text("utf-8") for path in theirs] == ["before"] * len(theirs)
    assert not any(path.exists() for path in ours)


def test_a_rank_frozen_at_any_instant_leaves_its_beats_readable(tmp_path: Path) -> None:
    """A beat half written would read as none, and one who never beat has minutes to start."""
    path = tmp_path / "rank_0.beats"
    code = "from tengtune.cluster import place\nwhile True: place.beat()"
    process = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, place.PROGRESS: str(path)})
    try:
        while place.beats(path)[0] == 0:
            time.sleep(0.01)
        seen = []
        for _ in range(200):
            os.kill(process.pid, signal.SIGSTOP)
            time.sleep(0.002)  # until it has stopped
            seen.append(place.beats(path))
            os.kill(process.pid, signal.SIGCONT)
            while place.beats(path) <= seen[-1] != (0, 0.0):  # on a busy machine it may be a while
                time.sleep(0.0005)
    finally:
        process.kill()
        process.wait()
    assert seen == sorted(seen)
    assert 0 < seen[0][0] < seen[-1][0]
