"""The PyTorch back end on tiny models, for tests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tengtune.backends.torch.device import Placement
from tengtune.backends.torch.kernels import PLAIN
from tengtune.backends.torch.model import Maker, Qwen
from tengtune.backends.torch.rows import lay_out
from tengtune.backends.torch.step import TorchBackend
from tengtune.models.spec import ModelSpec
from tengtune.recipe import Recipe
from tengtune.train.batch import Batch

CPU = torch.device("cpu")


def make_recipe(
    method: str = "lora", seed: int = 42, lora: dict[str, Any] | None = None, **train: Any
) -> Recipe:
    return Recipe.model_validate(
        {
            "name": "test",
            "seed": seed,
            "model": {"path": "model"},
            "data": {"files": ["data.json"]},
            "train": {"method": method, **train},
            "lora": lora or {},
            "file": Path("run.yaml"),
        }
    )


def make_backend(
    spec: ModelSpec,
    source: Mapping[str, np.ndarray],
    recipe: Recipe | None = None,
    dtype: torch.dtype = torch.float32,
) -> TorchBackend:
    """A backend on the CPU, of any compute type (float64 too, which no run file can ask for)."""
    recipe = recipe or make_recipe()
    placement = Placement(CPU, dtype)
    maker = Maker(source, placement, recipe.train.method, recipe.lora, recipe.seed)
    model = Qwen(spec, maker, PLAIN, recompute=recipe.train.recompute == "full")
    return TorchBackend(spec, model, placement, PLAIN, recipe)


def gradients(backend: TorchBackend, batch: Batch, scale: float = 1.0) -> tuple[float, dict[str, np.ndarray]]:
    """Loss sum of the batch, and the gradient of every trained parameter by its name in the module."""
    for parameter in backend.model.parameters():
        parameter.grad = None
    loss = backend.loss(batch, scale)
    loss.backward()
    found = {
        name: parameter.grad.numpy().copy()
        for name, parameter in backend.model.named_parameters()
        if parameter.requires_grad
    }
    return float(loss.detach()), found


def logits(backend: TorchBackend, batch: Batch) -> np.ndarray:
    """Logits of every real token, rows end to end."""
    rows = lay_out(batch, Placement(CPU, torch.float32))
    with torch.no_grad():
        hidden = backend.model.model(
            rows.ids, rows.positions, lambda _: lambda q, k, v: PLAIN.attention(q, k, v, rows.lengths)
        )
        return backend.model.logits(hidden).float().numpy()


def shards(backend: TorchBackend) -> dict[tuple[str, str], np.ndarray]:
    return {(s.name, s.kind): s.array for s in backend.named_shards()}


def randomize_adapters(backend: TorchBackend, seed: int = 0) -> None:
    """Give B random values too: at its start of zero half of the gradients vanish."""
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in backend.model.named_parameters():
            if name.endswith(".lora_B"):
                parameter.normal_(0, 0.1, generator=random)
