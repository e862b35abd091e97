"""LoRA adapters: which tensors a block's adapter has, and where they start.

The adapted linear itself is in `model.py`: y = x W^T + (alpha / rank) (x A^T) B^T.
"""

from __future__ import annotations

import numpy as np

from tengtune.backends.mindspore.model import Floats, Layout
from tengtune.models.spec import ModelSpec
from tengtune.recipe import Recipe
from tengtune.train.lora_init import initial_a


def adapter_layout(spec: ModelSpec, recipe: Recipe) -> Layout:
    """The adapter of one block: A [rank, in] and B [out, rank] of every target."""
    rank, shapes = recipe.lora.rank, {}
    for name, (out, inner) in spec.linears().items():
        if name.split(".")[-1] in recipe.lora.targets:
            shapes[f"{name}.lora_A.weight"] = (rank, inner)
            shapes[f"{name}.lora_B.weight"] = (out, rank)
    return Layout(shapes)


def initial_adapter(layout: Layout, prefix: str, seed: int) -> Floats:
    """The start of the adapter of the block `prefix`: A drawn, B zero."""
    vector = np.empty(layout.shape, np.float32)
    for name, view in layout.views(vector):
        view[...] = initial_a(seed, f"{prefix}.{name}", *view.shape) if ".lora_A." in name else 0.0
    return vector
