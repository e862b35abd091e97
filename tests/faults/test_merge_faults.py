"""A merge that is killed or meets a full disk leaves nothing that looks whole, and a rerun finishes it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from tests.fault_lab import KILLED_ANYWHERE, python
from tests.fault_lab import small_disk as small_disk
from tests.tiny import tiny_config, tiny_model

from tengtune.models.spec import from_config
from tengtune.weights.adapter import write_adapter

KILLER = (
    KILLED_ANYWHERE
    + """
import sys
from pathlib import Path
from tengtune.weights.merge import open_merge, write_merge

base, adapter, out = map(Path, sys.argv[1:4])
killed_anywhere(lambda advance: write_merge(open_merge(base, adapter), out, 100_000, advance), out)
"""
)

FULL_DISK = """
import sys
from tengtune import files
from tengtune.cli.main import main

if sys.argv[1] == "unforeseen":
    files.free_bytes = lambda path: 10**12
if sys.argv[1] == "limited":
    import resource
    files.free_bytes = lambda path: 10**12
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
main(["merge", "--json", *sys.argv[2:]])
"""

MEMORY = """
import sys
from pathlib import Path
from tengtune.memory import PeakMemory, anonymous_bytes
from tengtune.weights.merge import open_merge, write_merge

job = open_merge(Path(sys.argv[1]), Path(sys.argv[2]))
before = anonymous_bytes()
with PeakMemory(interval_s=0.005) as peak:
    write_merge(job, Path(sys.argv[3]))
print(before, peak.bytes)
"""


def make_adapter(folder: Path, linears: dict[str, tuple[int, int]]) -> Path:
    random = np.random.default_rng(1)
    tensors = {}
    for name, (out, inner) in linears.items():
        tensors[f"{name}.lora_A.weight"] = random.standard_normal((8, inner)).astype(np.float32)
        tensors[f"{name}.lora_B.weight"] = random.standard_normal((out, 8)).astype(np.float32)
    write_adapter(folder, tensors, rank=8, alpha=16, targets=list(linears), base="")
    return folder


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return tiny_model(tmp_path / "base")


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    return make_adapter(tmp_path / "adapter", {"model.layers.0.self_attn.q_proj": (64, 64)})


@pytest.mark.parametrize("earlier", [False, True], ids=["first merge", "over an earlier one"])
def test_killed_anywhere(tmp_path: Path, base: Path, adapter: Path, earlier: bool) -> None:
    out = tmp_path / "run" / "merged"
    out.parent.mkdir()
    if earlier:
        out.mkdir()
        (out / "old.txt").write_text("an earlier merge")
    done = python(KILLER, base, adapter, out)
    assert done.returncode == 0, done.stderr
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert len(rows) > 40  # 27 tensors and the flushes and renames of 5 shards and 2 folders
    assert [row[1] for row in rows] == ["9"] * (len(rows) - 1) + ["0"]
    whole, old = rows[-1][2], str({"old.txt": 16})
    assert "model.safetensors.index.json" in whole
    allowed = {"None", whole, old} if earlier else {"None", whole}
    assert {row[2] for row in rows} <= allowed
    assert rows[0][2] == (old if earlier else "None")
    for row in rows:
        assert all(
            name == "merged" or name.endswith(".partial") for name in json.loads(row[3].replace("'", '"'))
        )
    assert rows[-1][3] == "['merged']"  # the last run went through and swept up what the killed ones left
    merged = {n: t for f in out.glob("*.safetensors") for n, t in load_file(f).items()}
    changed = {
        n for n, t in load_file(base / "model.safetensors").items() if not np.array_equal(t, merged[n])
    }
    assert changed == {"model.layers.0.self_attn.q_proj.weight"}


@pytest.mark.parametrize("way", ["foreseen", "unforeseen", "limited"])
def test_a_full_disk(tmp_path: Path, base: Path, adapter: Path, small_disk: Path | None, way: str) -> None:
    if small_disk is None or way == "limited":
        # No disk can be mounted: a limit on the size of a file stops the writing midway instead.
        way, folder = "limited", tmp_path / "run"
        folder.mkdir()
    else:
        folder = small_disk
    out = folder / "merged"
    done = python(FULL_DISK, way, "--base", base, "--adapter", adapter, "--out", out)
    assert done.returncode == 3, done.stderr
    problem = json.loads(done.stdout.splitlines()[-1])
    assert problem["problem"] == ("merge.no_space" if way == "foreseen" else "io.no_space")
    assert problem["where"].startswith(str(out))
    assert list(folder.iterdir()) == []
    assert "Traceback" not in done.stderr


def sparse_model(folder: Path, layers: int) -> Path:
    """A bfloat16 model of zeros, 33.6 MB a layer, that takes no room on the disk."""
    config = tiny_config(
        hidden_size=1024, intermediate_size=4096, num_attention_heads=16, num_key_value_heads=16,
        num_hidden_layers=layers,
    )  # fmt: skip
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    header, end = {}, 0
    for name, shape in from_config(config).tensors():
        size = 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
    return folder


def test_memory_does_not_grow_with_the_model(tmp_path: Path) -> None:
    peaks = []
    for layers in (3, 12):
        base = sparse_model(tmp_path / f"base-{layers}", layers)
        linears = {
            f"model.layers.{n}.mlp.{name}": shape
            for n in range(layers)
            for name, shape in (("gate_proj", (4096, 1024)), ("down_proj", (1024, 4096)))
        }
        adapter = make_adapter(tmp_path / f"adapter-{layers}", linears)
        done = python(MEMORY, base, adapter, tmp_path / f"out-{layers}")
        assert done.returncode == 0, done.stderr
        before, peak = map(int, done.stdout.split())
        assert peak - before < 150e6
        peaks.append(peak - before)
        written = tmp_path / f"out-{layers}" / "model.safetensors"
        assert written.stat().st_size > 33.5e6 * layers
        written.unlink()
    assert peaks[1] - peaks[0] < 30e6, peaks
