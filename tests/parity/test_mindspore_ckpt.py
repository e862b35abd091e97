"""Checkpoints, shards and strategies exchanged with MindSpore itself, in both directions, bit for bit."""

from __future__ import annotations

import filecmp
import json
import os
import subprocess
import sys
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.shards_lab import random_bits

from tengtune.weights import ckpt_io, safetensors_io
from tengtune.weights.layout import Layout
from tengtune.weights.shard import (
    merged_streams,
    open_file,
    open_shards,
    split_streams,
    write_split,
    write_whole,
)
from tengtune.weights.strategy import Strategy, write_merged
from tengtune.weights.stream import stream

pytestmark = pytest.mark.slow

MINDSPORE = """
import json, os, sys
os.environ["GLOG_v"] = "3"
from pathlib import Path
import numpy as np
import mindspore as ms

folder = Path(sys.argv[1])

def raw(value):
    return value if isinstance(value, str) else bytes(value.get_bytes()).hex()

def kind(value):
    return ["str", []] if isinstance(value, str) else [str(value.dtype), list(value.shape)]

loaded = {}
for path in sorted((folder / "ours").iterdir()):
    read = ms.load_checkpoint(
        str(path), format=path.suffix[1:], crc_check="crc" in path.name
    )
    loaded[path.name] = {name: [*kind(value), raw(value)] for name, value in read.items()}
(folder / "loaded.json").write_text(json.dumps(loaded))

arrays = dict(np.load(folder / "arrays.npz"))
types = json.loads((folder / "types.json").read_text())
tensors = {}
for name, bits in arrays.items():
    if types[name] == "BFloat16":
        wide = (bits.astype(np.uint32) << 16).view(np.float32)
        tensors[name] = ms.Tensor(wide).astype(ms.bfloat16)
    else:
        tensors[name] = ms.Tensor(bits)
(folder / "theirs").mkdir()
save = [{"name": name, "data": ms.Parameter(t, name=name)} for name, t in tensors.items()]
for suffix in ("ckpt", "safetensors"):
    for crc in (False, True):
        path = folder / "theirs" / f"{'crc' if crc else 'plain'}.{suffix}"
        # Its checksum of safetensors fails on bfloat16.
        part = save if suffix == "ckpt" or not crc else [t for t in save if types[t["name"]] != "BFloat16"]
        ms.save_checkpoint(part, str(path), format=suffix, crc_check=crc)
entries = {"epoch_num": 3, "lr": 0.5, "note": "你好"}
ms.save_checkpoint(save[:1], str(folder / "theirs/dict.ckpt"), append_dict=entries)
ms.train.serialization.SLICE_SIZE = 1  # KiB
ms.save_checkpoint(save, str(folder / "theirs/pieces.ckpt"))
ms.train.serialization.SLICE_SIZE = 512 * 1024

for case in sorted((folder / "cases").iterdir()):
    strategy = str(case / "merged.ckpt")
    ms.transform_checkpoints(str(case / "ranks"), str(case / "ms_whole"), "whole", strategy, None)
    ms.transform_checkpoints(str(case / "whole"), str(case / "ms_ranks"), "checkpoint_", None, strategy)
"""

DTYPES = {
    "f64": "<f8", "f32": "<f4", "f16": "<f2", "bf16": ml_dtypes.bfloat16, "i64": "<i8", "i32": "<i4",
    "i16": "<i2", "i8": "i1", "u8": "u1",
}  # fmt: skip
ARRAYS: dict[str, np.ndarray] = {
    f"{name}.weight": random_bits((41, 7), dtype, seed) for seed, (name, dtype) in enumerate(DTYPES.items())
}
KINDS = {np.dtype(dtype): kind for kind, dtype in ckpt_io.TYPES.items()}


@dataclass(frozen=True)
class Case:
    """A run: a stage's grid, and for stage by stage: name -> (map, opt_size, opt_step, local shape)."""

    grid: tuple[int, ...]
    stages: tuple[dict[str, tuple[Any, int, int, tuple[int, ...]]], ...]
    dtype: Any = "<f4"

    @property
    def strategy(self) -> Strategy:
        plan = tuple(
            {name: Layout(self.grid, maps, step, size) for name, (maps, size, step, _) in stage.items()}
            for stage in self.stages
        )
        return Strategy(plan, int(np.prod(self.grid)))

    def model(self) -> dict[str, np.ndarray]:
        locals_ = {name: item[3] for stage in self.stages for name, item in stage.items()}
        plan = {name: layout for stage in self.strategy.stages for name, layout in stage.items()}
        return {
            name: random_bits(plan[name].whole_shape(local), self.dtype, seed)
            for seed, (name, local) in enumerate(locals_.items())
        }


