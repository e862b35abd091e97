"""Converting: killed anywhere, on a full disk, at flat memory; damaged and arbitrary input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.fault_lab import KILLED_ANYWHERE, python
from tests.fault_lab import small_disk as small_disk
from tests.qwen1 import to_qwen1
from tests.tiny import tiny_config, tiny_model

from tengtune.cli.main import main
from tengtune.ui.problems import Problem
from tengtune.weights.convert import open_conversion
from tengtune.weights.found import open_found

KILLER = (
    KILLED_ANYWHERE
    + """
import sys
from pathlib import Path
from tengtune.weights.convert import open_conversion, write_conversion
from tengtune.weights.found import open_found

source, out, to = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
killed_anywhere(
    lambda advance: write_conversion(open_conversion(open_found(source), to), out, 200_000, advance), out
)
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
main(["convert", "--json", *sys.argv[2:]])
"""

MEMORY = """
import sys
from pathlib import Path
from tengtune.memory import PeakMemory, anonymous_bytes
from tengtune.weights.convert import open_conversion, write_conversion
from tengtune.weights.found import open_found

before = anonymous_bytes()
with PeakMemory(interval_s=0.005) as peak:
    layout, dtype = (None if text == "-" else text for text in sys.argv[4:6])
    job = open_conversion(open_found(Path(sys.argv[1])), sys.argv[3], layout, dtype)
    write_conversion(job, Path(sys.argv[2]))
print(before, peak.bytes)
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """478 kB in float32."""
    return to_qwen1(tiny_model(tmp_path / "shape", num_key_value_heads=4), tmp_path / "model")


@pytest.mark.parametrize("to", ["mindspore", "mindspore-safetensors", "hf"])
def test_killed_anywhere(tmp_path: Path, model: Path, to: str) -> None:
    out = tmp_path / "run" / "out"
    out.parent.mkdir()
    done = python(KILLER, model, out, to)
    assert done.returncode == 0, done.stderr
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert len(rows) > 10
    assert [row[1] for row in rows] == ["9"] * (len(rows) - 1) + ["0"]
    whole = rows[-1][2]
    assert {row[2] for row in rows[:-1]} <= {"None", whole}
    assert rows[0][2] == "None"
    for row in rows[:-1]:
        left = json.loads(row[3].replace("'", '"'))
        assert all(entry == "out" or entry.endswith(".partial") for entry in left)
    assert rows[-1][3] == "['out']"  # the last one went through and swept up what the killed ones left
    with pytest.raises(SystemExit) as ended:
        main(["weights", "diff", str(model), str(out), "--quiet"])
    assert ended.value.code == 0


@pytest.mark.parametrize("way", ["foreseen", "unforeseen", "limited"])
@pytest.mark.parametrize("to", ["mindspore", "hf"])
def test_a_full_disk(tmp_path: Path, model: Path, small_disk: Path | None, way: str, to: str) -> None:
    """The disk has 400 kB; the model needs 478 kB."""
    if small_disk is None or way == "limited":
        way, folder = "limited", tmp_path / "run"
        folder.mkdir()
    else:
        folder = small_disk
    done = python(FULL_DISK, way, model, folder / "out", "--to", to)
    assert done.returncode == 3, done.stderr
    problem = json.loads(done.stdout.splitlines()[-1])
    assert problem["problem"] == ("convert.no_space" if way == "foreseen" else "io.no_space")
    assert list(folder.iterdir()) == []
    assert "Traceback" not in done.stderr


def sparse_model(folder: Path, layers: int) -> Path:
    """A model of zeros in bfloat16 that takes no room on the disk: 50 MiB a layer, GQA."""
    from tengtune.models.spec import from_config

    config = tiny_config(
        hidden_size=2048,
        num_hidden_layers=layers,
        num_attention_heads=16,
        num_key_value_heads=4,
        intermediate_size=2560,
        vocab_size=1024,
    )
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    header, end = {}, 0
    for name, shape in from_config(config).tensors():
        size = 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
    return folder


@pytest.mark.parametrize(
    ("to", "layout", "dtype"),
    [("mindspore", "-", "-"), ("mindspore-safetensors", "qkv-concat", "-"), ("hf", "-", "float16")],
)
def test_memory_does_not_grow_with_the_model(tmp_path: Path, to: str, layout: str, dtype: str) -> None:
    peaks = []
    for layers in (1, 4):
        source, out = sparse_model(tmp_path / f"model-{layers}", layers), tmp_path / f"out-{layers}"
        done = python(MEMORY, source, out, to, layout, dtype)
        assert done.returncode == 0, done.stderr
        before, peak = map(int, done.stdout.split())
        assert sum(f.stat().st_size for f in out.iterdir()) > 45e6 * layers
        peaks.append(peak - before)
    assert peaks[0] < 120e6, peaks
    assert peaks[1] - peaks[0] < 30e6, peaks


