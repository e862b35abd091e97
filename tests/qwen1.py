"""Qwen's first generation for tests, independent of the product: a folder in its layout, and a plain module.

The layout is made by hand from a Qwen2 folder (models-and-tokenizers.md, section 3 of the shared facts): k
and v heads are repeated where there are fewer than q heads, and a tied head is written out.
"""

from __future__ import annotations

import base64
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

CODE = ("configuration_qwen.py", "modeling_qwen.py", "tokenization_qwen.py", "qwen_generation_utils.py")


def qwen1_config(shape: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A Qwen1 config.json from a Qwen2 one, in the later key names."""
    heads = shape["num_attention_heads"]
    return {
        "architectures": ["QWenLMHeadModel"],
        "model_type": "qwen",
        "auto_map": {"AutoModelForCausalLM": "modeling_qwen.QWenLMHeadModel"},
        "hidden_size": shape["hidden_size"],
        "num_hidden_layers": shape["num_hidden_layers"],
        "num_attention_heads": heads,
        "kv_channels": shape["hidden_size"] // heads,
        "intermediate_size": 2 * shape["intermediate_size"],
        "vocab_size": shape["vocab_size"],
        "layer_norm_epsilon": shape["rms_norm_eps"],
        "rotary_emb_base": shape["rope_theta"],
        "rotary_pct": 1.0,
        "max_position_embeddings": shape["max_position_embeddings"],
        "seq_length": shape["max_position_embeddings"],
        "no_bias": True,
        "tie_word_embeddings": False,
        "use_dynamic_ntk": True,
        "use_logn_attn": True,
        **changes,
    }


def qwen1_weights(shape: dict[str, Any], old: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Weights by Qwen1's names from those by Qwen2's."""
    heads, kv_heads = shape["num_attention_heads"], shape["num_key_value_heads"]

    def repeated(name: str) -> np.ndarray:
        array = old[name]
        if heads == kv_heads or ".q_proj." in name:
            return array
        groups = array.reshape(kv_heads, -1, *array.shape[1:])
        return groups.repeat(heads // kv_heads, axis=0).reshape(-1, *array.shape[1:])

    head = old.get("lm_head.weight", old["model.embed_tokens.weight"])
    new = {
        "transformer.wte.weight": old["model.embed_tokens.weight"],
        "transformer.ln_f.weight": old["model.norm.weight"],
        "lm_head.weight": head.copy(),
    }
    for n in range(shape["num_hidden_layers"]):
        own, theirs = f"transformer.h.{n}", f"model.layers.{n}"
        for kind in ("weight", "bias"):
            parts = [repeated(f"{theirs}.self_attn.{part}_proj.{kind}") for part in "qkv"]
            new[f"{own}.attn.c_attn.{kind}"] = np.concatenate(parts)
        for name, other in (
            ("attn.c_proj", "self_attn.o_proj"),
            ("mlp.w1", "mlp.up_proj"),
            ("mlp.w2", "mlp.gate_proj"),
            ("mlp.c_proj", "mlp.down_proj"),
            ("ln_1", "input_layernorm"),
            ("ln_2", "post_attention_layernorm"),
        ):
            new[f"{own}.{name}.weight"] = old[f"{theirs}.{other}.weight"]
    return new


def tiny_tiktoken(folder: Path) -> Path:
    """Write `folder`/qwen.tiktoken with the 256 bytes as its only tokens; with the control tokens 464 ids."""
    lines = (f"{base64.b64encode(bytes([byte])).decode()} {byte}\n" for byte in range(256))
    (folder / "qwen.tiktoken").write_text("".join(lines))
    return folder


def to_qwen1(source: Path, out: Path, torch_files: int = 0, **changes: Any) -> Path:
    """The Qwen2 folder `source` in Qwen1's layout, with its tokenizer and files named like the model's code;
    torch_files: how many .bin files hold the weights (0: one safetensors file). `changes` to config.json."""
    shape = json.loads((source / "config.json").read_text())
    weights = qwen1_weights(shape, load_file(source / "model.safetensors"))
    out.mkdir(parents=True)
    (out / "config.json").write_text(json.dumps(qwen1_config(shape, **changes)))
    for name in ("tokenizer.json", "qwen.tiktoken", "generation_config.json"):
        if (source / name).exists():
            shutil.copyfile(source / name, out / name)
    for name in CODE:
        (out / name).write_text(f"raise SystemExit({name!r} + ' was imported')\n")
    if torch_files == 0:
        save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
        return out
    names = [f"pytorch_model-{i + 1:05}-of-{torch_files:05}.bin" for i in range(torch_files)]
    if torch_files == 1:
        names = ["pytorch_model.bin"]
    else:
        weight_map = {tensor: names[i % torch_files] for i, tensor in enumerate(weights)}
        (out / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}))
    for i, name in enumerate(names):
        chosen = list(weights)[i::torch_files]
        torch.save({tensor: as_tensor(weights[tensor]) for tensor in chosen}, out / name)
    return out


