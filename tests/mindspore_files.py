"""MindSpore's own protobuf classes, loaded without MindSpore itself: independent readers for the tests."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path
from typing import Any


@cache
def protobuf(module: str) -> Any:
    """mindspore.train.checkpoint_pb2 or node_strategy_pb2, of the installed MindSpore."""
    package = importlib.util.find_spec("mindspore")
    assert package is not None
    assert package.submodule_search_locations
    path = Path(package.submodule_search_locations[0]) / "train" / f"{module}.py"
    spec = importlib.util.spec_from_file_location(module, path)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def checkpoint_values(raw: bytes) -> list[tuple[str, str, list[int], bytes]]:
    """(tag, type, dims, content) of every Value of a checkpoint's bytes, without its CRC."""
    message = protobuf("checkpoint_pb2").Checkpoint.FromString(raw)
    return [
        (v.tag, v.tensor.tensor_type, list(v.tensor.dims), v.tensor.tensor_content) for v in message.value
    ]


def strategy_map(raw: bytes) -> Any:
    """A strategy file's bytes as a ParallelStrategyMap."""
    return protobuf("node_strategy_pb2").ParallelStrategyMap.FromString(raw)
