"""LoRA adapters: which tensors a block's adapter has, and where they start.

The adapted linear itself is in `model.py`: y = x W^T + (alpha / rank) (x A^T) B^T. Qwen1's q, k and v share
one A, and one B has their rows one below the other, as PEFT's adapter of c_attn.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from tengtune.backends.mindspore.model import SHARED, Floats, Layout
from tengtune.models.spec import ModelSpec
from tengtune.recipe import Recipe
from tengtune.train.lora_init import initial_a


def adapter_layout(spec: ModelSpec, recipe: Recipe) -> Layout:
    """The adapter of one block: A [rank, in] and B [out, rank] of every target."""
    rank, shapes = recipe.lora.rank, {}
    for name, (out, inner) in _adapted(spec, recipe.lora.targets).items():
        shapes[f"{name}.lora_A.weight"] = (rank, inner)
        shapes[f"{name}.lora_B.weight"] = (out, rank)
    return Layout(shapes)


def _adapted(spec: ModelSpec, targets: Collection[str]) -> dict[str, tuple[int, int]]:
    """What has an adapter in a block: name -> (out, in)."""
    linears = spec.linears()
    chosen = {name: shape for name, shape in linears.items() if name.split(".")[-1] in targets}
    if spec.family == "qwen1" and "self_attn.q_proj" in chosen:
        parts = [f"self_attn.{part}_proj" for part in "qkv"]
        apart = {name: shape for name, shape in chosen.items() if name not in parts}
        chosen = {SHARED: (sum(linears[name][0] for name in parts), spec.hidden), **apart}
    return chosen


def initial_adapter(layout: Layout, prefix: str, seed: int) -> Floats:
    """The start of the adapter of the block `prefix`: A drawn, B zero."""
    vector = np.empty(layout.shape, np.float32)
    for name, view in layout.views(vector):
        view[...] = initial_a(seed, f"{prefix}.{name}", *view.shape) if ".lora_A." in name else 0.0
    return vector
