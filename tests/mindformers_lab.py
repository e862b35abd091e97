"""mindformers' layouts for tests, independent of the product: weights put into them by hand, and their
forward pass in plain torch, which splits the fused linears as mindformers' model code does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.fault_lab import python

Weights = dict[str, np.ndarray]

MCORE = {
    "mcore": (True, True),
    "mcore-contiguous-qkv": (False, True),
    "mcore-contiguous-mlp": (True, False),
    "mcore-contiguous": (False, False),
}
"""Whether q, k, v take turns by groups of heads, and gate and up row by row."""

_QWEN1 = [
    (".h.", ".layers."),
    ("wte.weight", "wte.embedding_weight"),
    ("attn.c_proj", "attention.wo"),
    ("ln_1.", "attention_norm."),
    ("ln_2.", "ffn_norm."),
    ("mlp.w1.", "feed_forward.w1."),
    ("mlp.w2.", "feed_forward.w3."),
    ("mlp.c_proj.", "feed_forward.w2."),
]
_LLAMA = [
    ("embed_tokens.weight", "tok_embeddings.embedding_weight"),
    ("model.norm.", "model.norm_out."),
    ("self_attn.q_proj", "attention.wq"),
    ("self_attn.k_proj", "attention.wk"),
    ("self_attn.v_proj", "attention.wv"),
    ("self_attn.o_proj", "attention.wo"),
    ("mlp.gate_proj", "feed_forward.w1"),
    ("mlp.down_proj", "feed_forward.w2"),
    ("mlp.up_proj", "feed_forward.w3"),
    ("input_layernorm", "attention_norm"),
    ("post_attention_layernorm", "ffn_norm"),
]
_MCORE = [
    ("model.embed_tokens.", "embedding.word_embeddings."),
    ("model.norm.", "decoder.final_layernorm."),
    ("lm_head.", "output_layer."),
    ("model.layers.", "decoder.layers."),
    ("self_attn.o_proj", "self_attention.linear_proj"),
    ("self_attn.q_norm", "self_attention.q_layernorm"),
    ("self_attn.k_norm", "self_attention.k_layernorm"),
    ("mlp.down_proj", "mlp.linear_fc2"),
    ("post_attention_layernorm", "pre_mlp_layernorm"),
]


def _renamed(name: str, table: list[tuple[str, str]]) -> str:
    for old, new in table:
        name = name.replace(old, new)
    return name


def qwen1_in_mindformers(weights: Weights) -> Weights:
    """Qwen1's Hugging Face weights as research/qwen/convert_weight.py names and cuts them."""
    result: Weights = {}
    for name, array in weights.items():
        if ".attn.c_attn." in name:
            for part, piece in zip(("wq", "wk", "wv"), np.array_split(array, 3), strict=True):
                result[_renamed(name, _QWEN1).replace("attn.c_attn", f"attention.{part}")] = piece
        else:
            result[_renamed(name, _QWEN1)] = array
    return result


def adapter_in_mindformers(weights: Weights, qwen1: bool) -> Weights:
    """PEFT's adapter under the names of mindpet; Qwen1's q, k and v have the A of c_attn each."""
    result: Weights = {}
    for name, array in weights.items():
        linear, letter, _ = name.removeprefix("base_model.model.").rsplit(".", 2)
        if qwen1 and linear.endswith("c_attn") and letter == "lora_A":
            array = np.concatenate([array] * 3)
        whole = {f"{linear}.weight": array}
        for their, part in (
            qwen1_in_mindformers(whole) if qwen1 else in_layout(whole, "mindformers", {})
        ).items():
            result[their.replace(".weight", f".mindpet_delta_{letter.lower()}")] = part
    return result


def in_turns(q: np.ndarray, k: np.ndarray, v: np.ndarray, groups: int) -> np.ndarray:
    """For each group of heads its rows of q, of k, of v."""
    split = [np.array_split(array, groups) for array in (q, k, v)]
    return np.concatenate([part for group in zip(*split, strict=True) for part in group])


