"""Joining the shards of 8 ranks: tengtune beside mindspore.transform_checkpoints and a copy of the result.

    python bench/merge.py [--gb 0.5 1 2] [--repeat 3] [--dir .]

A float16 model of random bits is cut for 4-way tensor parallelism with optimizer sharding over 2: half of its
matrices by column, half by row (which costs most to undo), all once more by the optimizer.
Every measurement is a fresh process; in each round cp, ours and MindSpore's take turns. Memory is the peak
of anonymous RSS while joining, without the framework's own. Ours and cp end with fsync, MindSpore's does not.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
from pathlib import Path

import numpy as np
from process import COPY, measure

from tengtune.weights import ckpt_io, safetensors_io
from tengtune.weights.layout import Layout
from tengtune.weights.shard import open_file, split_streams, write_split
from tengtune.weights.strategy import Strategy, write_merged
from tengtune.weights.stream import stream

HIDDEN = 4096
OURS = (
    "from tengtune.weights.shard import merged_streams, open_shards, write_whole",
    "write_whole(merged_streams(open_shards(Path(sys.argv[1]), Path(sys.argv[2]))), Path(sys.argv[3]))",
)
PEER = (
    "import mindspore",
    """
kind = sys.argv[4]
mindspore.transform_checkpoints(sys.argv[1], sys.argv[3], "whole", sys.argv[2], None, output_format=kind)
""",
)


def make_run(folder: Path, gigabytes: float, kind: str) -> tuple[Path, Path, Path]:
    """The whole model, its rank folders and the merged strategy file."""
    count = max(2, round(gigabytes * 1e9 / (HIDDEN * HIDDEN * 2)))
    names = [f"layers.{i}.{'wo' if i % 2 else 'wq'}.weight" for i in range(count)]
    column, row = Layout((2, 4), ((0,), ()), 4, 2), Layout((2, 4), ((), (0,)), 4, 2)
    layouts = {name: row if ".wo." in name else column for name in names}
    bits = np.random.default_rng(0).integers(0, 0x7C00, (HIDDEN, HIDDEN), np.uint16).view(np.float16)
    module = ckpt_io if kind == "ckpt" else safetensors_io
    whole = folder / f"whole.{kind}"
    module.write_file(whole, [stream(name, bits) for name in names])
    strategy = Strategy((layouts,), 8)
    write_split(split_streams(open_file(whole), strategy), strategy, folder / "ranks", f".{kind}")
    write_merged(strategy, folder / "strategy.ckpt")
    return whole, folder / "ranks", folder / "strategy.ckpt"


def compare(folder: Path, gigabytes: float, kind: str, repeat: int) -> None:
    whole, ranks, strategy = make_run(folder, gigabytes, kind)
    size = whole.stat().st_size
    times: dict[str, list[float]] = {"cp": [], "ours": [], "peer": []}
    peaks: dict[str, int] = {}
    for _ in range(repeat):
        out = folder / f"out.{kind}"
        for who, script, arguments in (
            ("cp", COPY, (whole, out)),
            ("ours", OURS, (ranks, strategy, out)),
            ("peer", PEER, (ranks, strategy, folder / "peer", kind)),
        ):
            seconds, _, peak = measure(script, *arguments)
            times[who].append(seconds)
            peaks[who] = max(peak, peaks.get(who, 0))
            if who == "ours":
                check(whole, out)
            out.unlink(missing_ok=True)
            shutil.rmtree(folder / "peer", ignore_errors=True)
    cp, ours, peer = (statistics.median(times[who]) for who in ("cp", "ours", "peer"))
    memory, theirs = peaks["ours"] / 1e6, peaks["peer"] / 1e6
    print(
        f"{kind:<11} {size / 1e9:5.2f} GB   cp {cp:6.2f} s   ours {ours:6.2f} s {memory:5.0f} MB"
        f"   transform_checkpoints {peer:6.2f} s {theirs:6.0f} MB"
        f"   speed: {cp / ours:.2f} of cp, {peer / ours:.1f} x MindSpore"
        f"   memory: 1/{theirs / max(1.0, memory):.0f} of MindSpore",
        flush=True,
    )


def check(whole: Path, joined: Path) -> None:
    """The joined model must be the one that was cut."""
    source, result = open_file(whole), open_file(joined)
    if source.keys() != result.keys() or any(
        not np.array_equal(source[name][:].view("u2"), result[name][:].view("u2")) for name in source
    ):
        raise SystemExit("the joined model is not the one that was cut")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gb", type=float, nargs="+", default=[0.5, 1, 2])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--dir", type=Path, default=Path())
    options = parser.parse_args()
    for kind in ("ckpt", "safetensors"):
        for gigabytes in options.gb:
            with tempfile.TemporaryDirectory(dir=options.dir) as folder:
                compare(Path(folder), gigabytes, kind, options.repeat)


if __name__ == "__main__":
    main()
