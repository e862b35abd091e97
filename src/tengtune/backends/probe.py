"""What the probes of both back ends share.

A probe is a program, `python -m tengtune.backends.<name>.probe DEVICE ANSWERS TRIAL...`: it tries a device
and writes what came of it to the file ANSWERS, a JSON object a line. Each trial is announced before it
begins, so that one that hangs or kills the process is known by its name. doctor/probe.py starts them.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]

LOAD = "load"
"""What comes before all trials: the framework is loaded, the device is chosen."""
DONE = {"done": True}
"""The last line. Nobody waits for what follows it: frameworks take long to leave, and some crash there."""
LENGTHS = (9, 1, 14)
"""Documents of the row that attention is tried on."""
HEADS, KEY_HEADS, HEAD_SIZE = 4, 2, 32
SIDE = 256
"""Of the matrices that are multiplied."""
MOST_TEXT = 20_000
EPSILON = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23}
ROUNDINGS, MORE_ROUNDINGS = 8, 32
"""How many roundings of the type a product, and attention, may be off, as a part of the largest value."""


@dataclass(frozen=True)
class Measured:
    """How far a result is from what it should be, and how far it may be."""

    error: float
    limit: float


@dataclass(frozen=True)
class Loaded:
    """A framework on its device: "npu:0", the chip's name, how many the process sees."""

    version: str
    device: str
    name: str
    count: int


Trials = Mapping[str, Callable[[], Measured]]


def serve(prepare: Callable[[str], tuple[Loaded, Trials]]) -> None:
    """The program. What a trial raises ends that trial; what `prepare` raises ends the process."""
    device, answers, *names = sys.argv[1:]
    with Path(answers).open("a", encoding="utf-8", buffering=1) as stream:

        def note(**values: object) -> None:
            stream.write(json.dumps(values) + "\n")

        note(begins=LOAD)
        loaded, trials = prepare(device)
        note(ended=LOAD, **asdict(loaded))
        for name in names:
            note(begins=name)
            try:
                note(ended=name, **asdict(trials[name]()))
            except Exception as error:  # whatever a framework makes of an operator that is not there
                traceback.print_exc()
                said = str(error).strip().splitlines()
                failed = f"{type(error).__name__}: {said[0][:300] if said else ''}"
                note(ended=name, failed=failed, text=str(error)[:MOST_TEXT])
        note(**DONE)


def measured(ours: npt.ArrayLike, wanted: npt.ArrayLike, dtype: str, roundings: int = ROUNDINGS) -> Measured:
    """A result in `dtype` beside the wanted one, both of one shape."""
    a, b = np.asarray(ours, np.float64), np.asarray(wanted, np.float64)
    error = float(np.abs(a - b).max() / np.abs(b).max())
    return Measured(error if np.isfinite(error) else float("inf"), roundings * EPSILON[dtype])


def some(*shape: int, seed: int) -> npt.NDArray[np.float32]:
    """Numbers as a normal distribution has them, the same each time."""
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def attention(q: Numbers, k: Numbers, v: Numbers, lengths: Sequence[int]) -> Numbers:
    """Causal attention that never leaves a document, written out: q [T,N,D], k and v [T,G,D] -> [T,N,D]."""
    out, first = np.zeros_like(q), 0
    for length in lengths:
        rows = slice(first, first + length)
        for head in range(q.shape[1]):
            group = head * k.shape[1] // q.shape[1]
            scores = q[rows, head] @ k[rows, group].T / np.sqrt(q.shape[2])
            scores[np.triu_indices(length, 1)] = -np.inf
            weights = np.exp(scores - scores.max(1, keepdims=True))
            out[rows, head] = weights / weights.sum(1, keepdims=True) @ v[rows, group]
        first += length
    return out