def row_by_row(gate: np.ndarray, up: np.ndarray) -> np.ndarray:
    result = np.empty((2 * len(gate), gate.shape[1]), gate.dtype)
    result[0::2], result[1::2] = gate, up
    return result


def in_layout(weights: Weights, layout: str, config: dict[str, Any]) -> Weights:
    """Qwen2 or Qwen3 weights by Hugging Face's names in a layout of mindformers."""
    if layout == "mindformers":
        return {_renamed(name, _LLAMA): array for name, array in weights.items()}
    turns, rows = MCORE.get(layout, (True, True))
    groups = config["num_key_value_heads"]
    table = _LLAMA if layout == "qkv-concat" else _MCORE
    qkv, fc1 = (
        ("attention.w_qkv", "feed_forward.w_gate_hidden")
        if layout == "qkv-concat"
        else ("self_attention.linear_qkv", "mlp.linear_fc1")
    )
    result: Weights = {}
    for name, array in weights.items():
        if ".q_proj." in name:
            parts = [weights[name.replace("q_proj", f"{part}_proj")] for part in "qkv"]
            joined = in_turns(*parts, groups) if turns else np.concatenate(parts)
            result[
                _renamed(name, table[:4]).replace("self_attn.q_proj", qkv).replace("attention.wq", qkv)
            ] = joined
        elif ".gate_proj." in name:
            up = weights[name.replace("gate_proj", "up_proj")]
            joined = row_by_row(array, up) if rows else np.concatenate([array, up])
            result[_renamed(name, table[:4]).replace("mlp.gate_proj", fc1)] = joined
        elif ".k_proj." not in name and ".v_proj." not in name and ".up_proj." not in name:
            result[_renamed(name, table)] = array
    return result


def logits(stored: Weights, layout: str, config: dict[str, Any], ids: list[int]) -> Tensor:
    """Logits [L,V] in float32. config: keys as in a Qwen2 config.json; Qwen1's weights by names alone."""
    weights = {name: torch.from_numpy(np.array(array, np.float32)) for name, array in stored.items()}
    qwen1 = any(name.startswith("transformer.") for name in weights)
    top = ("transformer.wte.embedding_weight", "transformer.ln_f.weight") if qwen1 else (
        ("embedding.word_embeddings.weight", "decoder.final_layernorm.weight")
        if layout in MCORE
        else ("model.tok_embeddings.embedding_weight", "model.norm_out.weight")
    )  # fmt: skip
    before = "transformer.layers" if qwen1 else "decoder.layers" if layout in MCORE else "model.layers"
    norms = ("input_layernorm", "pre_mlp_layernorm") if layout in MCORE else ("attention_norm", "ffn_norm")
    eps = config["rms_norm_eps"]
    x = weights[top[0]][torch.tensor(ids)]
    for n in range(config["num_hidden_layers"]):
        block = {
            name.removeprefix(f"{before}.{n}."): tensor
            for name, tensor in weights.items()
            if name.startswith(f"{before}.{n}.")
        }
        x = x + _attention(_norm(x, block[f"{norms[0]}.weight"], eps), block, layout, config)
        x = x + _feed_forward(_norm(x, block[f"{norms[1]}.weight"], eps), block, layout, qwen1)
    head = weights.get("output_layer.weight" if layout in MCORE else "lm_head.weight", weights[top[0]])
    return _norm(x, weights[top[1]], eps) @ head.T


def _norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return F.rms_norm(x, weight.shape, weight, eps)


