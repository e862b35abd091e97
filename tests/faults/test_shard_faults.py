"""Joining and cutting: killed anywhere, on a full disk, at flat memory; and files of any bytes at all."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.fault_lab import KILLED_ANYWHERE, python
from tests.fault_lab import small_disk as small_disk

from tengtune.weights import ckpt_io
from tengtune.weights.layout import Layout, repeated
from tengtune.weights.shard import open_whole, split_streams, write_split
from tengtune.weights.strategy import Strategy, write_strategy
from tengtune.weights.stream import stream

JOIN = (
    KILLED_ANYWHERE
    + """
import sys
from pathlib import Path
from tengtune.weights.shard import merged_streams, open_shards, write_whole

ranks, out = map(Path, sys.argv[1:3])
killed_anywhere(lambda advance: write_whole(merged_streams(open_shards(ranks)), out, 100_000, advance), out)
"""
)

SPLIT = (
    KILLED_ANYWHERE
    + """
import sys
from pathlib import Path
from tengtune.weights.shard import open_whole, sharded_strategy, split_streams, write_split

whole, out = map(Path, sys.argv[1:3])

def work(advance):
    source = open_whole(whole)
    strategy = sharded_strategy(source, 2)
    write_split(split_streams(source, strategy), strategy, out, ".ckpt", advance)

killed_anywhere(work, out)
"""
)

FULL_DISK = """
import sys
from tengtune import files
from tengtune.cli.main import main

if sys.argv[1] != "foreseen":
    files.free_bytes = lambda path: 10**12
if sys.argv[1] == "limited":
    import resource
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
main(["merge", "--json", *sys.argv[2:]])
"""

MEMORY = """
import sys
from pathlib import Path
from tengtune.memory import PeakMemory, anonymous_bytes
from tengtune.weights.shard import merged_streams, open_shards, write_whole

before = anonymous_bytes()
with PeakMemory(interval_s=0.005) as peak:
    write_whole(merged_streams(open_shards(Path(sys.argv[1]))), Path(sys.argv[2]))
print(before, peak.bytes)
"""

LAYOUTS = {
    "column": Layout((2, 2), ((0,), ())),
    "row": Layout((2, 2), ((), (0,)), 2, 2),
    "norm": repeated(1, 4),
}
MODEL = {
    "column": np.arange(40_000, dtype="<f4").reshape(400, 100),
    "row": np.arange(70_000, dtype="<f4").reshape(100, 700),
    "norm": np.ones(1000, "<f4"),
}


@pytest.fixture
def ranks(tmp_path: Path) -> Path:
    """The rank folders of MODEL, 444 kB, and their strategy."""
    strategy = Strategy((LAYOUTS,), 4)
    write_split(split_streams(MODEL, strategy), strategy, tmp_path / "ranks")
    return tmp_path / "ranks"


def holds_the_model(path: Path) -> bool:
    read = open_whole(path)
    return read.keys() == MODEL.keys() and all(np.array_equal(read[n][:], a) for n, a in MODEL.items())


@pytest.mark.parametrize("name", ["whole.ckpt", "whole"])
@pytest.mark.parametrize("earlier", [False, True], ids=["first", "over an earlier one"])
def test_a_join_killed_anywhere(tmp_path: Path, ranks: Path, name: str, earlier: bool) -> None:
    out = tmp_path / "run" / name
    out.parent.mkdir()
    if earlier and name == "whole":
        out.mkdir()
        (out / "old.txt").write_text("an earlier one")
    elif earlier:
        out.write_text("an earlier one")
    done = python(JOIN, ranks, out)
    assert done.returncode == 0, done.stderr
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert len(rows) > 5
    assert [row[1] for row in rows] == ["9"] * (len(rows) - 1) + ["0"]
    whole, old = rows[-1][2], str({"old.txt" if name == "whole" else ".": 14})
    assert {row[2] for row in rows} <= {"None", whole, *([old] if earlier else [])}
    assert rows[0][2] == (old if earlier else "None")
    for row in rows:
        left = json.loads(row[3].replace("'", '"'))
        assert all(entry == name or entry.endswith(".partial") for entry in left)
    assert rows[-1][3] == str([name])  # the last one went through and swept up what the killed ones left
    assert holds_the_model(out)


def test_a_split_killed_anywhere(tmp_path: Path) -> None:
    whole, out = tmp_path / "whole.ckpt", tmp_path / "run" / "ranks"
    out.parent.mkdir()
    ckpt_io.write_file(whole, [stream(name, array) for name, array in MODEL.items()])
    done = python(SPLIT, whole, out)
    assert done.returncode == 0, done.stderr
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert len(rows) > 20
    assert {row[2] for row in rows[:-1]} <= {"None", rows[-1][2]}
    assert rows[-1][1] == "0"
    assert rows[-1][3] == "['ranks']"
    assert sorted(f.name for f in out.iterdir()) == ["rank_0", "rank_1", "strategy"]


@pytest.mark.parametrize("way", ["foreseen", "unforeseen", "limited"])
@pytest.mark.parametrize("name", ["whole.ckpt", "whole"])
def test_a_full_disk(tmp_path: Path, ranks: Path, small_disk: Path | None, way: str, name: str) -> None:
    """The disk has 400 kB; the model needs 444 kB."""
    if small_disk is None or way == "limited":
        # No disk can be mounted: a limit on the size of a file stops the writing midway instead.
        way, folder = "limited", tmp_path / "run"
        folder.mkdir()
    else:
        folder = small_disk
    done = python(FULL_DISK, way, "--shards", ranks, "--out", folder / name)
    assert done.returncode == 3, done.stderr
    problem = json.loads(done.stdout.splitlines()[-1])
    assert problem["problem"] == ("merge.no_space" if way == "foreseen" else "io.no_space")
    assert problem["where"].startswith(str(folder / name))
    assert list(folder.iterdir()) == []
    assert "Traceback" not in done.stderr


def sparse_run(folder: Path, layers: int) -> Path:
    """A run of 4 ranks of zeros, 32 MiB a layer and whole tensor, that takes no room on the disk."""
    layouts = {}
    for layer in range(layers):
        layouts[f"{layer}.column"] = Layout((2, 2), ((0,), ()), 2, 2)
        layouts[f"{layer}.row"] = Layout((2, 2), ((), (0,)), 2, 2)
    for rank in range(4):
        (folder / f"rank_{rank}").mkdir(parents=True)
        with open(folder / f"rank_{rank}/a.safetensors", "wb") as file:
            header, end = {}, 0
            for name, layout in layouts.items():
                shape = layout.local_shape((4096, 4096))
                assert shape is not None
                size = 2 * shape[0] * shape[1]
                header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + size]}
                end += size
            text = json.dumps(header).encode()
            file.write(len(text).to_bytes(8, "little") + text)
            file.truncate(8 + len(text) + end)
    write_strategy(Strategy((layouts,), 4), folder / "strategy")
    return folder


def test_memory_does_not_grow_with_the_model(tmp_path: Path) -> None:
    peaks = []
    for layers in (2, 8):
        run, out = sparse_run(tmp_path / f"run-{layers}", layers), tmp_path / f"{layers}.ckpt"
        done = python(MEMORY, run, out)
        assert done.returncode == 0, done.stderr
        before, peak = map(int, done.stdout.split())
        assert out.stat().st_size > 67e6 * layers
        out.unlink()
        peaks.append(peak - before)
    assert peaks[0] < 120e6, peaks
    assert peaks[1] - peaks[0] < 30e6, peaks


FUZZ = """
import json, random, resource, signal, sys
from pathlib import Path
from tengtune.ui.problems import Problem
from tengtune.weights.shard import open_file
from tengtune.weights.strategy import read_strategy

