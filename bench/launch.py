"""Starting ranks: tengtune's supervisor beside bare torchrun; and what a second rank brings.

    python bench/launch.py [MODEL DATA.json] [--repeat 3] [--steps 20]

Start-up is a data parallel training of one step on a tiny model (data ready), against torchrun with as many
processes that only import torch, meet over gloo and sum one number. Scaling is trained tokens per second of 2
ranks with one thread each beside 1 rank with one and with two threads, on a model of 20 million parameters.
With MODEL and DATA (an Alpaca file): LoRA of rank 8 on packed rows of 1024 with 1 and 2 ranks of one thread,
beside transformers' Trainer + peft on the same rows, under torchrun for 2 ranks.
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
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.tiny import tiny_model, tiny_tokenizer

RUN = """
model: model
data: {{files: data.json, seq_len: 256, heldout: 0}}
train: {{max_steps: {steps}, global_batch: 8}}
"""
PEER_RUN = """
model: {model}
data: {{files: {data}, seq_len: 1024, heldout: 0, policy: qwen}}
train: {{epochs: 1, global_batch: 2}}
"""
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
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


def project(folder: Path, steps: int, **shape: Any) -> None:
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


def start_up(repeat: int) -> None:
    """How long it takes until ranks work."""
    torchrun = [*TORCHRUN, "meet.py"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        project(folder, 1)
        bare = statistics.median(run(folder, torchrun) for _ in range(repeat))
        ours = statistics.median(train(folder, "two", 2, 1)[0] for _ in range(repeat))
        one = statistics.median(train(folder, "one", 1, 1)[0] for _ in range(repeat))
    print(f"torchrun, 2 ranks that only meet      {bare:6.2f} s")
    print(f"tengtune, 2 ranks, one step           {ours:6.2f} s")
    print(f"tengtune, 1 rank, one step            {one:6.2f} s", flush=True)


def scaling(steps: int, repeat: int) -> None:
    """What a second rank brings on a small model."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        project(folder, steps, **SHAPE)
        for title, ranks, threads in (
            ("1 rank, 1 thread", 1, 1),
            ("1 rank, 2 threads", 1, 2),
            ("2 ranks, 1 thread each", 2, 1),
        ):
            speeds = [train(folder, f"r{ranks}t{threads}", ranks, threads)[1] for _ in range(repeat)]
            print(f"{title:<28}{statistics.median(speeds):8.0f} trained tokens/s", flush=True)


def beside_a_peer(model: Path, data: Path, repeat: int) -> None:
    """Ours and the Trainer's trained tokens a second with 1 and 2 ranks of one thread, taken in turn."""
    speeds: dict[tuple[str, int], list[float]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "run.yaml").write_text(PEER_RUN.format(model=model.resolve(), data=data.resolve()))
        for _ in range(repeat):
            for ranks in (1, 2):
                ours = train(folder, f"r{ranks}", ranks, 1)[1]
                speeds.setdefault(("tengtune", ranks), []).append(ours)
                theirs = trainer(folder, model.resolve(), data.resolve(), ranks)
                speeds.setdefault(("Trainer + peft", ranks), []).append(theirs)
    for who in ("tengtune", "Trainer + peft"):
        one, two = (statistics.median(speeds[who, ranks]) for ranks in (1, 2))
        print(
            f"{who:<18}1 rank {one:6.0f}, 2 ranks {two:6.0f} trained tokens/s, {two / one:.2f}x", flush=True
        )


def trainer(folder: Path, model: Path, data: Path, ranks: int) -> float:
    """Trained tokens a second of all ranks of the peer together."""
    script = str(Path(__file__).with_name("train_peers.py"))
    arguments = [script, "trainer", str(model), str(data), "result.json", "--threads", "1"]
    start = [sys.executable] if ranks == 1 else TORCHRUN
    run(folder, [*start, *arguments], OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1")
    names = ["result.json", *(f"result.json.{rank}" for rank in range(1, ranks))]
    found = [json.loads((folder / name).read_text()) for name in names]
    tokens, seconds = ([float(each[key]) for each in found] for key in ("trained_tokens", "seconds"))
    return sum(tokens) / max(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("data", type=Path, nargs="?")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    if options.data:
        beside_a_peer(options.model, options.data, options.repeat)
    else:
        start_up(options.repeat)
        scaling(options.steps, options.repeat)


if __name__ == "__main__":
    main()
