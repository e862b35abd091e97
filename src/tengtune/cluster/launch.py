"""Starting the ranks of a training on this machine, watching them, and naming the one that failed first.

One supervisor of our own for both back ends, in place of torchrun and msrun: the variables are theirs
(cluster/place.py), but no second interpreter has to load a framework before the first rank can start, every
rank has one log, the first to fail is told by its own words, and a hang by who did not come.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shlex
import socket
import sys
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tengtune import cards, files
from tengtune.cluster import hccl
from tengtune.cluster.place import PROGRESS, Place
from tengtune.cluster.preflight import MARK
from tengtune.cluster.watch import Crew, end_file
from tengtune.lock import descriptors
from tengtune.recipe import Recipe
from tengtune.train.metrics import MOST_STEPS, Metrics, read
from tengtune.ui import language
from tengtune.ui.console import Console
from tengtune.ui.problems import Problem, os_errors

NODE_RANK, MASTER = "TENGTUNE_NODE_RANK", "TENGTUNE_MASTER"
"""Set by --node-rank and --master: this machine's number, and where rank 0 listens."""
RESULT = "result.json"


@dataclass(frozen=True)
class Start:
    """One rank to be started: its place, its variables beside those of this process, its command, its log."""

    place: Place
    environment: dict[str, str]
    command: list[str]
    log: Path

    @property
    def progress(self) -> Path:
        """Where it writes how far it is."""
        return Path(self.environment[PROGRESS])

    def line(self) -> str:
        """What a shell would be told."""
        variables = " ".join(f"{name}={shlex.quote(value)}" for name, value in self.environment.items())
        return f"{variables} {shlex.join(self.command)}"


def launch(recipe: Recipe, console: Console, anew: bool) -> tuple[list[str], dict[str, Any]]:
    """Train with all ranks of this machine; what rank 0 made (none on machines without it) and its figures.

    Problem `cluster.rank_failed` or `cluster.silent` names the rank that failed; Stopped when a signal asked
    for an end. Nothing is left running.
    """
    folder = recipe.folder / "log"
    with os_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    starts = plan(recipe, console, anew)
    left = [path for start in starts for path in (start.log, start.progress, end_file(start.log))]
    for old in left:
        files.remove(old)
    if starts[0].place.rank == 0:
        files.remove(folder / RESULT)
        files.write_text(folder / MARK, secrets.token_hex(8))
    values = {"world": recipe.parallel.ranks, "nodes": recipe.parallel.nodes, "local": len(starts)}
    console.say("cluster.starting", **values, folder=folder)
    if recipe.parallel.nodes > 1:
        console.say("cluster.waits", others=recipe.parallel.nodes - 1)
    limit = recipe.train.stall_minutes
    # The ranks hold the run folder's lock, too: some that outlive a killed launcher keep others out of it.
    try:
        Crew(starts, console, None if limit is None else 60 * limit, keep=descriptors()).run()
    except Problem as problem:
        if starts[0].place.rank == 0:
            _note_failure(recipe.folder / "metrics.jsonl", problem)
        raise
    if starts[0].place.rank > 0:
        return [], {}
    made = json.loads((folder / RESULT).read_text("utf-8"))
    return made["outputs"], made["figures"]


def _note_failure(path: Path, problem: Problem) -> None:
    """A rank's end as an event of the training, which goes on from a checkpoint: who is killed notes
    nothing."""
    steps = [record["step"] for record in read(path)] if path.exists() else []
    if not steps or "rank" not in problem.values:
        return
    status = problem.values.get("status")
    how: dict[str, Any] = {"reason": "silent"} if status is None else {"exit_code": status}
    if isinstance(status, int) and status < 0:
        how = {"reason": "killed", "signal": -status}
    with suppress(Problem), closing(Metrics(path, MOST_STEPS)) as metrics:
        metrics.event(steps[-1], "rank_failed", rank=problem.values["rank"], **how)


def plan(recipe: Recipe, console: Console, anew: bool) -> list[Start]:
    """The ranks of this machine; Problem when it is not said which machine this is, or where all meet."""
    world, nodes = recipe.parallel.ranks, recipe.parallel.nodes
    local = world // nodes
    _tell_crowding(local, cards.count(recipe.backend), console)
    node, master = _meeting(recipe, nodes)
    folder = recipe.folder / "log"
    job = {
        "run": str(recipe.file),
        "overrides": list(recipe.overrides),
        "anew": anew,
        "mode": console.mode,
        "lang": language.current(),
    }
    limit = recipe.train.stall_minutes
    on_cards = hccl.variables(None if limit is None else 60 * limit) if cards.count(recipe.backend) else {}
    starts = []
    for i in range(local):
        mine = Place(node * local + i, world, i, local)
        variables = mine.environment(master)
        variables["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", str(_threads(local)))
        variables |= on_cards
        variables[PROGRESS] = str(folder / f"rank_{mine.rank}.beats")
        command = [sys.executable, "-m", "tengtune.cli.rank", json.dumps(job, ensure_ascii=False)]
        starts.append(Start(mine, variables, command, folder / f"rank_{mine.rank}.log"))
    return starts


def _tell_crowding(local: int, there: int, console: Console) -> None:
    """Say when ranks would have to share a card, or without cards a core."""
    cores = len(os.sched_getaffinity(0))
    if there and local > there:
        console.warn("cluster.few_cards", ranks=local, cards=there)
    elif not there and local > cores:
        console.warn("cluster.few_cores", ranks=local, cores=cores)


def _threads(local: int) -> int:
    """Cores for each rank."""
    return max(len(os.sched_getaffinity(0)) // local, 1)


def _meeting(recipe: Recipe, nodes: int) -> tuple[int, str]:
    """This machine's number and "host:port" of rank 0."""
    node, master = int(os.environ.get(NODE_RANK, "0")), os.environ.get(MASTER, "")
    if not 0 <= node < nodes:
        raise Problem("cluster.node_rank", where="--node-rank", rank=node, nodes=nodes, last=nodes - 1)
    if nodes > 1 and not master:
        raise Problem("cluster.no_master", where=recipe.file, nodes=nodes, run=recipe.called())
    if not master:
        return node, f"127.0.0.1:{free_port()}"
    if not re.fullmatch(r"\S+:\d{1,5}", master):
        raise Problem("cluster.bad_master", where="--master", text=master)
    return node, master


def free_port() -> int:
    """A TCP port that nothing on this machine holds now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def set_meeting(node_rank: int | None, master: str | None) -> None:
    """What --node-rank and --master say, for this process and its children."""
    for name, value in ((NODE_RANK, node_rank), (MASTER, master)):
        if value is not None:
            os.environ[name] = str(value)