VECTOR = {"vector": (((),), 0, 0, (8,))}
CASES = {
    "tp4_dp2": Case(
        (2, 4),
        (
            {
                "column": (((0,), ()), 0, 0, (2, 8)),
                "row": (((), (0,)), 0, 0, (8, 2)),
                "bias": (((0,),), 0, 0, (3,)),
                **VECTOR,
            },
        ),
    ),
    "tp4_dp2_opt": Case(
        (2, 4),
        (
            {
                "column": (((0,), ()), 2, 4, (2, 8)),
                "row": (((), (0,)), 2, 4, (4, 2)),
                "all": (((), ()), 8, 1, (1, 3)),
                "pairs": (((), ()), 2, 1, (2, 3)),
                "every": (((), ()), -1, 1, (1, 3)),
                **VECTOR,
            },
        ),
    ),
    "dp8_opt": Case((8,), ({"w": (((), ()), 8, 1, (1, 6)), "quarter": (((),), 4, 1, (2,)), **VECTOR},)),
    "grid of three": Case(
        (2, 2, 2),
        (
            {
                "both": (((1,), (0,)), 0, 0, (2, 3)),
                "crossed": (((0,), (2,)), 0, 0, (2, 3)),
                "gap": (((1,), ()), 4, 1, (1, 2)),
                "cube": (((2,), (), (0,)), 0, 0, (1, 2, 3)),
            },
        ),
        "<f2",
    ),
    "ones in the grid": Case(
        (2, 1, 3), ({"w": (((0,), (1,)), 2, 3, (2, 3)), "v": (((2,), ()), 0, 0, (3, 2))},)
    ),
    "an axis cut twice": Case(
        (2, 2, 2), ({"w": (((1, 0), ()), 2, 4, (1, 3)), "v": (((2, 0), ()), 0, 0, (1, 3))},)
    ),
    "pp2_tp2": Case(
        (1, 2),
        (
            {"embed": (((0,), ()), 0, 0, (4, 3)), "layer0": (((), (0,)), 0, 0, (3, 2))},
            {"layer1": (((), (0,)), 0, 0, (3, 2)), "head": (((0,), ()), 0, 0, (4, 3)), **VECTOR},
        ),
        ml_dtypes.bfloat16,
    ),
    "pp2_tp2_dp2_opt": Case(
        (2, 2),
        (
            {"embed": (((0,), ()), 2, 2, (2, 3)), "layer0": (((), (0,)), 2, 2, (3, 2))},
            {"layer1": (((), (0,)), 2, 2, (3, 2)), "head": (((0,), ()), 2, 2, (2, 3)), **VECTOR},
        ),
    ),
}


def finite(array: np.ndarray) -> np.ndarray:
    """Values MindSpore carries through bfloat16's detour over float32: no signalling NaN."""
    return np.where(np.isfinite(array), array, np.array(1, array.dtype))


LARGE = """
import os, sys, zlib
os.environ["GLOG_v"] = "3"
import mindspore as ms
tensor = ms.load_checkpoint(sys.argv[1])["large"]
print(tensor.dtype, tensor.shape, zlib.crc32(tensor.get_bytes()))
ms.save_checkpoint([{"name": "large", "data": tensor}], sys.argv[2])
"""


@pytest.mark.soak
def test_a_tensor_above_512_mib(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).integers(0, 2**16, (1000, 2**18 + 9000), np.uint16).view(np.float16)
    assert rows.nbytes > ckpt_io.SLICE_BYTES
    ckpt_io.write_file(tmp_path / "ours.ckpt", [stream("large", rows)])
    assert isinstance(open_file(tmp_path / "ours.ckpt")["large"], ckpt_io.Joined)
    command = [sys.executable, "-c", LARGE, tmp_path / "ours.ckpt", tmp_path / "theirs.ckpt"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1] == f"Float16 {rows.shape} {zlib.crc32(rows)}", done.stderr[-2000:]
    assert filecmp.cmp(tmp_path / "ours.ckpt", tmp_path / "theirs.ckpt", shallow=False)
    read = open_file(tmp_path / "theirs.ckpt")["large"]
    assert all(np.array_equal(read[i : i + 1].view("u2"), rows[i : i + 1].view("u2")) for i in range(1000))


