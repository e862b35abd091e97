"""The stages of a rehearsal: the real commands on the twin's run file, one kill, and what each showed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tengtune import files
from tengtune.data.store import open_store
from tengtune.lock import beside, held
from tengtune.recipe import Recipe
from tengtune.rehearsal.twin import make_twin
from tengtune.train import metrics, schedule
from tengtune.ui import language
from tengtune.ui.console import Console
from tengtune.ui.problems import BUSY, FAILED_RUN, UNFIT_MACHINE, WRONG_INPUT, Problem

STEPS, KILL_AFTER = 6, 2
MARK = "REHEARSAL"
NEW_TOKENS = 16


@dataclass(frozen=True)
class Done:
    """A stage that went well: its name, seconds, and what it showed."""

    name: str
    seconds: float
    showed: str


class Rehearsal:
    """A run's rehearsal in `<output.dir>/<name>.rehearsal`: the twin in model/, its run file, its run folder.

    ranks: those of the run file, as far as this machine has cores for them and the batch allows.
    """

    def __init__(self, recipe: Recipe, console: Console) -> None:
        self.recipe, self.console = recipe, console
        self.folder = recipe.folder.with_name(f"{recipe.folder.name}.rehearsal")
        self.run_file, self.run_folder = self.folder / "run.yaml", self.folder / "run"
        self.ranks = _ranks(recipe)
        self.done: list[Done] = []

    def run(self) -> list[Done]:
        """All stages in order. Problem `rehearse.failed` at the first that does not end well, `lock.busy`
        where the same run is being rehearsed already."""
        with held(beside(self.folder), self.console):
            return self._stages()

    def _stages(self) -> list[Done]:
        stages: list[tuple[str, Callable[[], str]]] = [
            ("twin", self._twin),
            ("data", self._data),
            ("train", self._train),
            ("resume", self._resume),
            ("merge", self._merge),
            ("predict", self._predict),
            ("report", self._report),
        ]
        for name, work in stages:
            title = language.say(f"rehearse.{name}")
            self.console.heading(title)
            start = time.monotonic()
            with self.console.waiting(title):
                showed = work()
            self.done.append(Done(name, time.monotonic() - start, showed))
        return self.done

    def _twin(self) -> str:
        if self.folder.exists() and not (self.folder / MARK).exists():
            raise Problem("rehearse.not_ours", where=self.folder, mark=MARK)
        files.remove(self.folder)
        spec = make_twin(self.recipe.model_folder, self.folder / "model", self.recipe.seed)
        files.write_text(self.folder / MARK, language.say("rehearse.mark") + "\n")
        files.write_text(self.run_file, json.dumps(self._settings(), ensure_ascii=False, indent=1) + "\n")
        return language.say(
            "rehearse.showed_twin", family=spec.family, parameters=f"{spec.parameters():,}", vocab=spec.vocab
        )

    def _settings(self) -> dict[str, Any]:
        """The run file, with the twin for a model, few steps, and paths that hold from anywhere."""
        recipe = self.recipe
        values: dict[str, Any] = recipe.model_dump(mode="json")
        paths = {name: str(recipe.resolve(name)) for name in recipe.data.files}
        values["name"] = "run"
        values["model"] = {"path": str(self.folder / "model"), "dtype": "auto"}
        values["data"]["files"] = list(paths.values())
        values["data"]["weights"] = {paths[name]: weight for name, weight in recipe.data.weights.items()}
        values["train"] |= {"max_steps": STEPS, "save_every": 1, "keep": 2}
        values["parallel"] |= {"ranks": self.ranks, "nodes": 1}
        values["output"] |= {
            "dir": str(self.folder),
            "evaluate": [],
            "max_new_tokens": min(NEW_TOKENS, recipe.output.max_new_tokens),
        }
        return values

    def _data(self) -> str:
        self._command("data")
        store = open_store(self.run_folder / "data" / "train")
        real = schedule.plan(self.recipe, store.rows)
        return language.say(
            "rehearse.showed_data",
            rows=store.rows,
            documents=store.documents,
            trained=f"{store.trained_tokens:,}",
            per_epoch=real.steps_per_epoch,
            steps=real.steps,
            accumulation=self.recipe.accumulation,
            ranks=self.recipe.parallel.ranks,
        )

    def _train(self) -> str:
        """Train until a checkpoint is there, and kill everything."""
        process = self._started("train")
        checkpoint = self.run_folder / "checkpoints" / f"step_{KILL_AFTER}"
        while process.poll() is None and not checkpoint.exists():
            time.sleep(0.005)
        if process.poll():
            raise _failed("train", process.returncode)
        _kill(process)
        return language.say("rehearse.showed_train", ranks=self.ranks, losses=self._losses())

    def _resume(self) -> str:
        self._command("train")
        figures = json.loads((self.run_folder / "train.json").read_text("utf-8"))["figures"]
        if figures["steps"] != STEPS:
            raise Problem("rehearse.short", where=self.run_folder, steps=figures["steps"], wanted=STEPS)
        again = figures["events"].get("resumed", 0)
        code = "rehearse.showed_resume" if again else "rehearse.showed_no_kill"
        return language.say(code, steps=STEPS, losses=self._losses())

    def _losses(self) -> str:
        records = metrics.read(self.run_folder / "metrics.jsonl")
        return ", ".join(f"{record['loss']:.3f}" for record in records if record.get("loss") is not None)

    def _merge(self) -> str:
        self._command("merge")
        return language.say("rehearse.showed_merge", folder=self.run_folder / "merged")

    def _predict(self) -> str:
        self._command("predict")
        return language.say("rehearse.showed_predict")

    def _report(self) -> str:
        self._command("report")
        return str(self.run_folder / "report.html")

    def _command(self, *words: str) -> None:
        """A command on the twin's run file; Problem when it does not end well, after it has said why."""
        process = self._started(*words)
        code = process.wait()
        if code:
            raise _failed(words[0], code)

    def _started(self, *words: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tengtune", *words, str(self.run_file), "--quiet"]
        environment = {**os.environ, "TENGTUNE_LANG": language.current()}
        return subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, start_new_session=True, cwd=self.folder
        )


def _ranks(recipe: Recipe) -> int:
    """The largest number of ranks up to the run file's that has a core each and parts the batch evenly."""
    train, most = recipe.train, min(recipe.parallel.ranks, len(os.sched_getaffinity(0)))
    fitting = [n for n in range(1, most + 1) if train.global_batch % (train.micro_batch * n) == 0]
    return max(fitting, default=1)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """As a power cut would: launcher and ranks at once. The ranks have sessions of their own."""
    victims: Sequence[int] = [process.pid, *_children(process.pid)]
    for pid in victims:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    process.wait()


def _children(parent: int) -> list[int]:
    path = Path(f"/proc/{parent}/task/{parent}/children")
    return [int(pid) for pid in path.read_text("ascii").split()] if path.exists() else []


def _failed(name: str, code: int) -> Problem:
    known = code if code in (WRONG_INPUT, UNFIT_MACHINE, BUSY) else FAILED_RUN
    return Problem("rehearse.failed", exit_code=known, stage=language.say(f"rehearse.{name}"))
