"""The processes of this machine's ranks, until all have ended, or one has failed and the rest is stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tengtune.cluster import place
from tengtune.ui import language
from tengtune.ui.console import Console
from tengtune.ui.lists import joined
from tengtune.ui.problems import FAILED_RUN, Problem, Stopped, os_errors

if TYPE_CHECKING:
    from tengtune.cluster.launch import Start

POLL_S = 0.05
TOGETHER_S = 2.0
"""Who fails so soon after the first may have been the first: the others of a lost rank notice at once."""
GRACE_S = 15.0
"""How long the others have to end by themselves before they are killed."""
SLOWER = 1.2
"""A rank's own watchdog comes first; this one is for ranks that are not able to."""
START_S = 300.0
"""Until a rank first beats it loads a framework, which takes minutes from a cold network disk."""
LAST_LINES = 15
STOPS = tuple(128 + number for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM))
"""Exit codes of ranks that were asked to end, and did."""
LOST = "cluster.peer_lost"
DONE = "done"
"""Written by a rank whose work is done: MindSpore and drivers crash now and then while a process ends."""


class Crew:
    """`Crew(starts, console, limit_s).run()`

    limit_s: how long all may stand still; None: for ever. start_s: how long they may take until they first
    beat, if that is more. keep: descriptors the ranks inherit.
    """

    def __init__(
        self,
        starts: Sequence[Start],
        console: Console,
        limit_s: float | None,
        start_s: float = START_S,
        keep: Sequence[int] = (),
    ) -> None:
        self._starts, self._console, self._limit_s, self._start_s = starts, console, limit_s, start_s
        self._alone, self._keep = len(starts) == starts[0].place.world, keep
        self._began = time.time()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._signal = 0
        self._ended: dict[int, float] = {}  # index -> when it ended
        self._stuck: set[int] = set()  # indices of those that the system did not let run at the end

    def run(self) -> None:
        """Start all ranks and wait for them. Problem or Stopped when they did not all end well; nothing is
        left running then."""
        with ExitStack() as stack, self._signals():
            stack.callback(self._kill)
            for start in self._starts:
                self._processes.append(_started(start, stack, self._keep))
            # Not a rank says it: MindSpore's meeting keeps all of a process's threads from running.
            meeting = stack.enter_context(self._console.waiting(language.say("cluster.meeting")))
            while not self._over():
                if min(self._beats()) > place.JOINING:
                    meeting.end()
                time.sleep(POLL_S)
            codes = self._codes()  # before those that still run are ended by us
            if all(code == 0 for code in codes) and not self._signal:
                return
            self._stuck = {i for i, process in enumerate(self._processes) if _frozen(process.pid)}
            self._stop()
        raise self._verdict(codes)

    def _codes(self) -> list[int | None]:
        """Exit codes; None of those that run, 0 of those that a signal ended with their work done."""
        codes = [process.poll() for process in self._processes]
        for i, code in enumerate(codes):
            if code is not None and code < 0 and _end_of(self._starts[i]).get("code") == DONE:
                codes[i] = 0
        for i, code in enumerate(codes):
            if code is not None:
                self._ended.setdefault(i, time.monotonic())
        return codes

    def _over(self) -> bool:
        """Whether all have ended, one has failed a while ago, or nothing moves."""
        codes = self._codes()
        if None not in codes:
            return True
        failed = [self._ended[i] for i, code in enumerate(codes) if code]
        if failed and not self._signal:
            return time.monotonic() - min(failed) > TOGETHER_S
        return self._stands_still()

    def _stands_still(self) -> bool:
        beats = [place.beats(start.progress) for start in self._starts]
        counts = [count for count, _ in beats]
        if self._limit_s is None or (max(counts) <= place.JOINING and not self._alone):
            return False  # the other machines may start much later
        limit = self._limit_s if min(counts) > 0 else max(self._limit_s, self._start_s)
        return time.time() - max(self._began, *(when for _, when in beats)) > SLOWER * limit

    def _stop(self) -> None:
        """Ask those that run to end; kill those that do not within GRACE_S."""
        self._send(signal.SIGTERM)
        deadline = time.monotonic() + GRACE_S
        while None in self._codes() and time.monotonic() < deadline:
            time.sleep(POLL_S)
        self._kill()

    def _kill(self) -> None:
        self._send(signal.SIGKILL)
        for process in self._processes:
            process.wait()

    def _send(self, number: int) -> None:
        """A signal to every rank that runs, and to whatever it started."""
        for process in self._processes:
            if process.poll() is None:
                os.killpg(process.pid, number)

    def _pass_on(self, number: int) -> None:
        """A signal to every rank that has come so far as to take it; the others just end, without the
        traceback of a Python that a Ctrl-C meets while it loads."""
        for process, start in zip(self._processes, self._starts, strict=False):
            if process.poll() is None:
                began = place.beats(start.progress)[0] > 0
                os.killpg(process.pid, number if began else signal.SIGTERM)

    def _verdict(self, codes: list[int | None]) -> Problem | Stopped:
        """Which rank failed first, and how; codes: how they stood when there was something to judge."""
        ends = [_end_of(start) for start in self._starts]
        none_failed = all(end.get("code", LOST) in (LOST, DONE) for end in ends)
        if self._signal and (self._left_first(codes) or none_failed):
            return Stopped("cluster.stopped", exit_code=128 + self._signal)
        stopped = [code for code in codes if code in STOPS]
        if stopped and none_failed:
            return Stopped("cluster.stopped", exit_code=stopped[0] or 0)  # asked elsewhere, agreed by all
        index = self._first(codes, ends)
        if index is None:
            return self._silent(codes)
        start, code = self._starts[index], codes[index] or 0
        log = start.log
        elsewhere = ends[index].get("code") == LOST and not self._alone
        return Problem(
            "cluster.lost_elsewhere" if elsewhere else "cluster.rank_failed",
            where=log,
            exit_code=code if code in (2, 3, 4, 5) else FAILED_RUN,
            rank=start.place.rank,
            how=_how(code),
            status=code,
            lines=_last_lines(log) or "-",
            diagnosis=_diagnosis(log),
        )

    def _left_first(self, codes: list[int | None]) -> bool:
        """Whether who ended first did so as asked, before its training could save; what the others then met
        is no fault of theirs."""
        first = min(self._ended, key=lambda i: self._ended[i], default=None)
        code = None if first is None else codes[first]
        return code in STOPS or (code is not None and 128 - code in STOPS)

    def _first(self, codes: list[int | None], ends: list[dict[str, Any]]) -> int | None:
        """The rank to name; None when none has failed, or those that did only missed another one."""
        failed = [i for i, code in enumerate(codes) if code]
        if not failed:
            return None
        early = min(self._ended[i] for i in failed)
        near = [i for i in failed if self._ended[i] - early <= TOGETHER_S]
        killed = [i for i in near if (codes[i] or 0) < 0]
        # Without a note (a full disk takes none) an exit code of its own tells as much.
        told = [i for i in near if ends[i] or codes[i] not in (*STOPS, FAILED_RUN)]
        own = sorted((i for i in told if ends[i].get("code") != LOST), key=lambda i: ends[i].get("time", 0))
        for named in (killed if len(killed) < len(self._starts) else [], own):
            if named:
                return named[0]
        beats = self._beats()
        return None if None in codes or min(beats) < max(beats) else near[0]

    def _silent(self, codes: list[int | None]) -> Problem:
        """The rank that has done least while the others waited for it, of those that have not ended; of some
        that came equally far, one that the system does not let run."""
        beats = self._beats()
        running = [i for i, code in enumerate(codes) if code is None] or range(len(codes))
        start = self._starts[min(running, key=lambda i: (beats[i], i not in self._stuck))]
        stacks = start.log.with_name(f"stacks_rank_{start.place.rank}.txt")
        return Problem(
            "cluster.silent",
            where=start.log,
            exit_code=FAILED_RUN,
            rank=start.place.rank,
            minutes=f"{(self._limit_s or 0) / 60:.3g}",
            beats=joined(f"{s.place.rank}: {n}" for s, n in zip(self._starts, beats, strict=True)),
            stacks=stacks,
        )

    def _beats(self) -> list[int]:
        return [place.beats(start.progress)[0] for start in self._starts]

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """The first signal is passed on, so that the ranks save and end; a second one kills them."""

        def passed_on(number: int, frame: object) -> None:
            if self._signal:
                self._send(signal.SIGKILL)
            else:
                self._signal = number
                self._console.say("cluster.stopping", signal=signal.Signals(number).name)
                self._pass_on(number)

        wanted = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        caught = [number for number in wanted if signal.getsignal(number) is not signal.SIG_IGN]
        before = {number: signal.signal(number, passed_on) for number in caught}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _started(start: Start, stack: ExitStack, keep: Sequence[int]) -> subprocess.Popen[bytes]:
    """The process of a rank, in a session of its own: the terminal's Ctrl-C comes through us alone. Rank 0
    has our terminal and writes its log itself."""
    environment = {**os.environ, **start.environment}
    if start.place.rank == 0:
        return subprocess.Popen(start.command, env=environment, start_new_session=True, pass_fds=keep)
    with os_errors(start.log):
        log = stack.enter_context(start.log.open("ab"))
    return subprocess.Popen(
        start.command,
        env=environment,
        start_new_session=True,
        pass_fds=keep,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
    )


def end_file(log: Path) -> Path:
    """Where a rank writes why it ended."""
    return log.with_suffix(".end")


def _end_of(start: Start) -> dict[str, Any]:
    """Why a rank ended, by its own account; empty without one."""
    try:
        end: dict[str, Any] = json.loads(end_file(start.log).read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return end


def _how(code: int) -> str:
    if code >= 0:
        return language.say("cluster.exited", number=code)
    if -code == signal.SIGKILL:
        return language.say("cluster.killed_memory")
    return language.say("cluster.killed", signal=signal.Signals(-code).name)


def _diagnosis(log: Path) -> str:
    """What its log says of the cause, if that is one we know."""
    from tengtune.explain.logs import newest
    from tengtune.explain.screen import for_launcher

    found = newest(log)
    return "" if found is None else for_launcher(found)


def _frozen(pid: int) -> bool:
    """Whether a process is stopped, or waits in the kernel, say for a driver: T or D of proc_pid_stat(5)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "TtD"
    except (OSError, IndexError):
        return False


def _last_lines(log: Path) -> str:
    try:
        text = log.read_text("utf-8", "replace")
    except OSError:
        return ""
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    return "\n".join(f"  {line}" for line in lines[-LAST_LINES:])
