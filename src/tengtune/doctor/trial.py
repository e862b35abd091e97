"""Programs that probe (backends/probe.py): started together, waited for, and what each wrote down."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tengtune.backends.probe import DONE, LOAD
from tengtune.cluster.place import PROGRESS, Place
from tengtune.host.place import kill
from tengtune.ui.problems import Stopped

POLL_S = 0.05
TOGETHER_S = 2.0
"""How long one of several that wait for each other may go on when another has failed."""
MOST_LOG = 1 << 20
MOST_SAID = 1 << 30
"""Bytes after which a program that prints is taken to do so without end, before it fills the disk."""
_RANKS = (*Place().environment(":"), PROGRESS, "MS_ROLE", "MS_WORKER_NUM")
"""Variables of a launcher, which would make a probe one of its ranks."""


@dataclass(frozen=True)
class Probe:
    """A program to be started: back end, device, trials. chosen: the variable that names its card; ranks: its
    place among several and what goes with it."""

    backend: str
    device: str
    trials: tuple[str, ...]
    chosen: Mapping[str, str]
    ranks: Mapping[str, str] = field(default_factory=dict)

    def words(self, python: str, answers: str) -> list[str]:
        """Its command line."""
        module = f"tengtune.backends.{self.backend}.probe"
        return [python, "-X", "faulthandler", "-m", module, self.device, answers, *self.trials]

    def line(self) -> str:
        """What shows the same in a shell."""
        variables = [f"{name}={shlex.quote(value)}" for name, value in self.chosen.items()]
        return " ".join([*variables, shlex.join(self.words("python", "/dev/stdout"))])


@dataclass(frozen=True)
class End:
    """What came of a probe. code: 0 where it got through, else its exit code, None where it did not end in
    time; during: the last trial that it began; said: its other output."""

    probe: Probe
    code: int | None
    answers: Mapping[str, Mapping[str, Any]]
    during: str
    said: bytes

    @property
    def whole(self) -> bool:
        """Whether it got through all its trials, failed or not."""
        return all(trial in self.answers for trial in self.probe.trials)


def run(probes: Sequence[Probe], folder: Path, seconds: float, together: bool = False) -> list[End]:
    """All probes side by side. together: they wait for each other, so one that fails ends all."""
    environment = {name: value for name, value in os.environ.items() if name not in _RANKS}
    places = [folder / f"{number}" for number in range(len(probes))]
    processes: list[subprocess.Popen[bytes]] = []
    with _signals_unwind(), ExitStack() as stack:
        for probe, place in zip(probes, places, strict=True):
            log = stack.enter_context(place.with_suffix(".log").open("wb"))
            process = subprocess.Popen(
                probe.words(sys.executable, str(place)),
                env={**environment, **probe.chosen, **probe.ranks},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            stack.callback(kill, process)
            processes.append(process)
        codes = _wait(processes, places, seconds, together)
    return [_end(*each) for each in zip(probes, codes, places, strict=True)]


@contextmanager
def _signals_unwind() -> Iterator[None]:
    """Let what asks this process to end take the probes along: a card that hangs is not left to one."""

    def leave(number: int, _: object) -> None:
        raise Stopped("doctor.probe_stopped", exit_code=128 + number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _wait(
    processes: Sequence[subprocess.Popen[bytes]], places: Sequence[Path], seconds: float, together: bool
) -> list[int | None]:
    """Their exit codes, 0 of those that got through, None of those that still run at the end."""
    end = time.monotonic() + seconds
    while True:
        codes = [0 if _done(place) else each.poll() for each, place in zip(processes, places, strict=True)]
        endless = any(_size(place.with_suffix(".log")) > MOST_SAID for place in places)
        if None not in codes or endless or time.monotonic() > end:
            return codes
        if together and any(codes):
            end, together = min(end, time.monotonic() + TOGETHER_S), False
        time.sleep(POLL_S)


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def _done(place: Path) -> bool:
    return place.exists() and place.read_text("utf-8").endswith(json.dumps(DONE) + "\n")


def _end(probe: Probe, code: int | None, place: Path) -> End:
    answers: dict[str, Any] = {}
    during = LOAD
    for line in place.read_bytes().splitlines() if place.exists() else []:
        with suppress(ValueError, AttributeError):  # the last one of a process that was killed
            entry = json.loads(line)
            during = entry.get("begins", during)
            answers[entry.pop("ended", "")] = entry
    with place.with_suffix(".log").open("rb") as log:
        log.seek(max(os.fstat(log.fileno()).st_size - MOST_LOG, 0))
        return End(probe, code, answers, during, log.read())
