"""One rank of a training: `python -m tengtune.cli.rank JOB`, as cluster/launch.py starts it."""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any, TextIO

from tengtune import files
from tengtune import recipe as recipes
from tengtune.backends.relay import relayed
from tengtune.cluster.launch import RESULT
from tengtune.cluster.place import Place, here
from tengtune.cluster.watch import DONE, end_file
from tengtune.recipe import Recipe
from tengtune.ui import language
from tengtune.ui.console import Console
from tengtune.ui.problems import Problem, Stopped, screen

ORPHAN_S = 20.0
"""A rank whose launcher is gone has so long to save and end."""


class Tee:
    """A stream whose lines go into a log, too; what redraws a terminal's line does not."""

    def __init__(self, stream: TextIO, log: TextIO) -> None:
        self._stream, self._log = stream, log
        self.encoding = stream.encoding

    def write(self, text: str) -> int:
        """Write to both."""
        if "\x1b[" not in text and "\r" not in text:
            self._log.write(text)
        return self._stream.write(text)

    def flush(self) -> None:
        """Flush both."""
        self._log.flush()
        self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def main() -> None:
    """Train as the job says; the exit code is the launcher's business."""
    # Until the training has its own way of ending, a Ctrl-C just ends this process, without a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    job, mine = json.loads(sys.argv[1]), here()
    _leave_with(os.getppid())
    _pin(mine)
    language.choose(job["lang"])
    recipe = recipes.load(Path(job["run"]), job["overrides"])
    log = recipe.folder / "log" / f"rank_{mine.rank}.log"
    faulthandler.enable()
    with relayed(recipe):
        code = _work(recipe, _console(mine, log, job["mode"]), job["anew"], log)
    sys.exit(code)


def _work(recipe: Recipe, console: Console, anew: bool, log: Path) -> int:
    """Train; the exit code, and why it ended in `end_file`."""
    from tengtune.steps import train

    try:
        result = train.train(recipe, console, anew)
    except Stopped as stopped:
        return stopped.exit_code
    except Problem as problem:
        _note(log, problem.code, screen(problem, False))
        return problem.exit_code
    except Exception:
        _note(log, "traceback", traceback.format_exc())
        return 1
    if here().rank == 0:
        text = json.dumps({"outputs": result.outputs, "figures": result.figures})
        files.write_text(log.with_name(RESULT), text)
    _note(log, DONE)
    return 0


def _note(log: Path, code: str, text: str = "") -> None:
    """Write down why this rank ends; its launcher shows the end of the log."""
    try:
        end_file(log).write_text(json.dumps({"code": code, "time": time.time()}), "utf-8")
        if text:
            with log.open("a", encoding="utf-8") as stream:
                stream.write(f"{text}\n")
    except OSError:  # a full disk, which may be the very reason
        if text:
            print(text, file=sys.stderr)


def _console(mine: Place, log: Path, mode: Any) -> Console:
    """Rank 0 speaks to the user and into its log; the others have their log for stdout."""
    if mine.rank:
        return Console("quiet")
    stream = open(log, "w", encoding="utf-8")  # noqa: SIM115 (open while the process lives)
    out, err = Tee(sys.stdout, stream), Tee(sys.stderr, stream)
    return Console(mode, out, err)  # type: ignore[arg-type]


def _pin(mine: Place) -> None:
    """Give each rank of this machine its own cores, in blocks: neighbours share caches and memory."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < mine.local_world:
        return
    share = len(cores) // mine.local_world
    os.sched_setaffinity(0, cores[mine.local_rank * share :][:share])


def _leave_with(parent: int) -> None:
    """Watch for the launcher's end, however it came: first save and leave, then just leave."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(ORPHAN_S)
        os._exit(128 + signal.SIGTERM)

    threading.Thread(target=watch, name="launcher", daemon=True).start()


if __name__ == "__main__":
    main()
