"""A small model repository and the download of it, for tests against the stand-ins of tests/hubs.py."""

from __future__ import annotations

import io
import json
import random
from pathlib import Path

import pytest

from tengtune.hub.download import bring
from tengtune.hub.plan import Wish
from tengtune.ui.console import Console
from tengtune.ui.problems import Problem
from tests.hubs import REPO, Hub

SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
ONE_HUB = pytest.mark.parametrize("source", ["modelscope"])
"""For what does not depend on which hub it is."""
NEEDED = {"README.md", "config.json", "model.safetensors.index.json", "tokenizer.json", *SHARDS}


def _shard(name: str, noise: random.Random, size: int) -> bytes:
    """A safetensors file of this many bytes with one tensor."""
    count = size - 8 - 120
    header = json.dumps({name: {"dtype": "U8", "shape": [count], "data_offsets": [0, count]}}).encode()
    return (120).to_bytes(8, "little") + header.ljust(120) + noise.randbytes(count)


def contents() -> dict[str, bytes]:
    """A model repository: two shards and their index, and what a training does not need."""
    noise = random.Random(7)
    index = {"weight_map": {"a": SHARDS[0], "b": SHARDS[1]}}
    return {
        ".gitattributes": b"*.bin lfs",
        "README.md": b"# A model\n",
        "assets/logo.png": b"PNG",
        "config.json": b'{"model_type": "qwen2"}',
        SHARDS[0]: _shard("a", noise, 300_000),
        SHARDS[1]: _shard("b", noise, 200_000),
        "model.safetensors.index.json": json.dumps(index).encode(),
        "model.q4.gguf": noise.randbytes(90_000),
        "onnx/model.onnx": noise.randbytes(90_000),
        "pytorch_model.bin": noise.randbytes(90_000),
        "tokenizer.json": noise.randbytes(5_000),
    }


def console() -> Console:
    return Console("normal", io.StringIO(), io.StringIO())


def told(console: Console) -> str:
    return console.err.getvalue()  # type: ignore[attr-defined,no-any-return]


def get(folder: Path, source: str | None, revision: str | None = None) -> dict[str, object]:
    return bring(Wish(REPO, folder, source, revision), console())


def problem(folder: Path, source: str | None, repo: str = REPO, revision: str | None = None) -> Problem:
    with pytest.raises(Problem) as caught:
        bring(Wish(repo, folder, source, revision), console())
    assert "Traceback" not in str(caught.value)
    return caught.value


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def assert_whole(hub: Hub, folder: Path) -> None:
    assert names(folder) == NEEDED | {"download.json"}
    assert all((folder / name).read_bytes() == hub.files[name] for name in NEEDED)