def test_a_flipped_bit_in_the_structure_is_seen(tmp_path: Path, model: Path) -> None:
    """Every bit of what stands before a tensor's values in a .ckpt: lengths, name, shape, type."""
    with pytest.raises(SystemExit):
        main(["convert", str(model), str(tmp_path / "ms"), "--to", "mindspore", "--quiet"])
    path = tmp_path / "ms/model.ckpt"
    raw, name = path.read_bytes(), b"transformer.layers.1.attention.wk.weight"
    values = raw.index(b"Float32\x1a", raw.index(name)) + 11  # three bytes of length follow
    begin = raw.index(name) - 6
    for bit in range(8 * begin, 8 * values):
        data = bytearray(raw)
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
        with pytest.raises(Problem) as caught:
            open_conversion(open_found(path.parent), "hf")
        assert caught.value.texts()


FUZZ = """
import json, random, resource, shutil, signal, sys
from pathlib import Path
from tengtune.ui.problems import Problem
from tengtune.steps.convert import open_job
from tengtune.weights.found import open_found
from tengtune.weights.look import describe

count, seeds, place = int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
resource.setrlimit(resource.RLIMIT_AS, (2**31, 2**31))  # half of it is the interpreter's own address space

def too_long(*_):
    raise TimeoutError
signal.signal(signal.SIGALRM, too_long)
WORDS = ('null', '-1', '1e999', '[]', '{}', '""', '"../x"', '"mcore"', 'true', '9' * 20, '"\\\\u0000"')

def mutated(chance, raw):
    data = bytearray(raw)
    for _ in range(chance.choice((1, 1, 2, 6))):
        at = min(chance.randrange(len(data) + 1), chance.randrange(len(data) + 1))
        kind = chance.randrange(5)
        if kind == 0 and data:
            data[at % len(data)] ^= 1 << chance.randrange(8)
        elif kind == 1:
            data[at:] = data[at + chance.randrange(4) :]
        elif kind == 2:
            data[at:at] = data[at : at + chance.randrange(1, 60)]
        elif kind == 3:
            data[at:at] = chance.randbytes(chance.randrange(1, 9))
        else:
            end = data.find(b",", at)
            data[at : end if at < end < at + 40 else at] = chance.choice(WORDS).encode()
    return bytes(data)

tally = {"value": 0}
for number in range(count):
    chance = random.Random(number)
    seed = chance.choice(sorted(seeds.iterdir()))
    folder = place / "folder"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(seed, folder)
    victim = chance.choice([p for p in sorted(folder.iterdir()) if p.suffix != ".yaml"])
    victim.write_bytes(mutated(chance, victim.read_bytes()))
    signal.setitimer(signal.ITIMER_REAL, 5)
    try:
        describe(open_found(folder))
        job = open_job(folder, chance.choice(("hf", "mindspore")))
        for rows in job.tensors.values():
            rows[:1].tobytes()
        tally["value"] += 1
    except Problem as problem:
        problem.texts()
        tally[problem.code] = tally.get(problem.code, 0) + 1
    except BaseException:
        print("case", number, seed, victim.name, file=sys.stderr)
        raise
    signal.setitimer(signal.ITIMER_REAL, 0)
assert [p.name for p in place.iterdir()] == ["folder"]
# VmHWM is this process's own; ru_maxrss would also count the test runner it was forked from.
high = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
tally["peak"] = int(high.split()[1]) * 1024
print(json.dumps(tally))
"""


@pytest.mark.parametrize("count", [250, pytest.param(10_000, marks=pytest.mark.soak)])
def test_any_bytes_are_a_problem_or_a_model(tmp_path: Path, count: int) -> None:
    """Folders of every kind with one file mutated: config, index, record, adapter, header."""
    small = {"hidden_size": 16, "vocab_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    model = tiny_model(tmp_path / "model", **small)
    seeds = tmp_path / "seeds"
    seeds.mkdir()
    for number, arguments in enumerate(
        (
            ["--to", "mindspore"],
            ["--to", "mindspore-safetensors", "--shard-size", "1KB"],
            ["--to", "hf", "--shard-size", "1KB"],
        )
    ):
        with pytest.raises(SystemExit) as ended:
            main(["convert", str(model), str(seeds / str(number)), *arguments, "--quiet"])
        assert ended.value.code == 0
    adapter(seeds / "adapter")
    with pytest.raises(SystemExit) as ended:
        main(["convert", str(seeds / "adapter"), str(seeds / "lora"), "--to", "mindspore", "--quiet"])
    assert ended.value.code == 0
    (tmp_path / "place").mkdir()
    done = python(FUZZ, count, seeds, tmp_path / "place")
    assert done.returncode == 0, done.stderr[-3000:]
    tally = json.loads(done.stdout)
    assert tally.pop("peak") < 1e9
    assert sum(tally.values()) == count
    assert {"weights.bad_index", "ckpt.bad_record", "adapter.bad_json", "convert.bad_record"} <= tally.keys()
    assert tally["value"] > count / 50


def adapter(folder: Path) -> None:
    """A small PEFT folder."""
    import numpy as np

    from tengtune.weights.adapter import write_adapter

    name = "model.layers.0.self_attn.q_proj"
    tensors = {
        f"{name}.lora_A.weight": np.ones((2, 16), "f4"),
        f"{name}.lora_B.weight": np.ones((16, 2), "f4"),
    }
    write_adapter(folder, tensors, rank=2, alpha=4, targets=["q_proj"], base="x")
