"""The supervisor of ranks, on processes that are no trainings: who is named, and when."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tengtune import lock
from tengtune.cluster.launch import Start
from tengtune.cluster.place import PROGRESS, Place
from tengtune.cluster.watch import DONE, LOST, Crew, end_file
from tengtune.ui import progress
from tengtune.ui.console import Console
from tengtune.ui.problems import Problem, Stopped

BEAT = "import os, time; open(os.environ['TENGTUNE_BEATS'], 'w').write(f'1 {time.time()}\\n'); "


def crew(
    folder: Path,
    scripts: list[str],
    world: int | None = None,
    limit_s: float | None = 0.4,
    console: Console | None = None,
) -> Crew:
    """A crew whose rank N runs the Python script N."""
    starts = []
    for rank, script in enumerate(scripts):
        beats = folder / f"rank_{rank}.beats"
        variables = {PROGRESS: str(beats), "TENGTUNE_BEATS": str(beats)}
        place = Place(rank, world or len(scripts), rank, len(scripts))
        starts.append(Start(place, variables, [sys.executable, "-c", script], folder / f"rank_{rank}.log"))
    return Crew(starts, console or Console("quiet"), limit_s, start_s=3.0)


def note(folder: Path, rank: int, code: str) -> str:
    """A script's line that writes why its rank ends."""
    path = end_file(folder / f"rank_{rank}.log")
    text = json.dumps({"code": code, "time": 1.0 + rank})
    return f"open({str(path)!r}, 'w').write({text!r}); "


def test_a_rank_that_freezes_while_it_starts_is_named(tmp_path: Path) -> None:
    with pytest.raises(Problem) as caught:
        crew(tmp_path, [BEAT + "time.sleep(60)", "import time; time.sleep(60)"]).run()
    assert (caught.value.code, caught.value.values["rank"]) == ("cluster.silent", 1)


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGKILL])
def test_a_rank_that_crashes_with_its_work_done_has_not_failed(tmp_path: Path, number: int) -> None:
    crash = f"import os; os.kill(os.getpid(), {number})"
    crew(tmp_path, ["", note(tmp_path, 1, DONE) + crash]).run()
    assert json.loads(end_file(tmp_path / "rank_1.log").read_text()) == {"code": DONE, "time": 2.0}


def test_a_rank_that_fails_beside_one_that_is_done_is_named(tmp_path: Path) -> None:
    crash = "import os; os.kill(os.getpid(), 11)"
    with pytest.raises(Problem) as caught:
        crew(tmp_path, [note(tmp_path, 0, DONE) + crash, crash]).run()
    assert (caught.value.code, caught.value.values["rank"]) == ("cluster.rank_failed", 1)


def test_of_two_that_came_equally_far_the_stopped_one_is_named(tmp_path: Path) -> None:
    stopped = "import signal; os.kill(os.getpid(), signal.SIGSTOP)"
    with pytest.raises(Problem) as caught:
        crew(tmp_path, [BEAT + "time.sleep(60)", BEAT + stopped]).run()
    assert (caught.value.code, caught.value.values["rank"]) == ("cluster.silent", 1)


