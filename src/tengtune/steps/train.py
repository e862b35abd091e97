"""train: fine-tune on the rows of the data step; leaves `adapter/` (LoRA) or `full/` (full tuning)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tengtune import files
from tengtune.backends import base
from tengtune.backends.base import Backend
from tengtune.data.store import open_store
from tengtune.engine import Result
from tengtune.recipe import Recipe
from tengtune.train import schedule
from tengtune.train.fit import Fit
from tengtune.train.metrics import Metrics
from tengtune.ui.console import Console
from tengtune.weights.source import open_source


def inputs(recipe: Recipe) -> list[Path]:
    return [recipe.model_folder, recipe.folder / "data" / "train"]


def settings(recipe: Recipe) -> dict[str, Any]:
    groups = recipe.model_dump(mode="json", include={"backend", "seed", "model", "train", "lora", "parallel"})
    del groups["train"]["log_every"]
    return groups


def run(recipe: Recipe, console: Console) -> Result:
    """Train and write the result; Problem when the model, the data or the numbers do not allow it."""
    store = open_store(recipe.folder / "data" / "train")
    heldout_folder = recipe.folder / "data" / "heldout"
    heldout = open_store(heldout_folder) if heldout_folder.exists() else None
    plan = schedule.plan(recipe, store.rows)
    backend = base.open_backend(recipe, recipe.model_folder)
    trainable = sum(s.array.size for s in backend.named_shards() if s.kind == "param")
    console.say(
        "train.start",
        parameters=f"{trainable:,}",
        rows=store.rows,
        seq_len=store.seq_len,
        steps=plan.steps,
        global_batch=plan.global_batch,
        trained=store.trained_tokens,
        dtype=backend.dtype,
        device=backend.device,
    )
    if store.rows <= plan.global_batch and plan.steps > 1:
        console.warn("train.few_rows", rows=store.rows, global_batch=plan.global_batch)
    metrics = Metrics(recipe.folder / "metrics.jsonl")
    try:
        figures = Fit(backend, store, plan, recipe, console, metrics, heldout).run()
    finally:
        metrics.close()
    folder = _write(recipe, backend)
    console.say(
        "train.done",
        first=f"{figures['first_loss']:.4f}",
        last=f"{figures['last_loss']:.4f}",
        speed=figures["tokens_per_s"],
        memory=f"{figures['peak_memory_bytes'] / 1e9:.2f}",
    )
    about = {"backend": base.choose(recipe), "device": backend.device, "dtype": backend.dtype}
    return Result([folder, "metrics.jsonl"], {**figures, **about, "trainable_parameters": trainable})


def _write(recipe: Recipe, backend: Backend) -> str:
    """Write what was trained; the name of the folder inside the run folder."""
    tensors = {s.name: s.array for s in backend.named_shards() if s.kind == "param"}
    if recipe.train.method == "lora":
        from tengtune.weights.adapter import write_adapter

        write_adapter(
            recipe.folder / "adapter",
            tensors,
            rank=recipe.lora.rank,
            alpha=recipe.lora.alpha,
            targets=recipe.lora.targets,
            base=str(recipe.model_folder),
        )
        return "adapter"
    from tengtune.weights.safetensors_io import write_folder
    from tengtune.weights.stream import stream

    source = open_source(recipe.model_folder, backend.spec)
    with files.atomic_folder(recipe.folder / "full") as folder:
        write_folder(folder, [stream(name, tensors[name], old.dtype) for name, old in source.items()])
    return "full"
