"""Saves checkpoints beside the training and keeps as many as are wanted."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any

from tengtune.train import checkpoints
from tengtune.train.checkpoints import Checkpoint, Shards, Shelf
from tengtune.train.ranks import Alone, Ranks
from tengtune.train.resume import find
from tengtune.train.state import State
from tengtune.ui.console import Console

BACKGROUND_BYTES = 4 * 10**9
"""Up to this size tensors are copied on the host and written while training goes on. A larger copy may not
fit beside the model, so larger ones stream to the disk while training waits."""
ON_CPU_BYTES = 10**8
"""The same on a CPU, where the copy lies in the memory that trains: with 12 bytes a trained parameter beside
its 16, full tuning would need three quarters more."""


class Saver:
    """`with Saver(...) as saver: saver.save(...)`; at the end of the block the last one is on the disk.

    same: what a run must have in common with a checkpoint to go on from it (see resume.find). about: what
    else layout.json says beside the state. keep: how many of the newest stay. nbytes: the size of one. whole:
    the step whose checkpoint the run goes on from. sync: flushes what must be on the disk before it is.
    ranks: those that write together, each its share, while training waits; None on a rank that leaves the
    writing to rank 0. background: up to so many bytes are written beside the training. newest: the step of
    the newest on the disk.

    One that is saved in a row of bad steps, as the best or at an end, is none to go back to, and takes no
    other one's place among those that are kept.
    """

    def __init__(
        self,
        shelf: Shelf,
        same: Mapping[str, Any],
        about: Mapping[str, Any],
        keep: int,
        nbytes: int,
        whole: int | None = None,
        sync: Callable[[], None] = lambda: None,
        ranks: Ranks | None = Alone(),  # noqa: B008
        background: int = BACKGROUND_BYTES,
    ) -> None:
        self.seconds, self._ranks = 0.0, ranks
        self._shelf, self._same, self._about, self._keep, self._sync = shelf, same, about, keep, sync
        # Ranks that meet must do so in one order, which a thread beside the training would not keep.
        self._background = nbytes <= background and (ranks is None or ranks.world == 1)
        self._whole = [] if whole is None else [step for step in shelf.steps() if step <= whole]
        self.newest = whole
        self._writer = ThreadPoolExecutor(1, "checkpoint")
        self._writing: Future[None] | None = None

    def save(self, state: State, shards: Shards) -> None:
        """Save what stands after step `state.step`; in the background where the size allows it.

        Raises the Problem of the save before, if it failed. `seconds` sums what training waited.
        """
        if self._ranks is None:
            return
        start = time.perf_counter()
        self.wait()
        about = {**self._about, "step": state.step, "same": self._same, "state": state.as_json()}
        what = (state.step, state.best.step, not state.health.in_a_row)
        if self._background:
            held = list(shards())
            self._writing = self._writer.submit(self._write, self._ranks, *what, lambda: iter(held), about)
        else:
            self._write(self._ranks, *what, shards, about)
        self.seconds += time.perf_counter() - start

    def check(self) -> None:
        """Raise the Problem of a save that has failed, at once and not hours later."""
        if self._writing and self._writing.done():
            self.wait()

    def wait(self) -> None:
        """Wait for the save in the background; raises its Problem."""
        writing, self._writing = self._writing, None
        if writing:
            writing.result()

    def last(self, console: Console) -> Checkpoint | None:
        """The newest whole checkpoint of this run that no bad step came before, else the newest."""
        self.wait()
        return find(self._shelf, self._same, console, trusted=True) or find(self._shelf, self._same, console)

    def _write(
        self,
        ranks: Ranks,
        step: int,
        best: int | None,
        trusted: bool,
        shards: Shards,
        about: Mapping[str, Any],
    ) -> None:
        self._sync()
        checkpoints.write(self._shelf.path(step), shards, about, ranks)
        self.newest = step
        self._whole = sorted({*self._whole, step} if trusted else {*self._whole} - {step})
        kept = {*self._whole[-self._keep :], best, step}
        for other in self._shelf.steps():
            if other not in kept and ranks.rank == 0:
                self._shelf.discard(other)
        self._whole = [other for other in self._whole if other in kept]

    def __enter__(self) -> Saver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.shutdown()
        if error is None:
            self.wait()
