"""The narrow twin of a model: its family, vocabulary, tokenizer and head ratios; two thin layers of random
weights."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tengtune import files
from tengtune.models import spec as specs
from tengtune.models.spec import ModelSpec
from tengtune.text.tokenizer import text_files
from tengtune.weights.safetensors_io import write_folder
from tengtune.weights.stacks import put_together
from tengtune.weights.stream import Array, TensorStream

LAYERS, HEAD_DIM, SPREAD = 2, 16, 0.02
ALONG = ("generation_config.json",)

_LAYERS = ("num_hidden_layers", "n_layer")
_HEADS = ("num_attention_heads", "n_head")
_KV_HEADS = ("num_key_value_heads",)
_HIDDEN = ("hidden_size", "n_embd")
_HEAD_DIM = ("head_dim", "kv_channels")
_FFN = ("intermediate_size", "ffn_hidden_size")


def narrow_config(config: dict[str, Any]) -> dict[str, Any]:
    """The config of the twin: the same keys, those of the shape with smaller values."""
    spec = specs.from_config(config)
    kv_heads = 1 if spec.heads > spec.kv_heads else 2
    heads = spec.heads // spec.kv_heads * kv_heads
    width = heads * HEAD_DIM
    hidden = width if spec.q_width == spec.hidden else max(width * spec.hidden // spec.q_width // 8 * 8, 8)
    ffn = max(hidden * spec.ffn // spec.hidden // 8 * 8, 8)
    small = {
        _LAYERS: LAYERS,
        _HEADS: heads,
        _KV_HEADS: kv_heads,
        _HIDDEN: hidden,
        _HEAD_DIM: HEAD_DIM,
        _FFN: 2 * ffn if spec.family == "qwen1" else ffn,
    }
    changed: dict[str, Any] = {key: value for names, value in small.items() for key in names if key in config}
    if "layer_types" in config:
        changed["layer_types"] = ["full_attention"] * LAYERS
    return {**config, **changed, "torch_dtype": "float32"}


def make_twin(model: Path, folder: Path, seed: int) -> ModelSpec:
    """Write the twin of the model in `model`, of which no weights are read, into `folder`; its spec."""
    config = narrow_config(specs.read_config(model))
    spec = specs.from_config(config, model / "config.json")
    folder.mkdir(parents=True)
    for path in [*text_files(model), *(model / name for name in ALONG)]:
        if path.is_file():
            shutil.copyfile(path, folder / path.name)
    files.write_text(folder / "config.json", json.dumps(config, ensure_ascii=False, indent=1) + "\n")
    random = np.random.default_rng(seed)
    streams = [
        TensorStream(name, shape, np.dtype(np.float32), partial(_values, random, name, shape))
        for name, shape in spec.tensors()
    ]
    write_folder(folder, put_together(spec, streams))
    return spec


def _values(random: np.random.Generator, name: str, shape: tuple[int, ...]) -> Iterator[Array]:
    """Norms of one, biases of zero, anything else at random."""
    if name.endswith("norm.weight"):
        yield np.ones(shape, np.float32)
    elif name.endswith(".bias"):
        yield np.zeros(shape, np.float32)
    else:
        yield SPREAD * random.standard_normal(shape, np.float32)
