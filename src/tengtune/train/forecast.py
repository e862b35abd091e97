"""What a rank's memory is planned to reach, before the training, and what it did reach, after it.

On a card that is the peak of the framework's allocator. On a CPU it is by how much the process's anonymous
memory rises above what it had before the model was loaded; weights that stay in the model's files are none.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tengtune.backends.base import Backend, Source
from tengtune.memory import PeakMemory, anonymous_bytes
from tengtune.plan import asked, memory
from tengtune.plan.profiles import ON_CPU, PROFILES
from tengtune.plan.strategy import NOTHING, Range
from tengtune.recipe import Recipe
from tengtune.ui.console import Console

TOLD_BYTES = 1e8
"""Below that a percentage says nothing: what Python itself takes and leaves is of that size."""


def planned(recipe: Recipe, name: str, backend: Backend, source: Source) -> Range | None:
    """The peak of one rank of the back end `name`; None for a sharing that it has not."""
    on_cpu = backend.device == "cpu"
    strategy = asked.strategy(recipe, 4 if backend.dtype == "float32" else 2)
    profile = (ON_CPU if on_cpu else PROFILES)[name]
    if strategy.zero not in profile.zero or strategy.offload not in profile.offload:
        return None
    linear = f"model.layers.0.{next(iter(backend.spec.linears()))}.weight"
    stays = on_cpu and profile.maps_weights and source[linear].dtype.name == backend.dtype
    strategy = replace(strategy, mapped=stays)
    return memory.card_bytes(backend.spec, strategy, profile, NOTHING, 0.0).total


class Forecast:
    """`with Forecast() as forecast:` around loading and training.

    begin: the framework is loaded, its own memory is no part of the training's. announce: says what is
    planned. figures: both, for the step's record, said as well; every rank calls it.
    """

    def __init__(self) -> None:
        self._before, self._peak = 0, PeakMemory()
        self._planned: Range | None = None

    def __enter__(self) -> Forecast:
        self._peak.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._peak.__exit__(*error)

    def begin(self) -> None:
        """From here on what comes is the training's."""
        self._before = anonymous_bytes()

    def announce(self, expected: Range | None, backend: Backend, console: Console) -> None:
        """Say what is planned, if anything is."""
        self._planned = expected
        if expected is None:
            return
        code = "train.planned_rise" if backend.device == "cpu" else "train.planned_peak"
        console.say(code, planned=_gb(expected.expected), low=_gb(expected.low), high=_gb(expected.high))

    def figures(self, backend: Backend, console: Console) -> dict[str, Any]:
        """planned_memory_bytes (low, expected, high) and measured_memory_bytes, the largest of all ranks."""
        mine = backend.peak_bytes()
        mine = self._peak.bytes - self._before if mine is None else mine
        measured = max(map(int, backend.ranks.gather(str(mine))))
        if self._planned is None or measured <= 0:
            return {}
        expected = self._planned.expected
        if measured >= TOLD_BYTES:
            error = f"{expected / measured - 1:+.0%}"
            console.say("train.measured_memory", measured=_gb(measured), planned=_gb(expected), error=error)
        bounds = [round(each) for each in (self._planned.low, expected, self._planned.high)]
        return {"planned_memory_bytes": bounds, "measured_memory_bytes": measured}


def _gb(size: float) -> str:
    return f"{size / 1e9:.2f}"