def as_tensor(array: np.ndarray) -> Tensor:
    """A tensor of the same bits; torch does not know NumPy's bfloat16."""
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


class Qwen1(nn.Module):
    """Qwen1 in plain torch within seq_length, with its module names; logits [B,L,V] of ids [B,L]."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        hidden, vocab = config["hidden_size"], config["vocab_size"]
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(vocab, hidden),
                "h": nn.ModuleList(_Block(config) for _ in range(config["num_hidden_layers"])),
                "ln_f": _norm(config),
            }
        )
        self.lm_head = nn.Linear(hidden, vocab, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.transformer["wte"](ids)
        for block in self.transformer["h"]:
            x = block(x)
        logits: Tensor = self.lm_head(self.transformer["ln_f"](x))
        return logits

    def prepare_inputs_for_generation(self) -> None:
        """PEFT looks for it in every causal language model; it is not called here."""


class _Block(nn.Module):
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = _norm(config), _norm(config)
        self.attn, self.mlp = _Attention(config), _Mlp(config)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        out: Tensor = x + self.mlp(self.ln_2(x))
        return out


class _Attention(nn.Module):
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        hidden = config["hidden_size"]
        self.heads, self.base = config["num_attention_heads"], float(config["rotary_emb_base"])
        self.c_attn, self.c_proj = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in self.c_attn(x).chunk(3, -1))
        size, length = q.shape[-1], q.shape[-2]
        frequencies = self.base ** (-torch.arange(0, size, 2, dtype=torch.float32) / size)
        angles = torch.outer(torch.arange(length, dtype=torch.float32), frequencies).repeat(1, 2)
        q, k = (y * angles.cos() + _half_turned(y) * angles.sin() for y in (q, k))
        scores = q @ k.transpose(-1, -2) / size**0.5
        scores = scores.masked_fill(torch.ones(length, length, dtype=torch.bool).triu(1), -torch.inf)
        out: Tensor = self.c_proj((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
        return out


class _Mlp(nn.Module):
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        hidden, width = config["hidden_size"], config["intermediate_size"] // 2
        self.w1, self.w2 = nn.Linear(hidden, width, bias=False), nn.Linear(hidden, width, bias=False)
        self.c_proj = nn.Linear(width, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.c_proj(self.w1(x) * F.silu(self.w2(x)))
        return out


def _norm(config: dict[str, Any]) -> nn.Module:
    return nn.RMSNorm(config["hidden_size"], eps=config["layer_norm_epsilon"])


def _half_turned(x: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)


def load_qwen1(folder: Path) -> Qwen1:
    """The plain module, in float32, with the weights of a folder in safetensors files, all and no others."""
    model = Qwen1(json.loads((folder / "config.json").read_text()))
    found = {n: a for file in sorted(folder.glob("*.safetensors")) for n, a in load_file(file).items()}
    model.load_state_dict({name: as_tensor(array) for name, array in found.items()})
    return model
