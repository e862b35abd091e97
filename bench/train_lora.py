"""LoRA fine-tuning on a CPU: tengtune beside transformers.Trainer + peft and LLaMA-Factory, and beside
the machine's own limit, all in one run.

    python bench/train_lora.py MODEL DATA.json [--peers DIR] [--repeat 3] [--threads 2]

MODEL is a Qwen2 folder with tokenizer.json, DATA an Alpaca file. The job: rank 8 on all linears, rows of
--cutoff tokens, one epoch, a step per packed row (unpacked: per --batch documents), float32 unless said.
Each contender is a fresh process; rounds go through all of them in turn, and medians are printed, so that
another load on the machine falls on everyone alike. DIR holds environments named after their peer
(`llamafactory`); a contender without its environment is left out. Memory is anonymous RSS.
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
from collections.abc import Callable
from pathlib import Path

import torch
from train_rows import Document, read, useful_flops

from tengtune.models import spec as specs

HERE = Path(__file__).resolve().parent
CONTENDERS = {
    "tengtune": ["train_ours.py"],
    "tengtune bf16": ["train_ours.py", "--dtype", "bfloat16"],
    "Trainer packed": ["train_peers.py", "trainer", "--rows", "packed"],
    "Trainer packed bf16": ["train_peers.py", "trainer", "--rows", "packed", "--dtype", "bfloat16"],
    "Trainer dynamic": ["train_peers.py", "trainer", "--rows", "dynamic"],
    "Trainer padded": ["train_peers.py", "trainer", "--rows", "padded"],
    "LLaMA-Factory packed": ["train_peers.py", "llamafactory", "--rows", "packed"],
    "LLaMA-Factory dynamic": ["train_peers.py", "llamafactory", "--rows", "dynamic"],
}
RIVAL = "Trainer packed"
"""The fastest peer: everything is given as a ratio to it."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--peers", type=Path, help="folder with the peers' environments")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=int, default=4, help="documents a step where rows are not packed")
    parser.add_argument("--cutoff", type=int, default=1024)
    parser.add_argument("--only", action="append", choices=list(CONTENDERS), help="repeatable")
    args = parser.parse_args()
    chosen = {name: CONTENDERS[name] for name in args.only or CONTENDERS}
    if args.peers is None:
        chosen = {name: parts for name, parts in chosen.items() if "llamafactory" not in parts}

    documents = read(args.model, args.data, args.cutoff)
    spec = specs.from_folder(args.model)
    results: dict[str, list[dict[str, float]]] = {name: [] for name in chosen}
    peaks: dict[str, list[float]] = {"float32": [], "bfloat16": []}
    for round_ in range(args.repeat):
        for dtype, found in peaks.items():
            found.append(matmul_peak(getattr(torch, dtype), args.threads))
        for name, parts in chosen.items():
            result = run(parts, args)
            results[name].append(result)
            print(f"round {round_ + 1} {name}: {json.dumps(result)}", file=sys.stderr, flush=True)
    report(spec, documents, results, {k: statistics.median(v) for k, v in peaks.items()})


def run(parts: list[str], args: argparse.Namespace) -> dict[str, float]:
    """One contender in a fresh process; its own chatter is shown only if it fails."""
    script, *options = parts
    interpreter, positional = sys.executable, []
    if script == "train_peers.py":
        positional, options = options[:1], [*options[1:], "--batch", str(args.batch)]
        if positional == ["llamafactory"]:
            interpreter = str(args.peers / "llamafactory" / "bin" / "python")
    with tempfile.TemporaryDirectory() as place:
        result = Path(place) / "result.json"
        common = ["--cutoff", str(args.cutoff), "--threads", str(args.threads)]
        command = [interpreter, str(HERE / script), *positional, str(args.model.resolve())]
        command += [str(args.data.resolve()), str(result), *options, *common]
        environment = {
            **os.environ,
            "PYTHONPATH": str(HERE.parent / "src"),
            "OMP_NUM_THREADS": str(args.threads),
            "HF_HUB_OFFLINE": "1",
            "HF_DATASETS_CACHE": place,
        }
        done = subprocess.run(
            command, env=environment, cwd=place, capture_output=True, text=True, check=False
        )
        if done.returncode:
            sys.exit(f"{' '.join(parts)} failed:\n{(done.stdout + done.stderr)[-3000:]}")
        found: dict[str, float] = json.loads(result.read_text())
        return found


def matmul_peak(dtype: torch.dtype, threads: int) -> float:
    """The better of a square product and a linear of a block's shape, in GFLOP per CPU second."""
    torch.set_num_threads(threads)
    square, row, weight = (torch.ones(s, dtype=dtype) for s in ((2048, 2048), (1024, 512), (2816, 512)))
    return max(
        _rate(lambda: torch.mm(square, square), 2 * 2048**3),
        _rate(lambda: torch.nn.functional.linear(row, weight), 2 * 1024 * 512 * 2816),
    )


def _rate(product: Callable[[], torch.Tensor], flops: float) -> float:
    product()
    count, start = 0, time.process_time()
    while (spent := time.process_time() - start) < 1.0:
        product()
        count += 1
    return count * flops / spent / 1e9


def report(
    spec: specs.ModelSpec,
    documents: list[Document],
    results: dict[str, list[dict[str, float]]],
    peaks: dict[str, float],
) -> None:
    """The table: medians, ratios to the rival, and fractions of the matmul peak."""
    flops = useful_flops(spec, documents, rank=8)
    rows = {
        name: {key: statistics.median(r[key] for r in runs) for key in runs[0]}
        for name, runs in results.items()
    }

    def memory(row: dict[str, float]) -> float:
        return row["peak_bytes"] - row["loaded_bytes"]

    rival = rows.get(RIVAL)
    print("matmul peak, GFLOP per CPU second: " + ", ".join(f"{k} {v:.1f}" for k, v in peaks.items()))
    print(f"{len(documents)} documents, {sum(len(d.ids) for d in documents)} tokens; medians of the rounds")
    head = (
        "trained tok/s",
        "tok/CPU-s",
        "of peak",
        "MB above load",
        "speed",
        "CPU speed",
        "memory",
        "mean loss",
    )
    print(f"{'':24}" + "".join(f"{title:>14}" for title in head))
    for name, row in rows.items():
        peak = peaks["bfloat16" if "bf16" in name else "float32"]
        cells = [
            f"{row['trained_tokens'] / row['seconds']:.0f}",
            f"{row['trained_tokens'] / row['cpu_s']:.0f}",
            f"{flops / row['cpu_s'] / 1e9 / peak:.3f}",
            f"{memory(row) / 1e6:.0f}",
        ]
        if rival is not None:
            cells += [
                f"{rival['seconds'] / row['seconds']:.2f}x",
                f"{rival['cpu_s'] / row['cpu_s']:.2f}x",
                f"{memory(row) / memory(rival):.2f}x",
            ]
        else:
            cells += ["-"] * 3
        print(f"{name:24}" + "".join(f"{cell:>14}" for cell in [*cells, f"{row['loss']:.4f}"]))


if __name__ == "__main__":
    main()
