"""What can go wrong in a training, and what the person at the screen is told."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.fault_lab import python
from tests.fault_lab import small_disk as small_disk
from tests.training_lab import DISTURBED, STEP_CALLS, STEPS, adapter, metrics, project, train

pytestmark = pytest.mark.slow

NAN_FROM = """
import torch
from tengtune.backends.torch.step import TorchBackend
real_loss = TorchBackend.loss
steps = [0]
real_step = TorchBackend.train_step
def train_step(self, *rest):
    steps[0] += 1
    return real_step(self, *rest)
def loss(self, *arguments, **options):
    value = real_loss(self, *arguments, **options)
    return value * {factor} if torch.is_grad_enabled() and steps[0] in {steps} else value
TorchBackend.train_step, TorchBackend.loss = train_step, loss
"""

DIE_AT = (
    STEP_CALLS
    + """
import os, signal
def before(n):
    if n == {step}: os.kill(os.getpid(), signal.{signal})
"""
)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, to compare with and to copy from."""
    run = project(tmp_path_factory.mktemp("undisturbed"))
    done = train(run)
    assert done.returncode == 0, done.stderr
    return run


@pytest.fixture
def run(tmp_path: Path, undisturbed: Path) -> Path:
    """A project whose run folder does not exist yet."""
    for name in ("model", "data.json", "run.yaml"):
        path = undisturbed.parent / name
        (shutil.copytree if path.is_dir() else shutil.copy)(path, tmp_path / name)
    return tmp_path / "run.yaml"


def events(run: Path) -> list[str]:
    return [record["event"] for record in metrics(run, "event")]