def test_the_wait_until_ranks_have_met_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ranks end when it was told."""
    monkeypatch.setenv("TENGTUNE_LANG", "en")
    monkeypatch.setattr(progress, "EVERY_S", 0.01)
    told = tmp_path / "told"

    class Screen(io.StringIO):
        def write(self, text: str) -> int:
            told.touch()
            return super().write(text)

    script = f"import os, time\nwhile not os.path.exists({str(told)!r}): time.sleep(0.01)"
    err = Screen()
    crew(tmp_path, [script] * 2, limit_s=None, console=Console(err=err)).run()
    assert "the ranks load the framework and meet: 0:0" in err.getvalue()
    assert "waiting" not in {thread.name for thread in threading.enumerate()}


def test_ranks_may_wait_for_another_machine(tmp_path: Path) -> None:
    """One beat is the wait for the others, who may start hours later."""
    crew(tmp_path, [BEAT + "time.sleep(6)"], world=2).run()
    assert (tmp_path / "rank_0.beats").exists()


@pytest.mark.parametrize("code", [130, 143])
def test_ranks_that_were_asked_to_end_have_not_failed(code: int, tmp_path: Path) -> None:
    with pytest.raises(Stopped) as caught:
        crew(tmp_path, [f"raise SystemExit({code})"] * 2).run()
    assert (caught.value.code, caught.value.exit_code) == ("cluster.stopped", code)


def test_a_signal_that_comes_when_all_is_done_is_not_lost(tmp_path: Path) -> None:
    """What follows the ranks must not go on as if nobody had asked for an end."""
    ends_well = f"import os, signal, time; signal.signal({int(signal.SIGTERM)}, lambda *_: None); "
    asks = f"os.kill({os.getpid()}, {int(signal.SIGTERM)}); time.sleep(0.5)"
    with pytest.raises(Stopped) as caught:
        crew(tmp_path, [ends_well + asks]).run()
    assert (caught.value.code, caught.value.exit_code) == ("cluster.stopped", 143)


def test_who_only_lost_another_machine_is_not_blamed(tmp_path: Path) -> None:
    with pytest.raises(Problem) as caught:
        crew(tmp_path, [note(tmp_path, 0, LOST) + "raise SystemExit(4)"], world=2).run()
    assert caught.value.code == "cluster.lost_elsewhere"


def test_an_end_without_a_note_counts_by_its_code(tmp_path: Path) -> None:
    """A full disk takes no note from the rank that it stopped; the other only lost it."""
    with pytest.raises(Problem) as caught:
        crew(tmp_path, ["raise SystemExit(3)", note(tmp_path, 1, LOST) + "raise SystemExit(4)"]).run()
    assert (caught.value.code, caught.value.values["rank"]) == ("cluster.rank_failed", 0)
    assert caught.value.exit_code == 3


LEAVES = {
    "killed": "",  # before its first beat the launcher sends SIGTERM
    "by_itself": BEAT + "signal.signal(signal.SIGINT, lambda *_: os._exit(130)); ",
}


@pytest.mark.parametrize("how", LEAVES)
def test_who_met_the_end_of_one_that_left_as_asked_is_not_blamed(how: str, tmp_path: Path) -> None:
    """A rank that has nothing to save yet leaves at once; another notices in the midst of a step."""
    ready = str(tmp_path / "ready")
    leaves = f"import os, signal, time; {LEAVES[how]}open({ready!r}, 'w'); time.sleep(60)"
    meets = (
        f"import os, signal, time; {BEAT}signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        f"while not os.path.exists({ready!r}): time.sleep(0.01)\n"
        f"os.kill({os.getpid()}, signal.SIGINT); time.sleep(0.5)\n"
        f"{note(tmp_path, 1, 'traceback')}raise SystemExit(1)"
    )
    with pytest.raises(Stopped) as caught:
        crew(tmp_path, [leaves, meets], limit_s=None).run()
    assert caught.value.exit_code == 130


def test_the_last_lines_are_lines_with_something_in_them(tmp_path: Path) -> None:
    """Frameworks end their tracebacks with blank lines, which would push the reason off the screen."""
    (tmp_path / "rank_0.log").write_text("the reason\n" + "\n \t\n" * 40, "utf-8")
    with pytest.raises(Problem) as caught:
        crew(tmp_path, ["raise SystemExit(3)"]).run()
    assert caught.value.values["lines"] == "  the reason"


HOLDER = """
import subprocess, sys, time
from pathlib import Path
from tengtune import lock
with lock.held(Path(sys.argv[1])):
    sleeping = [sys.executable, "-c", "import time; time.sleep(60)"]
    child = subprocess.Popen(sleeping, stdout=subprocess.DEVNULL, pass_fds=lock.descriptors())
    print(child.pid, flush=True)
    time.sleep(60)
"""


def test_a_lock_lives_as_long_as_what_inherited_it(tmp_path: Path) -> None:
    path = tmp_path / "folder.lock"
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    child = int(holder.stdout.readline())
    holder.kill()
    holder.wait()
    holder.stdout.close()
    try:
        with pytest.raises(Problem) as caught, lock.held(path):
            pass
        assert caught.value.code == "lock.busy"
    finally:
        os.kill(child, signal.SIGKILL)
    with lock.held(path):
        assert path.exists()
