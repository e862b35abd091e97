"""Starting ranks: tengtune's supervisor beside bare torchrun; and what a second rank brings.

    python bench/launch.py [--repeat 3] [--steps 40]

Start-up is a data parallel training of one step on a tiny model (data ready), against torchrun with as many
processes that only import torch, meet over gloo and sum one number. Scaling is trained tokens per second of 2
ranks with one thread each beside 1 rank with one and with two threads, on a model of 20 million parameters.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.tiny import tiny_model, tiny_tokenizer

RUN = """
model: model
data: {{files: data.json, seq_len: 256, heldout: 0}}
train: {{max_steps: {steps}, global_batch: 8}}
"""
MEET = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
dist.destroy_process_group()
"""
SHAPE = {"hidden_size": 512, "num_hidden_layers": 6, "num_attention_heads": 8, "intermediate_size": 1408}


def run(folder: Path, command: list[str], **environment: str) -> float:
    """Wall-clock seconds of a command that must end well."""
    start = time.perf_counter()
    subprocess.run(
        command, cwd=folder, env={**os.environ, **environment}, stdout=subprocess.DEVNULL, check=True
    )
    return time.perf_counter() - start


def project(folder: Path, steps: int, **shape: int) -> None:
    tiny_tokenizer(tiny_model(folder / "model", **shape))
    records = [{"instruction": f"question {n}", "output": "word " * 150} for n in range(200)]
    (folder / "data.json").write_text(json.dumps(records))
    (folder / "run.yaml").write_text(RUN.format(steps=steps))
    (folder / "meet.py").write_text(MEET)


def train(folder: Path, name: str, ranks: int, threads: int) -> tuple[float, float]:
    """Seconds in all, and trained tokens per second of the training alone."""
    options = ["-s", f"name={name}", "-s", f"parallel.ranks={ranks}", "--force", "--resume", "never", "-q"]
    tengtune = [sys.executable, "-m", "tengtune"]
    subprocess.run(
        [*tengtune, "data", "run.yaml", "-s", f"name={name}", "-q"], cwd=folder, capture_output=True
    )
    took = run(folder, [*tengtune, "train", "run.yaml", *options], OMP_NUM_THREADS=str(threads))
    figures = json.loads((folder / "runs" / name / "train.json").read_text())["figures"]
    return took, figures["tokens_per_s"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "meet.py"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        project(folder, 1)
        bare = statistics.median(run(folder, torchrun) for _ in range(options.repeat))
        ours = statistics.median(train(folder, "two", 2, 1)[0] for _ in range(options.repeat))
        one = statistics.median(train(folder, "one", 1, 1)[0] for _ in range(options.repeat))
        print(f"torchrun, 2 ranks that only meet      {bare:6.2f} s")
        print(f"tengtune, 2 ranks, one step           {ours:6.2f} s")
        print(f"tengtune, 1 rank, one step            {one:6.2f} s", flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        project(folder, options.steps, **SHAPE)
        for title, ranks, threads in (
            ("1 rank, 1 thread", 1, 1),
            ("1 rank, 2 threads", 1, 2),
            ("2 ranks, 1 thread each", 2, 1),
        ):
            speeds = [train(folder, f"r{ranks}t{threads}", ranks, threads)[1] for _ in range(options.repeat)]
            print(f"{title:<28}{statistics.median(speeds):8.0f} trained tokens/s", flush=True)


if __name__ == "__main__":
    main()
