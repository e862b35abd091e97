"""One writer at a time, and no lock that outlives its holder."""

from __future__ import annotations

import errno
import fcntl
import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tengtune import lock
from tengtune.ui.console import Console
from tengtune.ui.problems import Problem

HOLD = """
import sys
from pathlib import Path
from tengtune.lock import held
with held(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def another(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock until its stdin is closed."""
    line = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        yield holder


@pytest.fixture(autouse=True)
def short_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "WAIT_S", 0.05)
    monkeypatch.setattr(lock, "_told", set())


def test_the_second_is_told_who_holds_it(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    with another(path) as holder:
        with pytest.raises(Problem) as caught, lock.held(path):
            pass
        assert (caught.value.code, caught.value.exit_code) == ("lock.busy", 5)
        assert caught.value.values["pid"] == holder.pid
        assert caught.value.values["host"] == os.uname().nodename
        assert str(path) in str(caught.value.values["command"])
        holder.communicate()
    with lock.held(path):
        assert path.exists()
    assert os.listdir(tmp_path) == []


def test_one_that_ends_soon_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "WAIT_S", 60.0)
    path = tmp_path / "a.lock"
    with another(path) as holder:
        monkeypatch.setattr(lock.time, "sleep", lambda seconds: holder.communicate())
        with lock.held(path):
            assert str(os.getpid()) in path.read_text()


def test_a_killed_holder_leaves_no_lock(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    with another(path) as holder:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        assert path.exists()
        with lock.held(path):
            pass
    assert not path.exists()


def test_whoever_holds_it_may_ask_again(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.lock"
    with lock.held(path):
        with lock.held(path):
            pass
        assert path.exists()
    assert not path.exists()


def test_a_file_removed_by_its_last_holder_is_not_taken_for_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between opening and locking the holder may remove the file; another then makes a new one."""
    path, real, opened = tmp_path / "a.lock", lock._open, []

    def removed_at_first(name: Path) -> int:
        opened.append(real(name))
        if len(opened) == 1:
            name.unlink()
        return opened[-1]

    monkeypatch.setattr(lock, "_open", removed_at_first)
    with lock.held(path):
        assert len(opened) == 2
        assert os.stat(path).st_ino == os.fstat(opened[1]).st_ino


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_without_locks_the_work_goes_on_and_it_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(descriptor: int, how: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    console, done = Console("normal", io.StringIO(), io.StringIO()), 0
    for _ in range(2):
        with lock.held(tmp_path / "a.lock", console):
            done += 1
    said = console.err.getvalue()  # type: ignore[attr-defined]
    assert (done, said.count("takes no lock file")) == (2, 1)
    assert os.strerror(number) in said


def test_on_a_read_only_disk_the_work_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> int:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(lock, "_open", refuse)
    console, done = Console("normal", io.StringIO(), io.StringIO()), 0
    with lock.held(tmp_path / "a.lock", console):
        done += 1
    assert done == 1
    assert "Read-only file system" in console.err.getvalue()  # type: ignore[attr-defined]


def test_a_full_disk_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> int:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(lock, "_open", refuse)
    with pytest.raises(Problem, match=r"io\.no_space"), lock.held(tmp_path / "a.lock"):
        pass


def test_a_folder_made_for_the_lock_goes_with_it_unless_it_is_used(tmp_path: Path) -> None:
    path = tmp_path / "new" / "deep" / "a.lock"
    with lock.held(path):
        assert path.exists()
    assert os.listdir(tmp_path) == []
    with lock.held(path):
        (tmp_path / "new" / "kept").write_text("x")
    assert os.listdir(tmp_path / "new") == ["kept"]


@pytest.mark.parametrize(
    "content", [b"my notes", b"{}", b"[1]", b'{"pid": 1, "host": "a", "command": "b", "x": 1}']
)
def test_a_file_of_somebody_s_is_left_as_it_is(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.lock"
    path.write_bytes(content)
    with pytest.raises(Problem, match=r"lock\.not_ours"), lock.held(path):
        pass
    assert path.read_bytes() == content


@pytest.mark.parametrize("content", [None, b"precious", b""])
def test_a_link_is_not_followed(tmp_path: Path, content: bytes | None) -> None:
    path, victim = tmp_path / "a.lock", tmp_path / "victim"
    if content is not None:
        victim.write_bytes(content)
    path.symlink_to(victim)
    with pytest.raises(Problem, match=r"lock\.not_ours"), lock.held(path):
        pass
    assert path.is_symlink()
    assert (victim.read_bytes() if victim.exists() else None) == content


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
def test_what_is_no_file_is_no_lock(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "a.lock")
    with pytest.raises(Problem, match=r"lock\.not_ours"), lock.held(tmp_path / "a.lock"):
        pass
    assert os.listdir(tmp_path) == ["a.lock"]


def test_a_holder_with_a_long_command_is_ours_when_it_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.lock"
    monkeypatch.setattr(sys, "argv", ["tengtune", "模" * 100_000])
    with lock.held(path):
        left = path.read_bytes()
    path.write_bytes(left)
    with lock.held(path):
        pass
    assert os.listdir(tmp_path) == []
