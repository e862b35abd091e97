"""ModelSpec: the shape of a dense Qwen model, read from its config.json, and exact counts from it.

Legend of the formulas: h hidden, l layers, q = heads x head_dim, kv = kv_heads x head_dim, f ffn, v vocab.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tengtune.json_file import read_object
from tengtune.ui.problems import Problem

Family = Literal["qwen2", "qwen3"]

ARCHITECTURES: dict[str, Family] = {
    "Qwen2ForCausalLM": "qwen2",  # Qwen1.5, Qwen2 and Qwen2.5
    "Qwen3ForCausalLM": "qwen3",
}


@dataclass(frozen=True)
class ModelSpec:
    """A dense Qwen decoder: pre-norm blocks of grouped-query attention and SwiGLU.

    ffn is the width of one feed-forward matrix. eps, theta and lengths come from the user's config.
    """

    family: Family
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    rope_theta: float
    rms_eps: float
    max_positions: int
    tie: bool
    qkv_bias: bool
    qk_norm: bool

    @property
    def q_width(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        return self.kv_heads * self.head_dim

    def linears(self) -> dict[str, tuple[int, int]]:
        """The linears of one block: name -> (out, in)."""
        h, q, kv, f = self.hidden, self.q_width, self.kv_width, self.ffn
        return {
            "self_attn.q_proj": (q, h),
            "self_attn.k_proj": (kv, h),
            "self_attn.v_proj": (kv, h),
            "self_attn.o_proj": (h, q),
            "mlp.gate_proj": (f, h),
            "mlp.up_proj": (f, h),
            "mlp.down_proj": (h, f),
        }

    def block_tensors(self) -> dict[str, tuple[int, ...]]:
        """All tensors of one block, in Hugging Face's order: name inside the block -> shape."""
        tensors: dict[str, tuple[int, ...]] = {"input_layernorm.weight": (self.hidden,)}
        for name, (out, inner) in self.linears().items():
            tensors[f"{name}.weight"] = (out, inner)
            if self.qkv_bias and name.endswith(("q_proj", "k_proj", "v_proj")):
                tensors[f"{name}.bias"] = (out,)
        if self.qk_norm:
            tensors["self_attn.q_norm.weight"] = (self.head_dim,)
            tensors["self_attn.k_norm.weight"] = (self.head_dim,)
        tensors["post_attention_layernorm.weight"] = (self.hidden,)
        return tensors

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Every tensor of the model by canonical name with its shape."""
        yield "model.embed_tokens.weight", (self.vocab, self.hidden)
        for layer in range(self.layers):
            for name, shape in self.block_tensors().items():
                yield f"model.layers.{layer}.{name}", shape
        yield "model.norm.weight", (self.hidden,)
        if not self.tie:
            yield "lm_head.weight", (self.vocab, self.hidden)

    def parameters(self) -> int:
        """Exact number of parameters; a tied head counts once."""
        total = 0
        for _, shape in self.tensors():
            count = 1
            for size in shape:
                count *= size
            total += count
        return total

    def flops_per_token(self, context: float) -> float:
        """Forward FLOP per token without the head: 2 per weight of the linears, and causal attention
        over `context` earlier tokens (2 matrix products of 2 x q x context)."""
        linear = sum(out * inner for out, inner in self.linears().values())
        return self.layers * (2.0 * linear + 4.0 * self.q_width * context)

    def head_flops(self) -> float:
        """Forward FLOP of the LM head per position."""
        return 2.0 * self.hidden * self.vocab

    def kv_bytes_per_token(self, bytes_per_value: int) -> int:
        """Key-value cache per token of context."""
        return 2 * self.layers * self.kv_width * bytes_per_value


def read_config(folder: Path) -> dict[str, Any]:
    """The folder's config.json as a dict; Problem when it is missing or no JSON object."""
    path = folder / "config.json"
    if folder.is_dir() and not path.exists():
        raise Problem("model.no_config", where=folder)
    return read_object(path, "model.bad_json")


def from_folder(folder: Path) -> ModelSpec:
    """The spec of a model folder; Problem for an architecture we do not know or a key that is missing."""
    return from_config(read_config(folder), folder / "config.json")


def from_config(config: dict[str, Any], where: object = "config.json") -> ModelSpec:
    """The spec in a Hugging Face config (Qwen2, Qwen3; rope_theta at the top or in rope_parameters)."""
    architectures = config.get("architectures") or []
    family = next((ARCHITECTURES[a] for a in architectures if a in ARCHITECTURES), None)
    if family is None and not architectures and config.get("model_type") in ("qwen2", "qwen3"):
        family = "qwen2" if config["model_type"] == "qwen2" else "qwen3"
    if family is None:
        found = ", ".join(map(str, architectures)) or str(config.get("model_type", "?"))
        raise Problem("model.unknown_architecture", where=where, found=found, known=", ".join(ARCHITECTURES))

    reader = _Keys(config, where)
    heads, hidden = reader.integer("num_attention_heads"), reader.integer("hidden_size")
    kv_heads = reader.integer("num_key_value_heads", heads)
    if heads % kv_heads:
        raise Problem("model.bad_key", where=where, key="num_key_value_heads", value=kv_heads)
    if config.get("head_dim") is None and hidden % heads:
        raise Problem("model.bad_key", where=where, key="num_attention_heads", value=heads)
    if config.get("use_sliding_window"):
        raise Problem("model.sliding_window", where=where)
    rope = config.get("rope_parameters") or {}
    _refuse_scaled_rope(config, rope, where)
    return ModelSpec(
        family=family,
        hidden=hidden,
        layers=reader.integer("num_hidden_layers"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=reader.integer("head_dim", hidden // heads),
        ffn=reader.integer("intermediate_size"),
        vocab=reader.integer("vocab_size"),
        rope_theta=_Keys({**config, **rope}, where).number("rope_theta", 10000.0),
        rms_eps=reader.number("rms_norm_eps", 1e-6),
        max_positions=reader.integer("max_position_embeddings", 32768),
        tie=bool(config.get("tie_word_embeddings", False)),
        qkv_bias=family == "qwen2" or bool(config.get("attention_bias", False)),
        qk_norm=family == "qwen3",
    )


def _refuse_scaled_rope(config: dict[str, Any], rope: dict[str, Any], where: object) -> None:
    """A scaled RoPE (YaRN and others) changes every position: refusing beats computing another model."""
    scaling = config.get("rope_scaling") or {}
    kind = scaling.get("rope_type") or scaling.get("type") or rope.get("rope_type") or "default"
    if kind != "default":
        raise Problem("model.rope_scaling", where=where, kind=kind)


class _Keys:
    """Typed access to a config, naming the key in every complaint."""

    def __init__(self, config: dict[str, Any], where: object) -> None:
        self.config, self.where = config, where

    def integer(self, key: str, default: int | None = None) -> int:
        value = self.config.get(key)
        if value is None:
            if default is None:
                raise Problem("model.missing_key", where=self.where, key=key)
            return default
        if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 2**31:
            raise Problem("model.bad_key", where=self.where, key=key, value=value)
        return value

    def number(self, key: str, default: float) -> float:
        value = self.config.get(key)
        if value is None:
            return default
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < 1e30:
            raise Problem("model.bad_key", where=self.where, key=key, value=value)
        return float(value)
