"""One epoch of LoRA by tengtune's PyTorch back end, in this process.

usage: train_ours.py MODEL DATA RESULT --dtype float32|bfloat16 --cutoff N --threads N
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from measure import measured
from train_rows import as_batch, pack, read

from tengtune.backends import base
from tengtune.recipe import Recipe


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("model", "data", "result"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--cutoff", type=int, default=1024)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)

    batches = [
        as_batch(row, args.cutoff) for row in pack(read(args.model, args.data, args.cutoff), args.cutoff)
    ]
    recipe = Recipe.model_validate(
        {
            "name": "bench",
            "backend": "torch",
            "model": {"path": str(args.model), "dtype": args.dtype},
            "data": {"files": [str(args.data)]},
            # The defaults of transformers, which the peers run with.
            "train": {"lr": 1e-4, "weight_decay": 0.0, "beta2": 0.999},
            "lora": {"rank": 8, "alpha": 16},
            "file": Path.cwd() / "run.yaml",
        }
    )
    backend = base.open_backend(recipe, args.model)

    def train() -> tuple[int, float]:
        tokens, losses = 0, []
        for batch in batches:
            handles = backend.train_step([batch], batch.trained_tokens, 1e-4, 1.0)
            losses.append(float(handles.loss_sum) / batch.trained_tokens)
            tokens += batch.trained_tokens
        return tokens, sum(losses) / len(losses)

    measured(train).write(args.result)


if __name__ == "__main__":
    main()
