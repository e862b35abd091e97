"""The MindSpore back end on tiny models, for tests."""

from __future__ import annotations

import numpy as np

from tengtune.backends.base import Backend, Shard
from tengtune.backends.mindspore import device
from tengtune.backends.mindspore.step import build as build  # sets the log level before MindSpore is loaded

from mindspore.graph.api import ms_compile_cache  # isort: skip

device.prepare()  # the device is chosen before anything is computed, whichever test comes first


def compiled_graphs() -> int:
    """Graphs that MindSpore has compiled in this process, by its own books."""
    return len(ms_compile_cache)


def copy_of_state(backend: Backend) -> dict[tuple[str, str], np.ndarray]:
    """Every trained tensor and optimizer state by (name, kind)."""
    return {(s.name, s.kind): s.array.copy() for s in backend.named_shards()}


def as_shards(state: dict[tuple[str, str], np.ndarray]) -> list[Shard]:
    """What `load_shards` takes."""
    return [Shard(name, kind, array) for (name, kind), array in state.items()]  # type: ignore[arg-type]
