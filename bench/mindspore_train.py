"""LoRA fine-tuning on MindSpore on a CPU: tengtune's back end beside a plain padded MindSpore loop of the
same model, and beside tengtune's PyTorch back end, in one run.

    python bench/mindspore_train.py MODEL DATA.json [--repeat 3] [--cutoff 1024] [--only NAME]

MODEL is a Qwen2 folder with tokenizer.json, DATA an Alpaca file. The plain loop is what MindSpore's own
tutorials come to: one nn.Cell in graph mode, four documents a step, each padded to --cutoff as the reference
pads them, logits of every position. Ours packs documents into rows of --cutoff. All in float32, rank 8 on all
linears. Compiling is measured apart: the first step of each shape is taken once before the clock starts. Each
contender is a fresh process, rounds go through all of them in turn, and medians are printed.

With --layers the compile times of tengtune's graphs at 4 and at 30 layers are measured instead.
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
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from measure import measured
from train_rows import Document, as_batch, pack, read

from tengtune.backends import base
from tengtune.models import spec as specs
from tengtune.recipe import Recipe

CONTENDERS = ("tengtune MindSpore", "plain MindSpore", "tengtune PyTorch")
BATCH = 4


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--cutoff", type=int, default=1024)
    parser.add_argument("--only", action="append", choices=CONTENDERS, help="repeatable")
    parser.add_argument("--layers", action="store_true", help="compile times by the number of layers")
    parser.add_argument("--one", choices=(*CONTENDERS, "compile"), help=argparse.SUPPRESS)
    parser.add_argument("--result", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--count", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        args.result.write_text(json.dumps(one(args)))
    elif args.layers:
        for count in (4, 30):
            found = [process(args, "compile", count) for _ in range(args.repeat)]
            seconds = statistics.median(each["compile_cpu_s"] for each in found)
            print(f"{count} layers: {seconds:.1f} CPU s to compile and take the first step")
    else:
        compare(args)


def compare(args: argparse.Namespace) -> None:
    """Rounds of all contenders, and the table."""
    names = args.only or CONTENDERS
    results: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for _ in range(args.repeat):
        for name in names:
            results[name].append(process(args, name))
            print(f"{name}: {json.dumps(results[name][-1])}", file=sys.stderr, flush=True)
    rows = {
        name: {key: statistics.median(each[key] for each in found) for key in found[0]}
        for name, found in results.items()
    }
    ours = rows.get(CONTENDERS[0])
    print(
        f"{'':22}{'trained tok/s':>15}{'tok/CPU-s':>12}{'ours':>8}{'compile CPU s':>15}{'MB':>7}{'loss':>9}"
    )
    for name, row in rows.items():
        speed = row["trained_tokens"] / row["cpu_s"]
        ratio = f"{ours['trained_tokens'] / ours['cpu_s'] / speed:.2f}x" if ours else "-"
        memory = (row["peak_bytes"] - row["loaded_bytes"]) / 1e6
        print(
            f"{name:22}{row['trained_tokens'] / row['seconds']:>15.0f}{speed:>12.0f}{ratio:>8}"
            f"{row['compile_cpu_s']:>15.1f}{memory:>7.0f}{row['loss']:>9.4f}"
        )


def process(args: argparse.Namespace, name: str, count: int = 0) -> dict[str, float]:
    """One contender in a fresh process."""
    with tempfile.TemporaryDirectory() as place:
        result = Path(place) / "result.json"
        command = [sys.executable, __file__, str(args.model), str(args.data), "--one", name]
        command += ["--cutoff", str(args.cutoff), "--result", str(result), "--count", str(count)]
        subprocess.run(command, check=True, env={**os.environ, "GLOG_v": "3"})
        found: dict[str, float] = json.loads(result.read_text())
        return found


def one(args: argparse.Namespace) -> dict[str, float]:
    """A contender, in this process: a round for the compiler, then one that counts."""
    documents = read(args.model, args.data, args.cutoff)
    if args.one == "compile":
        return _compile(args, documents)
    epoch = plain(args, documents) if args.one == "plain MindSpore" else ours(args, documents)
    start = time.process_time()
    epoch(True)
    compiled = time.process_time() - start
    found = asdict(measured(lambda: epoch(False)))
    return {**found, "compile_cpu_s": compiled}


def ours(args: argparse.Namespace, documents: list[Document]) -> Callable[[bool], tuple[int, float]]:
    """An epoch of packed rows by one of our back ends; True: only one row of each shape."""
    backend = base.open_backend(recipe(args, args.one.rsplit(" ", 1)[1].lower()), args.model)
    batches = [as_batch(row, args.cutoff) for row in pack(documents, args.cutoff)]
    shapes = {batch.label.shape: batch for batch in batches}

    def epoch(first: bool) -> tuple[int, float]:
        tokens, losses = 0, []
        for batch in shapes.values() if first else batches:
            handles = backend.train_step([batch], batch.trained_tokens, 1e-4, 1.0)
            losses.append(float(handles.loss_sum) / batch.trained_tokens)
            tokens += batch.trained_tokens
        return tokens, statistics.mean(losses)

    return epoch


def recipe(args: argparse.Namespace, backend: str) -> Recipe:
    """Rank 8 on all linears, float32."""
    values = {
        "name": "bench",
        "backend": {"pytorch": "torch"}.get(backend, backend),
        "model": {"path": str(args.model), "dtype": "float32"},
        "data": {"files": [str(args.data)]},
        "train": {"lr": 1e-4, "weight_decay": 0.0, "beta2": 0.999},
        "lora": {"rank": 8, "alpha": 16},
        "file": Path.cwd() / "run.yaml",
    }
    return Recipe.model_validate(values)


def plain(args: argparse.Namespace, documents: list[Document]) -> Callable[[bool], tuple[int, float]]:
    """An epoch of padded documents by one network in graph mode."""
    import mindspore as ms
    from mindspore import nn
    from mindspore_plain import Network

    ms.set_device("CPU")
    network = Network(specs.from_folder(args.model), args.model, rank=8, alpha=16)
    optimizer = nn.AdamWeightDecay(network.trainable_params(), 1e-4, beta2=0.999)
    gradient = ms.value_and_grad(network, None, optimizer.parameters)

    @ms.jit
    def step(ids: Any, labels: Any) -> Any:
        loss, gradients = gradient(ids, labels)
        optimizer(gradients)
        return loss

    def padded(group: list[Document]) -> tuple[Any, Any]:
        ids = np.zeros((BATCH, args.cutoff), np.int32)
        labels = np.full((BATCH, args.cutoff), -100, np.int32)
        for row, document in enumerate(group):
            ids[row, : len(document.ids)] = document.ids
            labels[row, : len(document.ids)] = document.labels
        return ms.Tensor(ids), ms.Tensor(labels)

    groups = [documents[i : i + BATCH] for i in range(0, len(documents), BATCH)]

    def epoch(first: bool) -> tuple[int, float]:
        losses = [float(step(*padded(group))) for group in (groups[:1] if first else groups)]
        return sum(document.trained for document in documents), statistics.mean(losses)

    return epoch


def _compile(args: argparse.Namespace, documents: list[Document]) -> dict[str, float]:
    """CPU seconds of the first step less those of a second one, with so many layers of the model's shape."""
    from dataclasses import replace

    from tengtune.backends.mindspore.step import build

    spec = replace(specs.from_folder(args.model), layers=args.count)
    numbers = np.random.default_rng(0)
    source = {
        name: (0.02 * numbers.standard_normal(shape)).astype(np.float32) for name, shape in spec.tensors()
    }
    backend = build(spec, source, recipe(args, "mindspore"))
    batch = as_batch(pack(documents, args.cutoff)[0], args.cutoff)
    taken = []
    for _ in range(2):
        start = time.process_time()
        float(backend.train_step([batch], batch.trained_tokens, 1e-4, 1.0).loss_sum)
        taken.append(time.process_time() - start)
    return {"compile_cpu_s": taken[0] - taken[1], "step_cpu_s": taken[1]}


if __name__ == "__main__":
    main()