def _attention(x: Tensor, block: Weights | Any, layout: str, config: dict[str, Any]) -> Tensor:
    heads, groups = config["num_attention_heads"], config["num_key_value_heads"]
    size = config.get("head_dim") or config["hidden_size"] // heads
    each = heads // groups
    if layout == "mindformers":
        q, k, v = (
            F.linear(x, block[f"attention.w{part}.weight"], block.get(f"attention.w{part}.bias"))
            for part in "qkv"
        )
        q, k, v = (y.unflatten(-1, (-1, size)) for y in (q, k, v))
    else:
        name = "attention.w_qkv" if layout == "qkv-concat" else "self_attention.linear_qkv"
        qkv = F.linear(x, block[f"{name}.weight"], block.get(f"{name}.bias"))
        if MCORE.get(layout, (True, True))[0]:
            grouped = qkv.unflatten(-1, (groups, each + 2, size))
            q, k, v = grouped[:, :, :each].flatten(1, 2), grouped[:, :, each], grouped[:, :, each + 1]
        else:
            q, k, v = qkv.split([heads * size, groups * size, groups * size], -1)
            q, k, v = (y.unflatten(-1, (-1, size)) for y in (q, k, v))
    if "self_attention.q_layernorm.weight" in block:
        q = _norm(q, block["self_attention.q_layernorm.weight"], config["rms_norm_eps"])
        k = _norm(k, block["self_attention.k_layernorm.weight"], config["rms_norm_eps"])
    q, k = (_turned(y, config["rope_theta"]) for y in (q, k))
    k, v = (y.repeat_interleave(heads // y.shape[1], 1) for y in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, k) / size**0.5
    scores = scores.masked_fill(torch.ones(scores.shape[1:], dtype=torch.bool).triu(1), -torch.inf)
    out = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).flatten(1)
    return F.linear(
        out, block["self_attention.linear_proj.weight" if layout in MCORE else "attention.wo.weight"]
    )


def _turned(x: Tensor, base: float) -> Tensor:
    size = x.shape[-1]
    frequencies = base ** (-torch.arange(0, size, 2, dtype=torch.float32) / size)
    angles = torch.outer(torch.arange(len(x), dtype=torch.float32), frequencies).repeat(1, 2)[:, None]
    first, second = x.chunk(2, -1)
    return x * angles.cos() + torch.cat((-second, first), -1) * angles.sin()


def _feed_forward(x: Tensor, block: Weights | Any, layout: str, qwen1: bool) -> Tensor:
    if layout == "mindformers":
        w1, w2, w3 = (block[f"feed_forward.w{i}.weight"] for i in (1, 2, 3))
        first, third = F.linear(x, w1), F.linear(x, w3)
        return F.linear(first * F.silu(third) if qwen1 else F.silu(first) * third, w2)
    both = F.linear(
        x, block["feed_forward.w_gate_hidden.weight" if layout == "qkv-concat" else "mlp.linear_fc1.weight"]
    )
    rows = MCORE.get(layout, (True, True))[1]
    gate, up = both.unflatten(-1, (-1, 2)).unbind(-1) if rows else both.chunk(2, -1)
    return F.linear(
        F.silu(gate) * up,
        block["feed_forward.w2.weight" if layout == "qkv-concat" else "mlp.linear_fc2.weight"],
    )


THEIR_MERGE = """
import sys
from pathlib import Path
import mindspore as ms
import numpy as np
for run in map(Path, sys.argv[1:]):
    strategy = str(run / "merged_strategy.ckpt")
    ms.merge_pipeline_strategys(str(run / "output" / "strategy"), strategy)
    for part in ("checkpoint_network", "checkpoint"):
        out = run / "theirs" / part
        ms.transform_checkpoints(str(run / "output" / part), str(out), "whole", strategy, None)
        whole = ms.load_checkpoint(str(out / "rank_0" / "whole0.ckpt"))
        wide = {n: p.astype(ms.float32) if p.dtype == ms.bfloat16 else p for n, p in whole.items()}
        np.savez(run / f"theirs_{part}.npz", **{name: p.asnumpy() for name, p in wide.items()})
"""


def mindspore_joins(*runs: Path) -> None:
    """Have MindSpore join each run's output folder, into `theirs_checkpoint.npz` and
    `theirs_checkpoint_network.npz` beside it."""
    done = python(THEIR_MERGE, *runs)
    assert done.returncode == 0, done.stderr


def wide(weights: Weights) -> Weights:
    # By name: once MindSpore is loaded NumPy's "bfloat16" is a type of its own.
    return {n: a.astype(np.float32) if a.dtype.name == "bfloat16" else a for n, a in weights.items()}


def same(found: Weights, wanted: Weights) -> None:
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        assert (found[name].shape, found[name].dtype) == (array.shape, array.dtype), name
        assert np.array_equal(found[name], array), name
