"""ModelSpec: the shape of a dense Qwen model, read from its config.json, and exact counts from it.

Legend of the formulas: h hidden, l layers, q = heads x head_dim, kv = kv_heads x head_dim, f ffn, v vocab.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tengtune.json_file import read_object
from tengtune.models.folder import refuse_run_folder, require
from tengtune.ui.lists import joined
from tengtune.ui.problems import Problem

Family = Literal["qwen1", "qwen2", "qwen3"]

MAX_LAYERS = 1000

ARCHITECTURES: dict[str, Family] = {
    "QWenLMHeadModel": "qwen1",
    "Qwen2ForCausalLM": "qwen2",  # Qwen1.5, Qwen2 and Qwen2.5
    "Qwen3ForCausalLM": "qwen3",
}
MODEL_TYPES: dict[str, Family] = {"qwen": "qwen1", "qwen2": "qwen2", "qwen3": "qwen3"}
DTYPES = ("float32", "float16", "bfloat16", "float64", "auto")
"""What config.json may say the weights are kept in; the weights themselves say what they are."""


@dataclass(frozen=True)
class Stretch:
    """What Qwen1 does with texts longer than `length`, the length it was trained at, when it evaluates and
    answers; in training it does neither. (QwenLM's modeling_qwen.py: use_dynamic_ntk, use_logn_attn.)

    ntk: a text of up to 2, 4, 8 ... times the length has RoPE's base multiplied, at all its positions.
    The text is the prompt where tokens are then added one by one: the base stays as it was chosen there.
    logn: queries beyond the length are multiplied by the logarithm of their position to base `length`.
    """

    length: int
    ntk: bool
    logn: bool

    def base_factor(self, tokens: int, head_dim: int) -> float:
        """What RoPE's base is multiplied by in a text of so many tokens: alpha^(d / (d - 2)), where alpha
        is 1 up to `length`, 3 up to twice, 7 up to four times that."""
        if not self.ntk:
            return 1.0
        doublings = (-(-tokens // self.length) - 1).bit_length()
        return math.pow(2 ** (doublings + 1) - 1, head_dim / (head_dim - 2))

    def query_factor(self, position: int) -> float:
        """What the query at this position (from 0) is multiplied by."""
        beyond = self.logn and position >= self.length
        return math.log(position + 1) / math.log(self.length) if beyond else 1.0


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
    stretch: Stretch | None = None

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
    require(folder)
    path = folder / "config.json"
    if not path.exists():
        refuse_run_folder(folder)
        raise Problem("model.no_config", where=folder)
    return read_object(path, "model.bad_json")


def from_folder(folder: Path) -> ModelSpec:
    """The spec of a model folder; Problem for an architecture we do not know or a key that is missing."""
    return from_config(read_config(folder), folder / "config.json")


def from_config(config: dict[str, Any], where: object = "config.json") -> ModelSpec:
    """The spec in a Hugging Face config. Keys are read as the family spells them."""
    architectures = config.get("architectures") or []
    if not isinstance(architectures, list):
        architectures = [architectures]
    family = next((ARCHITECTURES[a] for a in architectures if str(a) in ARCHITECTURES), None)
    if family is None and not architectures:
        family = MODEL_TYPES.get(str(config.get("model_type")))
    if family is None:
        found = joined(architectures) or str(config.get("model_type", "?"))
        raise Problem("model.unknown_architecture", where=where, found=found, known=joined(ARCHITECTURES))
    kind = config.get("model_type")
    if kind is not None and MODEL_TYPES.get(str(kind)) != family:
        # transformers would build the model by this key, not by `architectures`.
        raise Problem("model.other_type", where=where, found=kind, architecture=architectures[0])
    if config.get("quantization_config"):
        raise Problem("model.quantized", where=where)
    for key in ("dtype", "torch_dtype"):
        value = config.get(key)
        if value is not None and str(value).removeprefix("torch.") not in DTYPES:
            raise Problem("model.dtype", where=where, key=key, value=value, known=joined(DTYPES[:3]))
    return _qwen1(config, where) if family == "qwen1" else _qwen2(config, where, family)


def _qwen2(config: dict[str, Any], where: object, family: Family) -> ModelSpec:
    """Qwen1.5 to Qwen3; rope_theta stands at the top or in rope_parameters."""
    reader = _Keys(config, where)
    heads, hidden = reader.integer("num_attention_heads"), reader.integer("hidden_size")
    kv_heads = reader.integer("num_key_value_heads", default=heads)
    if heads % kv_heads:
        raise Problem("model.bad_key", where=where, key="num_key_value_heads", value=kv_heads)
    if config.get("head_dim") is None and hidden % heads:
        raise Problem("model.bad_key", where=where, key="num_attention_heads", value=heads)
    kinds = config.get("layer_types") or []
    if not isinstance(kinds, list):
        raise Problem("model.bad_key", where=where, key="layer_types", value=kinds)
    if reader.flag("use_sliding_window") or any(kind != "full_attention" for kind in kinds):
        raise Problem("model.sliding_window", where=where)
    rope = _mapping(config, "rope_parameters", where)
    _refuse_scaled_rope(config, rope, where)
    _refuse_other({**rope, **config}, _QWEN2_FIXED, where)
    return ModelSpec(
        family=family,
        hidden=hidden,
        layers=reader.integer("num_hidden_layers"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=reader.integer("head_dim", default=hidden // heads),
        ffn=reader.integer("intermediate_size"),
        vocab=reader.integer("vocab_size"),
        rope_theta=_Keys({**config, **rope}, where).number("rope_theta", 10000.0),
        rms_eps=reader.number("rms_norm_eps", 1e-6),
        max_positions=reader.integer("max_position_embeddings", default=32768),
        tie=reader.flag("tie_word_embeddings"),
        qkv_bias=family == "qwen2" or reader.flag("attention_bias"),
        qk_norm=family == "qwen3",
    )


_QWEN1_FIXED: dict[str, tuple[object, ...]] = {
    "no_bias": (True,),  # none but c_attn's
    "rotary_pct": (1.0,),
    "scale_attn_weights": (True,),
    "apply_residual_connection_post_layernorm": (False,),
}
_QWEN2_FIXED: dict[str, tuple[object, ...]] = {
    "hidden_act": ("silu", "swish"),  # two names of one function
    "partial_rotary_factor": (1.0,),
}
"""Keys that have one of these values in every published model, and that our decoder has no other for."""


def _refuse_other(config: dict[str, Any], fixed: dict[str, tuple[object, ...]], where: object) -> None:
    for key, values in fixed.items():
        if config.get(key) is not None and config[key] not in values:
            raise Problem("model.not_built", where=where, key=key, value=config[key])


def _qwen1(config: dict[str, Any], where: object) -> ModelSpec:
    """Qwen1, in the key names of its first release and of the later ones.

    Its intermediate_size is the width of gate and up together. Training stretches nothing, so seq_length, not
    max_position_embeddings, is what the length of a run's rows is measured by.
    """
    _refuse_other(config, _QWEN1_FIXED, where)
    reader = _Keys(config, where)
    heads, hidden = reader.integer("num_attention_heads", "n_head"), reader.integer("hidden_size", "n_embd")
    if hidden % heads:
        raise Problem("model.bad_key", where=where, key="num_attention_heads", value=heads)
    head_dim = reader.integer("kv_channels", default=hidden // heads)
    if head_dim * heads != hidden or head_dim < 4:
        raise Problem("model.bad_key", where=where, key="kv_channels", value=head_dim)
    width = reader.integer("intermediate_size", "ffn_hidden_size")
    if width % 2:
        raise Problem("model.bad_key", where=where, key="intermediate_size", value=width)
    vocab = reader.integer("vocab_size", "padded_vocab_size")
    padded = reader.integer("padded_vocab_size", default=vocab)
    if padded != vocab:  # the first release sized its embedding by one and its head by the other
        raise Problem("model.bad_key", where=where, key="padded_vocab_size", value=padded)
    # Where a config has neither key, the code that belongs to it decides: on, but for the first release.
    usual = "n_embd" not in config
    ntk, logn = (reader.flag(key, usual) for key in ("use_dynamic_ntk", "use_logn_attn"))
    length = reader.integer("seq_length")
    return ModelSpec(
        family="qwen1",
        hidden=hidden,
        layers=reader.integer("num_hidden_layers", "n_layer"),
        heads=heads,
        kv_heads=heads,
        head_dim=head_dim,
        ffn=width // 2,
        vocab=vocab,
        rope_theta=reader.number("rotary_emb_base", 10000.0),
        rms_eps=reader.number("layer_norm_epsilon", 1e-6),
        max_positions=length,
        tie=reader.flag("tie_word_embeddings"),
        qkv_bias=True,
        qk_norm=False,
        stretch=Stretch(length, ntk, logn) if ntk or logn else None,
    )


def _refuse_scaled_rope(config: dict[str, Any], rope: dict[str, Any], where: object) -> None:
    """A scaled RoPE (YaRN and others) changes every position: refusing beats computing another model."""
    scaling = _mapping(config, "rope_scaling", where)
    kind = scaling.get("rope_type") or scaling.get("type") or rope.get("rope_type") or "default"
    if kind != "default":
        raise Problem("model.rope_scaling", where=where, kind=kind)


def _mapping(config: dict[str, Any], key: str, where: object) -> dict[str, Any]:
    """The object under `key`, empty when there is none."""
    value = config.get(key) or {}
    if not isinstance(value, dict):
        raise Problem("model.bad_key", where=where, key=key, value=value)
    return value


class _Keys:
    """Typed access to a config, naming the key in every complaint."""

    def __init__(self, config: dict[str, Any], where: object) -> None:
        self.config, self.where = config, where

    def integer(self, *keys: str, default: int | None = None) -> int:
        """The value of the first of `keys` that is there: spellings of one thing."""
        key = next((key for key in keys if self.config.get(key) is not None), None)
        if key is None:
            if default is None:
                raise Problem("model.missing_key", where=self.where, key=keys[0])
            return default
        value = self.config[key]
        most = MAX_LAYERS if key in ("num_hidden_layers", "n_layer") else 2**31
        if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < most:
            raise Problem("model.bad_key", where=self.where, key=key, value=value)
        return value

    def flag(self, key: str, default: bool = False) -> bool:
        """A yes or no; a text, "false" for example, is neither."""
        value = self.config.get(key)
        if value is not None and not isinstance(value, bool):
            raise Problem("model.bad_key", where=self.where, key=key, value=value)
        return default if value is None else value

    def number(self, key: str, default: float) -> float:
        value = self.config.get(key)
        if value is None:
            return default
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < 1e30:
            raise Problem("model.bad_key", where=self.where, key=key, value=value)
        return float(value)
