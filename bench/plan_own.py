"""How far `tengtune plan`'s sum is from what our own back ends take on a CPU.

    python bench/plan_own.py [--dir .] [NAME ...]

Each run is `tengtune train` in a process of its own, one optimizer step (three on MindSpore, whose pool grows
still in the second) on a random Qwen2-shaped model with
rows that are full. Measured is by how much the anonymous memory (RssAnon, every 20 ms) of the process that
trains rises above what it had before the model was loaded, of several ranks the largest; planned is what the
step said before it began. Both stand in its record. NAME: only these runs.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.tiny import CORPUS, tiny_model, tiny_tokenizer

DEEP = {
    "hidden_size": 512,
    "num_hidden_layers": 12,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 2048,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
}
FLAT = {**DEEP, "num_hidden_layers": 2, "vocab_size": 8192}
WIDE = {
    **DEEP,
    "hidden_size": 1024,
    "num_hidden_layers": 2,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
}
HEAD = {**DEEP, "num_hidden_layers": 2, "vocab_size": 151936, "tie": True}


@dataclass(frozen=True)
class Run:
    """A training: the model's shape, rows and their length, and keys of the run file's groups."""

    name: str
    shape: dict[str, Any]
    seq_len: int
    micro_batch: int = 1
    micro_batches: int = 1
    ranks: int = 1
    backend: str = "torch"
    train: dict[str, Any] = field(default_factory=dict)
    lora: dict[str, Any] = field(default_factory=dict)


FULL, RECOMPUTE = {"method": "full"}, {"recompute": "full"}
RUNS = [
    Run("lora", DEEP, 2048),
    Run("lora, short rows", DEEP, 512, micro_batch=4),
    Run("lora, recompute", FLAT, 2048, micro_batch=8, train=RECOMPUTE),
    Run("lora, widened base", {**DEEP, "dtype": "bfloat16"}, 2048),
    Run("lora, trained head", WIDE, 512, lora={"rank": 64, "train_embeddings": True}),
    Run("lora, two ranks", DEEP, 1536, ranks=2),
    Run("full", WIDE, 256, train=FULL),
    Run("full, long rows", {**DEEP, "num_hidden_layers": 8}, 2048, train=FULL),
    Run("full, two micro batches", WIDE, 512, micro_batches=2, train=FULL),
    Run("full, recompute", WIDE, 512, micro_batch=2, micro_batches=2, train={**FULL, **RECOMPUTE}),
    Run("full, tied head", HEAD, 256, micro_batches=2, train=FULL),
    Run("full, two ranks", WIDE, 256, ranks=2, train=FULL),
    Run("mindspore, lora", FLAT, 1024, micro_batch=2, backend="mindspore"),
    Run("mindspore, lora, long rows", FLAT, 1536, backend="mindspore"),
    Run("mindspore, full", WIDE, 128, micro_batches=2, backend="mindspore", train=FULL),
    Run("mindspore, full, two ranks", WIDE, 128, ranks=2, backend="mindspore", train=FULL),
]


def trained(run: Run, folder: Path) -> tuple[list[int], int]:
    """What was planned (low, expected, high) and what was measured, in bytes."""
    shape = dict(run.shape)
    tiny_tokenizer(tiny_model(folder / "model", dtype=shape.pop("dtype", "float32"), **shape))
    steps = 1 if run.backend == "torch" else 3
    rows = run.micro_batch * run.micro_batches * run.ranks
    long = " ".join(CORPUS) * (run.seq_len // 50)  # cut at the row's length
    lines = [json.dumps({"instruction": f"{number}", "output": long}) for number in range(rows)]
    (folder / "data.jsonl").write_text("\n".join(lines), "utf-8")
    recipe = {
        "backend": run.backend,
        "model": {"path": "model", "dtype": "float32"},
        "data": {"files": ["data.jsonl"], "seq_len": run.seq_len, "heldout": 0},
        "train": {"max_steps": steps, "micro_batch": run.micro_batch, "global_batch": rows, **run.train},
        "lora": run.lora,
        "parallel": {"ranks": run.ranks},
    }
    (folder / "run.yaml").write_text(yaml.safe_dump(recipe), "utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "tengtune", "train", "run.yaml"], cwd=folder, capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(f"{run.name}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    (record,) = folder.glob("runs/*/train.json")
    figures = json.loads(record.read_text("utf-8"))["figures"]
    return figures["planned_memory_bytes"], figures["measured_memory_bytes"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--dir", type=Path, default=Path())
    arguments = parser.parse_args()
    errors = []
    chosen = [run for run in RUNS if run.name in arguments.names] or RUNS
    for run in chosen:
        folder = Path(tempfile.mkdtemp(dir=arguments.dir))
        try:
            (low, expected, high), measured = trained(run, folder)
        finally:
            shutil.rmtree(folder)
        errors.append(expected / measured - 1)
        figures = "  ".join(f"{size / 1e9:6.3f}" for size in (measured, low, expected, high))
        print(f"{run.name:28} {figures} GB  {errors[-1]:+6.1%}", flush=True)
    sizes = [abs(error) for error in errors]
    print(f"{len(errors)} runs: median error {statistics.median(sizes):.1%}, worst {max(sizes):.1%}")


if __name__ == "__main__":
    main()