count, folder, goldens = int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
resource.setrlimit(resource.RLIMIT_AS, (2**31, 2**31))  # half of it is the interpreter's own address space

def too_long(*_):
    raise TimeoutError
signal.signal(signal.SIGPROF, too_long)  # processor time: the machine may be busy

NUMBERS = (b"\\xff" * 9 + b"\\x01", b"\\xff\\xff\\xff\\xff\\x07", b"\\x00", b"\\x80" * 9)

def mutated(random, raw):
    "Flip, cut, repeat, insert, or put a number that means much into a few places, most of them early."
    data = bytearray(raw)
    for _ in range(random.choice((1, 1, 2, 4, 16))):
        at = min(random.randrange(len(data) + 1), random.randrange(len(data) + 1))
        kind = random.randrange(6)
        if kind == 0 and data:
            data[at % len(data)] ^= 1 << random.randrange(8)
        elif kind == 1:
            data[at:] = b"" if random.random() < 0.2 else data[at + random.randrange(4) :]
        elif kind == 2:
            data[at:at] = data[at : at + random.randrange(1, 60)]
        elif kind == 3:
            data[at:at] = random.randbytes(random.randrange(1, 9))
        elif kind == 4:
            data[at : at + 1] = random.choice(NUMBERS)
        elif data:
            data[at % len(data)] = random.choice((0, 1, 0x0A, 0x12, 0x1A, 0x08, 0x7F, 0x80, 0xFF))
    return bytes(data)

def read(path):
    "Everything that a file promises is there."
    if "strategy" in path.name:
        strategy = read_strategy(path)
        strategy.describe()
        return
    for tensor in open_file(path).values():
        (tensor[:] if tensor.shape else tensor).tobytes()

files = [p for folder in ("ckpt", "strategy") for p in sorted((goldens / folder).rglob("*.*"))]
sources = [p for p in files if p.suffix in (".ckpt", ".safetensors", ".json") and p.name != "index.json"]
tally = {"value": 0}
for number in range(count):
    chance = random.Random(number)
    source = chance.choice(sources)
    path = folder / ("strategy" + source.suffix if "strategy" in source.name else "file" + source.suffix)
    path.write_bytes(mutated(chance, source.read_bytes()))
    signal.setitimer(signal.ITIMER_PROF, 5)
    try:
        read(path)
        tally["value"] += 1
    except Problem as problem:
        problem.texts()
        tally[problem.code] = tally.get(problem.code, 0) + 1
    except BaseException:
        print("case", number, source, file=sys.stderr)
        raise
    signal.setitimer(signal.ITIMER_PROF, 0)
assert {p.stem for p in folder.iterdir()} == {"strategy", "file"}
# VmHWM is this process's own; ru_maxrss would also count the test runner it was forked from.
high = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
tally["peak"] = int(high.split()[1]) * 1024
print(json.dumps(tally))
"""


@pytest.mark.parametrize("count", [2000, pytest.param(20_000, marks=pytest.mark.soak)])
def test_any_bytes_are_a_problem_or_a_value(tmp_path: Path, count: int) -> None:
    goldens = Path(__file__).parents[1] / "golden"
    done = python(FUZZ, count, tmp_path, goldens)
    assert done.returncode == 0, done.stderr[-3000:]
    tally = json.loads(done.stdout)
    assert tally.pop("peak") < 1e9
    assert sum(tally.values()) == count
    codes = {
        "ckpt.bad_record",
        "ckpt.truncated",
        "weights.bad_tensor",
        "strategy.not_strategy",
        "strategy.bad_layout",
    }
    assert codes <= tally.keys()
    assert tally["value"] > count / 50
