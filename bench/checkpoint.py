"""What checkpoints cost a training: the time it waits for them beside the time of its steps.

    python bench/checkpoint.py MODEL DATA.json [--steps 100] [--every 50] [--seq-len 256]

A LoRA training of rank 8 on all linears, one row a step, as `tengtune train` does it, with a checkpoint every
so many steps; beside it the bare writing and fsync of as many bytes, which is what the disk asks.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RUN = """
name: bench
model: {model}
data: {{files: [{data}], seq_len: {seq_len}}}
train: {{method: lora, global_batch: 1, max_steps: {steps}, save_every: {every}}}
lora: {{rank: 8}}
output: {{dir: .}}
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("data", type=Path)
    for name, default in (("steps", 100), ("every", 50), ("seq-len", 256)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=".") as name:
        folder = Path(name)
        values = {**vars(args), "model": args.model.resolve(), "data": args.data.resolve()}
        (folder / "run.yaml").write_text(RUN.format(**values))
        command = [sys.executable, "-m", "tengtune", "train", "run.yaml"]
        subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
        run = folder / "bench"
        figures = json.loads((run / "train.json").read_text())["figures"]
        newest = max((run / "checkpoints").iterdir(), key=lambda each: each.stat().st_mtime)
        size = sum(file.stat().st_size for file in newest.rglob("*") if file.is_file())
        bare = written(folder / "bare", size)
    saves = args.steps // args.every
    training = figures["trained_tokens"] / figures["tokens_per_s"]
    stall = figures["saving_seconds"] / saves
    print(f"one checkpoint: {size / 1e6:.1f} MB; bare writing and fsync of it {1000 * bare:.0f} ms")
    print(f"{args.steps} steps in {training:.1f} s, {1000 * training / args.steps:.0f} ms each")
    print(f"{saves} saves: waited {1000 * stall:.0f} ms each, {figures['saving_seconds'] / training:.2%}")


def written(path: Path, size: int) -> float:
    """Seconds to write and fsync so many bytes."""
    data = os.urandom(size)
    start = time.perf_counter()
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