def figures(run: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((run.parent / "runs/run/train.json").read_text())["figures"]
    return found


def sound(done: subprocess.CompletedProcess[str], code: int = 0) -> str:
    """The screen of a command that ended with `code`, in order."""
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


def test_a_signal_saves_and_the_same_command_goes_on(run: Path, undisturbed: Path) -> None:
    screen = sound(train(run, disturbance=DIE_AT.format(step=3, signal="SIGTERM")), 143)
    assert "SIGTERM: finishing this step and saving" in screen
    assert f"stopped after step 3 of {STEPS} and saved" in screen
    screen = sound(train(run))
    assert f"continuing at step 4 of {STEPS}" in screen
    assert adapter(run) == adapter(undisturbed)
    assert events(run) == ["stopped", "resumed"]
    assert figures(run)["events"] == {"stopped": 1, "resumed": 1}
    assert "up to date" in sound(train(run))  # a finished run is not done again


def test_a_second_ctrl_c_leaves_at_once(run: Path) -> None:
    hang = STEP_CALLS + """
import signal, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever this test was started with
def before(n):
    if n == 2:
        print("hanging", file=sys.stderr, flush=True)
        time.sleep(100)
"""  # fmt: skip
    command = [sys.executable, "-c", DISTURBED.format(disturbance=hang), "train", run]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    pipe, null = subprocess.PIPE, subprocess.DEVNULL
    with subprocess.Popen(command, stderr=pipe, stdout=null, text=True, env=environment) as child:
        assert child.stderr is not None
        wait_for(child.stderr, "hanging")
        child.send_signal(signal.SIGINT)
        wait_for(child.stderr, "once more to leave at once")
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(1.5)  # the step under way is not broken off ...
        child.send_signal(signal.SIGINT)
        assert child.wait(60) == 130  # ... but on the second demand it is


def wait_for(stream: Iterator[str], text: str) -> None:
    assert any(text in line for line in stream)


def damage(kind: str) -> Callable[[Path], None]:
    def cut(folder: Path) -> None:
        os.truncate(next(folder.glob("rank_*")), 1000)

    def drop(folder: Path) -> None:
        next(folder.glob("rank_*")).unlink()

    def empty(folder: Path) -> None:
        (folder / "layout.json").write_text("")

    return {"cut": cut, "drop": drop, "empty": empty}[kind]


@pytest.mark.parametrize("kind", ["cut", "drop", "empty"])
def test_a_damaged_checkpoint_is_passed_over(run: Path, undisturbed: Path, kind: str) -> None:
    sound(train(run, disturbance=DIE_AT.format(step=6, signal="SIGKILL")), -9)
    checkpoints = run.parent / "runs/run/checkpoints"
    assert sorted(p.name for p in checkpoints.iterdir()) == ["step_2", "step_4"]
    damage(kind)(checkpoints / "step_4")
    screen = sound(train(run, disturbance=DIE_AT.format(step=4, signal="SIGKILL")), -9)
    assert "passing over a damaged checkpoint" in screen
    assert str(checkpoints / "step_4") in screen
    assert "continuing at step 3 of" in screen
    damage(kind)(checkpoints / "step_2")
    damage(kind)(checkpoints / "step_4")  # written anew meanwhile
    screen = sound(train(run))
    assert screen.count("passing over") == 2
    assert "continuing" not in screen
    assert adapter(run) == adapter(undisturbed)


def test_checkpoints_of_other_data_are_refused(run: Path) -> None:
    sound(train(run, disturbance=DIE_AT.format(step=4, signal="SIGKILL")), -9)
    data = run.parent / "data.json"
    data.write_text(data.read_text().replace("answer number 17", "answer number 71"))
    screen = sound(train(run), 2)
    assert "belongs to another training" in screen
    assert "- data/train: " in screen
    assert "+ data/train: " in screen
    assert "lr" not in screen.split("why")[1].split("fix")[0]
    assert (run.parent / "runs/run/checkpoints/step_2").exists()
    screen = sound(train(run, "--resume", "never"))
    assert "training from the start" in screen
    assert [record["step"] for record in metrics(run, "loss")] == list(range(1, STEPS + 1))


def test_force_starts_over(run: Path, undisturbed: Path) -> None:
    sound(train(run))
    (run.parent / "runs/run/checkpoints/step_1").mkdir()
    screen = sound(train(run, "--force"))
    assert "training from the start" in screen
    assert adapter(run) == adapter(undisturbed)
    assert not (run.parent / "runs/run/checkpoints/step_1").exists()


def test_settings_that_do_not_change_the_result_may_change(run: Path) -> None:
    sound(train(run, disturbance=DIE_AT.format(step=4, signal="SIGKILL")), -9)
    changes = ("-s", "train.micro_batch=2", "-s", "train.recompute=full", "-s", "train.keep=1")
    screen = sound(train(run, *changes))
    assert "continuing at step 3" in screen


def test_a_single_bad_step_is_skipped(run: Path) -> None:
    screen = sound(train(run, disturbance=NAN_FROM.format(factor="float('nan')", steps="{3}")))
    assert "step 3: the gradient is not finite; this step was skipped" in screen
    assert events(run) == ["skipped"]
    assert figures(run)["skipped_steps"] == 1


def test_lasting_nan_stops_with_the_reason_and_can_be_rewound(run: Path) -> None:
    """The second command has the same disturbance, as the same rows would have on the same weights. Step 4
    was saved as the best; but it is bad itself, and what to go back to is step 2."""
    nan = NAN_FROM.format(factor="float('nan')", steps="{4, 5, 6}")
    keep_on = ("-s", "train.max_steps=9")
    screen = sound(train(run, *keep_on, disturbance=nan), 4)
    assert "stopped at step 6: NaN or Inf in the gradients, 3 steps in a row" in screen
    assert "train.on_nan: rewind" in screen
    assert not (run.parent / "runs/run/adapter").exists()
    nan = NAN_FROM.format(factor="float('nan')", steps="{1, 2}")  # the process begins at step 5
    screen = sound(train(run, *keep_on, "-s", "train.on_nan=rewind", disturbance=nan))
    assert "back to the weights of step 2; the rows of steps 3 to 6 are left out" in screen
    assert events(run) == ["skipped"] * 3 + ["stopped", "resumed"] + ["skipped"] * 2 + ["rewound"]
    assert figures(run)["rewinds"] == 1


def test_an_overflow_storm_ends_with_the_reason(run: Path) -> None:
    """A float16 model whose down_proj multiplies by so much that its output leaves the type's range."""
    storm = (
        STEP_CALLS
        + """
from tengtune.backends.torch.model import FeedForward
real_forward = FeedForward.forward
def before(n):
    if n == 4: FeedForward.forward = lambda self, x: self.down_proj(1e5 * self.up_proj(x))
"""
    )
    options = ("-s", "model.dtype=float16", "-s", "train.max_steps=40", "-s", "train.lr=1e-3")
    screen = sound(train(run, *options, disturbance=storm), 4)
    assert "loss scale has sunk to 1, and model.layers.0.mlp.down_proj still gives Inf or NaN" in screen
    assert "bfloat16" in screen
    scales = [record["scale"] for record in metrics(run, "scale")]
    assert scales[-1] == 1.0
    assert all(after == before / 2 for before, after in itertools.pairwise(scales))
    last = metrics(run, "reason")[-1]
    assert (last["reason"], last["place"]) == ("overflow", "model.layers.0.mlp.down_proj")
    assert (run.parent / "runs/run/checkpoints/step_2").exists()


def test_a_frozen_step_ends_with_its_stacks_on_disk(run: Path, undisturbed: Path) -> None:
    freeze = (
        STEP_CALLS
        + """
import time
def before(n):
    if n == 4: a_collective_that_never_returns()
def a_collective_that_never_returns():
    time.sleep(1000)
"""
    )
    screen = sound(train(run, "-s", "train.stall_minutes=0.03", disturbance=freeze), 4)
    stacks = run.parent / "runs/run/log/stacks_rank_0.txt"
    assert "step 4 has taken" in screen
    assert "step 4 did not end within" in screen
    assert str(stacks) in screen
    text = stacks.read_text()
    assert text.count("a_collective_that_never_returns") == 2  # at half the time and at the end
    assert "signals" not in text or "_watch" in text
    assert events(run) == ["slow", "stopped"]
    sound(train(run))
    assert adapter(run) == adapter(undisturbed)


def test_out_of_memory_lists_what_this_run_can_change(run: Path) -> None:
    oom = (
        STEP_CALLS
        + """
import torch
from tengtune.backends.torch.step import TorchBackend
def before(n): pass
def loss(self, *arguments, **options): raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
TorchBackend.loss = loss
"""
    )
    screen = sound(train(run, "-s", "train.micro_batch=2", "-s", "data.seq_len=512", disturbance=oom), 4)
    assert "1. train.micro_batch: 1 (now 2" in screen
    assert "2. train.recompute: full" in screen
    assert "3. data.seq_len: 256 (now 512" in screen
    assert "4. a smaller model" in screen
    assert "rank" not in screen.split("why")[1].split("fix")[0]


def test_early_stopping_is_said_and_gives_the_best_weights(run: Path) -> None:
    screen = sound(
        train(run, "-s", "train.max_steps=60", "-s", "train.early_stop=2", "-s", "train.eval_every=1")
    )
    found = figures(run)
    assert found["steps"] < 60  # type: ignore[operator]
    assert found["weights_of_step"] == found["best_step"] == found["steps"] - 2  # type: ignore[operator]
    assert f"taking the weights of step {found['best_step']}" in screen
    scores = {record["step"]: record["heldout_loss"] for record in metrics(run, "heldout_loss")}
    assert min(scores, key=lambda step: scores[step]) == found["best_step"]


def test_a_damaged_best_checkpoint_leaves_the_last_weights(run: Path) -> None:
    spoil = STEP_CALLS + """
import glob, os
def before(n):
    if n == 6: os.truncate(glob.glob("{folder}/checkpoints/step_4/rank*")[0], 9)
"""  # fmt: skip
    folder = run.parent / "runs" / "run"
    screen = sound(train(run, disturbance=spoil.format(folder=folder)))
    assert "was best at step 4" in screen
    assert f"its checkpoint cannot be used ({folder}/checkpoints/step_4/rank" in screen
    assert "taking the weights of the last step 6 instead" in screen
    assert (figures(run)["best_step"], figures(run)["weights_of_step"]) == (4, 6)


def test_the_best_weights_are_kept_although_their_step_was_bad(run: Path) -> None:
    """Step 4 is skipped, its evaluation is the best: the weights are those of step 3, and they are scored."""
    options = ("-s", "train.lr=3", "-s", "train.save_every=5")
    screen = sound(train(run, *options, disturbance=NAN_FROM.format(factor="float('nan')", steps="{4}")))
    scores = {record["step"]: record["heldout_loss"] for record in metrics(run, "heldout_loss")}
    assert min(scores, key=lambda step: scores[step]) == 4
    assert figures(run)["weights_of_step"] == 4
    assert "taking the weights of step 4" in screen


def test_a_signal_in_the_last_save_ends_the_run_there(run: Path, undisturbed: Path) -> None:
    """`run` does not go on to merge; the same command has only the result to write, and does the rest."""
    late = """
import os, signal, time
from tengtune.train import checkpoints
real_write = checkpoints.write
def write(folder, *rest):
    if folder.name == "step_6":
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.5)
    return real_write(folder, *rest)
checkpoints.write = write
"""
    whole = DISTURBED.format(disturbance=late)
    screen = sound(python(whole, "run", run, OMP_NUM_THREADS="1"), 143)
    assert f"stopped after step {STEPS} of {STEPS} and saved" in screen
    assert not (run.parent / "runs/run/train.json").exists()
    assert not (run.parent / "runs/run/merged").exists()
    assert "training is done" in sound(train(run))
    assert adapter(run) == adapter(undisturbed)


def test_overfitting_is_said_where_nothing_stops_it(run: Path) -> None:
    """A score after every step but the last; by the large learning rate not all are better than before."""
    options = ("-s", "train.early_stop=null", "-s", "train.eval_every=1", "-s", "train.max_steps=9")
    screen = sound(train(run, *options))
    scores = {record["step"]: record["heldout_loss"] for record in metrics(run, "heldout_loss")}
    best = min(scores, key=lambda step: scores[step])
    assert best < 8
    assert f"the held-out loss was best at step {best}" in screen
    assert figures(run)["weights_of_step"] == 9
    assert (run.parent / f"runs/run/checkpoints/step_{best}").exists()


def test_going_on_elsewhere_is_said(run: Path) -> None:
    sound(train(run, disturbance=DIE_AT.format(step=4, signal="SIGKILL")), -9)
    elsewhere = STEP_CALLS + """
real_init = TorchBackend.__init__
def init(self, *arguments):
    real_init(self, *arguments)
    self.device = "npu:0"
TorchBackend.__init__, before = init, lambda n: None
"""  # fmt: skip
    screen = sound(train(run, disturbance=elsewhere))
    assert "saved with torch cpu float32, training goes on with torch npu:0 float32" in screen
    (event,) = (json.loads(line) for line in metrics_of(run) if '"resumed"' in line)
    assert (event["reason"], event["was"]) == ("elsewhere", "torch · cpu · float32")


def test_no_room_for_checkpoints_is_said_before_training(run: Path) -> None:
    tight = "from tengtune import files; files.free_bytes = lambda path: 20_000"
    screen = sound(train(run, disturbance=tight), 3)
    assert "no room for the checkpoints" in screen
    assert metrics_of(run) == []


def metrics_of(run: Path) -> list[str]:
    path = run.parent / "runs/run/metrics.jsonl"
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.parametrize("name", ["checkpoints", "adapter"])
def test_a_file_under_a_name_of_ours_is_left_alone(run: Path, name: str) -> None:
    path = run.parent / "runs/run" / name
    path.parent.mkdir(parents=True)
    path.write_text("notes of a month")
    for options in ((), ("--resume", "never")):
        screen = sound(train(run, *options), 2)
        assert "makes a folder of this name, and something else is there" in screen
        assert str(path) in screen
        assert path.read_text() == "notes of a month"
    assert metrics_of(run) == []


def test_metrics_that_are_a_pipe_or_damaged_are_told(run: Path) -> None:
    sound(train(run, disturbance=DIE_AT.format(step=4, signal="SIGKILL")), -9)
    path = run.parent / "runs/run/metrics.jsonl"
    before = path.read_bytes()
    path.unlink()
    os.mkfifo(path)
    screen = sound(train(run), 2)
    assert "This is no plain file" in screen
    assert str(path) in screen
    path.unlink()
    path.write_bytes(before + b'{"step": 1, "event": "\\ud800"}\n{"step": 1, "loss": 1' + b"0" * 400 + b"}\n")
    assert "metrics.jsonl: 2 lines were damaged and left out" in sound(train(run))
    assert [record["step"] for record in metrics(run, "loss")] == list(range(1, STEPS + 1))


def test_a_disk_that_fills_up_and_is_freed(run: Path, undisturbed: Path, small_disk: Path | None) -> None:
    """Where no disk can be mounted, a limit on the size of a file takes its place."""
    fill = (
        STEP_CALLS
        + """
import resource
from tengtune import files
files.free_bytes = lambda path: 10**12
def before(n):
    if n != 4: return
    if {mounted}:
        with open("{filler}", "wb", buffering=0) as filler:
            try:
                while True: filler.write(bytes(4096))
            except OSError:
                pass
    else:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
"""
    )
    place = small_disk or run.parent / "disk"
    disturbance = fill.format(mounted=small_disk is not None, filler=place / "filler")
    options = ("-s", f"output.dir={place}", "-s", "train.log_every=6")
    screen = sound(train(run, *options, disturbance=disturbance), 3)
    assert "No space left to write" in screen
    assert [p.name for p in (place / "run/checkpoints").iterdir()] == ["step_2"]
    (place / "filler").unlink(missing_ok=True)
    screen = sound(train(run, *options))
    assert "continuing at step 3" in screen
    assert adapter(run, place) == adapter(undisturbed)