@pytest.fixture(scope="module")
def exchange(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What we wrote, and what one MindSpore process made of it and wrote itself."""
    folder = tmp_path_factory.mktemp("exchange")
    streams = [stream(name, array) for name, array in ARRAYS.items()]
    scalars = [stream("step", np.array(7, "<i4")), stream("note", np.array("wo 你好"))]
    bools = [stream("flag", np.array([True, False])), stream("u16", np.arange(3, dtype="<u2"))]
    write = ckpt_io.write_file
    (folder / "ours").mkdir()
    write(folder / "ours/plain.ckpt", [*streams, *scalars, *bools])
    write(folder / "ours/crc.ckpt", streams, crc=True)
    write(folder / "ours/pieces.ckpt", streams, limit=51)
    write(folder / "ours/crc_pieces.ckpt", streams, crc=True, limit=51)
    safetensors_io.write_file(folder / "ours/plain.safetensors", streams)
    raw = {n: a.view(np.uint16) if a.dtype == ml_dtypes.bfloat16 else a for n, a in ARRAYS.items()}
    np.savez(folder / "arrays.npz", **raw)
    (folder / "types.json").write_text(json.dumps({n: KINDS[a.dtype] for n, a in ARRAYS.items()}))
    for name, case in CASES.items():
        place, model = folder / "cases" / name, {n: finite(a) for n, a in case.model().items()}
        write_split(split_streams(model, case.strategy), case.strategy, place / "ranks")
        write_merged(case.strategy, place / "merged.ckpt")
        write(place / "whole/rank_0/whole.ckpt", [stream(n, a) for n, a in model.items()])
    script = folder / "exchange.py"
    script.write_text(MINDSPORE, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, script, folder],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return folder


@pytest.mark.parametrize("file", ["plain", "crc", "pieces", "crc_pieces", "plain.safetensors"])
def test_mindspore_loads_our_files(exchange: Path, file: str) -> None:
    name = file if "." in file else f"{file}.ckpt"
    loaded = json.loads((exchange / "loaded.json").read_text())[name]
    for tensor, array in ARRAYS.items():
        kind, shape, content = loaded[tensor]
        assert (kind, tuple(shape)) == (KINDS[array.dtype], array.shape), tensor
        assert content == array.tobytes().hex(), tensor
    if file == "plain":
        assert loaded["step"] == ["Int32", [], "07000000"]
        assert loaded["note"] == ["str", [], "wo 你好"]
        assert loaded["flag"] == ["Bool", [2], "0100"]
        assert loaded["u16"] == ["UInt16", [3], "000001000200"]


@pytest.mark.parametrize(
    "file", ["plain.ckpt", "crc.ckpt", "pieces.ckpt", "plain.safetensors", "crc.safetensors"]
)
def test_we_read_mindspore_s_files(exchange: Path, file: str) -> None:
    read = open_file(exchange / "theirs" / file)
    arrays = {n: a for n, a in ARRAYS.items() if n != "bf16.weight" or file != "crc.safetensors"}
    assert read.keys() == arrays.keys()
    for name, array in arrays.items():
        wanted = array
        if array.dtype == ml_dtypes.bfloat16:  # a signalling NaN becomes a quiet one on MindSpore's way
            wanted = np.where(np.isnan(array), np.array(0, array.dtype), array)
            found = np.where(np.isnan(read[name][:]), np.array(0, array.dtype), read[name][:])
        else:
            found = read[name][:]
        assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
        assert found.tobytes() == wanted.tobytes(), name


@pytest.mark.parametrize("file", ["plain", "crc", "pieces"])
def test_our_bytes_are_mindspore_s(exchange: Path, tmp_path: Path, file: str) -> None:
    theirs = exchange / f"theirs/{file}.ckpt"
    streams = [stream(name, rows) for name, rows in open_file(theirs).items()]
    limit = 1024 if file == "pieces" else ckpt_io.SLICE_BYTES
    ckpt_io.write_file(tmp_path / "x.ckpt", streams, crc=file == "crc", limit=limit)
    assert (tmp_path / "x.ckpt").read_bytes() == theirs.read_bytes()


def test_what_append_dict_adds_is_read(exchange: Path) -> None:
    read = open_file(exchange / "theirs/dict.ckpt")
    values = {name: np.asarray(read[name]).item() for name in ("epoch_num", "lr", "note")}
    assert values == {"epoch_num": 3, "lr": 0.5, "note": "你好"}


@pytest.mark.parametrize("case", CASES)
def test_mindspore_joins_our_shards(exchange: Path, case: str) -> None:
    joined = open_file(exchange / f"cases/{case}/ms_whole/rank_0/whole0.ckpt")
    model = {name: finite(array) for name, array in CASES[case].model().items()}
    assert joined.keys() == model.keys()
    for name, array in model.items():
        assert joined[name].shape == array.shape
        assert joined[name][:].tobytes() == array.tobytes(), name


@pytest.mark.parametrize("case", CASES)
def test_we_join_the_shards_mindspore_cuts(exchange: Path, tmp_path: Path, case: str) -> None:
    place, strategy = exchange / "cases" / case, CASES[case].strategy
    for rank in range(strategy.ranks):
        ours = open_file(place / f"ranks/rank_{rank}/checkpoint_{rank}.ckpt")
        theirs = open_file(place / f"ms_ranks/rank_{rank}/checkpoint_{rank}.ckpt")
        assert ours.keys() == theirs.keys()
        assert all(ours[n][:].tobytes() == theirs[n][:].tobytes() for n in ours), rank
    shards = open_shards(place / "ms_ranks", place / "merged.ckpt")
    write_whole(merged_streams(shards), tmp_path / "whole.ckpt")
    model = {name: finite(array) for name, array in CASES[case].model().items()}
    read = open_file(tmp_path / "whole.ckpt")
    assert {n: rows[:].tobytes() for n, rows in read.items()} == {n: a.tobytes() for n, a in model.items()}
