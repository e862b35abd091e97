"""The layouts that weights are kept in: which tensor of a file holds which canonical ones, and how.

`hf` is the family's own Hugging Face folder (models/names.py has its names). The others are MindSpore's:
- `mindformers`: Qwen1 (research/qwen, r1.0 to r1.3) and Qwen1.5, 2, 2.5 (the Llama classes). Both call the
  feed-forward w1, w2, w3, but SiLU acts on Qwen1's w3 and on the later ones' w1.
- `qkv-concat`: the same with qkv_concat on. w_qkv has, for each group of heads, its rows of q, of k and of v;
  w_gate_hidden has a row of gate and a row of up in turn.
- `mcore`: Qwen3's names, and Qwen2's in the same classes. linear_qkv is as w_qkv, linear_fc1 as
  w_gate_hidden. With use_contiguous_weight_layout_attention: True it is `mcore-contiguous-qkv`, with
  use_interleaved_weight_layout_mlp: False `mcore-contiguous-mlp`, with both `mcore-contiguous`: one part
  below the other. Names and shapes do not tell these four apart.
Source: the converters of mindformers r1.0 to r1.8 and master, and their model code.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal

from tengtune.models import names
from tengtune.models.spec import Family, ModelSpec

HF, MINDFORMERS, QKV_CONCAT, MCORE = "hf", "mindformers", "qkv-concat", "mcore"
MCORE_QKV, MCORE_MLP, MCORE_BOTH = "mcore-contiguous-qkv", "mcore-contiguous-mlp", "mcore-contiguous"
HALF_REVERSED = "half-reversed"
"""What the reverse converters of mindformers r1.2 and r1.3 make of Qwen1: the biases of q, k and v in c_attn,
their weights still apart and under MindSpore's names. Read, never written."""

MCORES = (MCORE, MCORE_QKV, MCORE_MLP, MCORE_BOTH)
WRITTEN = (MINDFORMERS, QKV_CONCAT, *MCORES)
"""The MindSpore layouts that can be asked for."""

USUAL: dict[Family, str] = {"qwen1": MINDFORMERS, "qwen2": MINDFORMERS, "qwen3": MCORE}
"""The MindSpore layout of each family when none is asked for."""


@dataclass(frozen=True)
class Stored:
    """One tensor of a file: of each part a share of its rows, one after the other, `groups` times over."""

    parts: tuple[str, ...]
    groups: int = 1


@dataclass(frozen=True)
class Woven:
    """A linear of a block that holds the rows of several, and how often they take turns."""

    parts: tuple[str, ...]
    turns: Literal["once", "kv_heads", "ffn"]
    lasts: tuple[str, ...] = (".weight", ".bias")

    def groups(self, spec: ModelSpec) -> int:
        return {"once": 1, "kv_heads": spec.kv_heads, "ffn": spec.ffn}[self.turns]


@dataclass(frozen=True)
class Table:
    """Names: canonical tensors outside the blocks -> theirs; what stands before a block's number; canonical
    modules of a block -> theirs; their linears that hold several."""

    top: Mapping[str, str]
    block: str
    modules: Mapping[str, str]
    woven: Mapping[str, Woven] = field(default_factory=dict)


_Q, _K, _V = names.PARTS[names.QKV]
_GATE_UP = ("mlp.gate_proj", "mlp.up_proj")
_ATTENTION = {_Q: "attention.wq", _K: "attention.wk", _V: "attention.wv"}
_NORMS = {"input_layernorm": "attention_norm", "post_attention_layernorm": "ffn_norm"}
_LLAMA_TOP = {
    "model.embed_tokens.weight": "model.tok_embeddings.embedding_weight",
    "model.norm.weight": "model.norm_out.weight",
    "lm_head.weight": "lm_head.weight",
}
_LLAMA_REST = {**_NORMS, "self_attn.o_proj": "attention.wo", "mlp.down_proj": "feed_forward.w2"}

_QWEN1 = Table(
    {
        "model.embed_tokens.weight": "transformer.wte.embedding_weight",
        "model.norm.weight": "transformer.ln_f.weight",
        "lm_head.weight": "lm_head.weight",
    },
    "transformer.layers.",
    {
        **_ATTENTION,
        **_LLAMA_REST,
        "mlp.up_proj": "feed_forward.w1",
        "mlp.gate_proj": "feed_forward.w3",  # it computes w2(w1(x) * silu(w3(x)))
    },
)
_QWEN1_HALF = Table(
    {name: names.to_stored(name, "qwen1") for name in _QWEN1.top},
    "transformer.h.",
    {**names.QWEN1_BLOCK, **_ATTENTION},
    {names.QWEN1_BLOCK[names.QKV]: Woven((_Q, _K, _V), "once", (".bias",))},
)
_LLAMA = Table(
    _LLAMA_TOP,
    "model.layers.",
    {**_ATTENTION, **_LLAMA_REST, "mlp.gate_proj": "feed_forward.w1", "mlp.up_proj": "feed_forward.w3"},
)
_CONCAT = Table(
    _LLAMA_TOP,
    "model.layers.",
    _LLAMA_REST,
    {
        "attention.w_qkv": Woven((_Q, _K, _V), "kv_heads"),
        "feed_forward.w_gate_hidden": Woven(_GATE_UP, "ffn"),
    },
)


def _mcore(qkv: Literal["once", "kv_heads"], mlp: Literal["once", "ffn"]) -> Table:
    return Table(
        {
            "model.embed_tokens.weight": "embedding.word_embeddings.weight",
            "model.norm.weight": "decoder.final_layernorm.weight",
            "lm_head.weight": "output_layer.weight",
        },
        "decoder.layers.",
        {
            "input_layernorm": "input_layernorm",
            "self_attn.o_proj": "self_attention.linear_proj",
            "self_attn.q_norm": "self_attention.q_layernorm",
            "self_attn.k_norm": "self_attention.k_layernorm",
            "post_attention_layernorm": "pre_mlp_layernorm",
            "mlp.down_proj": "mlp.linear_fc2",
        },
        {"self_attention.linear_qkv": Woven((_Q, _K, _V), qkv), "mlp.linear_fc1": Woven(_GATE_UP, mlp)},
    )


_MCORES = {
    MCORE: _mcore("kv_heads", "ffn"),
    MCORE_QKV: _mcore("once", "ffn"),
    MCORE_MLP: _mcore("kv_heads", "once"),
    MCORE_BOTH: _mcore("once", "once"),
}
_TABLES: dict[Family, dict[str, Table]] = {
    "qwen1": {MINDFORMERS: _QWEN1, HALF_REVERSED: _QWEN1_HALF},
    "qwen2": {MINDFORMERS: _LLAMA, QKV_CONCAT: _CONCAT, **_MCORES},
    "qwen3": _MCORES,
}

_SIGNS: tuple[tuple[str, Family, str], ...] = (
    (r"transformer\.h\.\d+\.attention\.", "qwen1", HALF_REVERSED),
    (r"transformer\.h\.\d+\.", "qwen1", HF),
    (r"transformer\.layers\.\d+\.", "qwen1", MINDFORMERS),
    (r"model\.layers\.\d+\.(attention\.w_qkv|feed_forward\.w_gate_hidden)\.", "qwen2", QKV_CONCAT),
    (r"model\.layers\.\d+\.(attention|feed_forward)\.", "qwen2", MINDFORMERS),
    (r"model\.layers\.\d+\.self_attn\.q_norm\.", "qwen3", HF),
    (r"model\.layers\.\d+\.(self_attn|mlp)\.", "qwen2", HF),
    (r"decoder\.layers\.\d+\.self_attention\.q_layernorm\.", "qwen3", MCORE),
    (r"decoder\.layers\.\d+\.", "qwen2", MCORE),
)
"""How the names in a file begin -> family and layout; the first that fits any of them counts."""

_BLOCK = re.compile(r"model\.layers\.(\d+)\.(.+)(\.\w+)", re.ASCII)
_LORA = re.compile(r"\.(?:(?:mindpet|tk)_delta_)?lora_([abAB])(?:\.weight)?")
_PART = re.compile(rf"(.+?)(\.weight|\.bias|{_LORA.pattern})", re.ASCII)
MINDPET, SLORA = "mindpet_delta_lora_{}", "lora_{}"
"""An adapter's tensors behind the linear's name: what mindpet trains and mindformers loads, and what the
adapters for its multi-LoRA serving (and converter of 2.5) are called."""


SLORA_LAYOUT = "slora"
"""mindformers' names for serving several adapters; MINDFORMERS stands for those it trains."""


def available(family: Family) -> tuple[str, ...]:
    """The MindSpore layouts of a family that can be written."""
    return tuple(key for key in WRITTEN if key in _TABLES[family])


def detect(found: Collection[str]) -> tuple[Family, str] | None:
    """Family and layout that the names in a file belong to; None for names that are no Qwen's. Of `mcore` and
    its variants, `mcore`; of Qwen2 and 3 in an adapter, Qwen2."""
    for sign, family, layout in _SIGNS:
        pattern = re.compile(sign, re.ASCII)
        if any(pattern.match(name) for name in found):
            return family, layout
    return None


def stored_tensors(spec: ModelSpec, layout: str) -> dict[str, Stored]:
    """Every tensor of a model in a layout of its family: the name in the files -> what it holds."""
    if layout == HF:
        return {name: Stored(tuple(parts)) for name, parts in names.stored_tensors(spec).items()}
    table, result = _TABLES[spec.family][layout], dict[str, Stored]()
    for name, _ in spec.tensors():
        stored, woven = _place(table, name)
        if woven is None:
            result[stored] = Stored((name,))
        elif stored not in result:
            number, _, last = _in_block(name)
            parts = tuple(f"model.layers.{number}.{part}{last}" for part in woven.parts)
            result[stored] = Stored(parts, woven.groups(spec))
    return result


def stored_name(name: str, family: Family, layout: str, lora: str = MINDPET) -> str:
    """A canonical tensor's name in a layout in which it stands alone, an adapter's included."""
    if layout == HF:
        return names.to_stored(name, family)
    pair = names.split_lora(name)
    if pair is None:
        return _place(_TABLES[family][layout], name)[0]
    module = _place(_TABLES[family][layout], f"{pair[0]}.weight")[0].removesuffix(".weight")
    return f"{module}.{lora.format('a' if pair[1] == names.LORA_A else 'b')}"


def canonical_name(stored: str, family: Family, layout: str) -> str | None:
    """The canonical name of a stored tensor that stands alone, an adapter's included; None for any other."""
    if layout == HF:
        return names.from_stored(stored)
    table = _TABLES[family][layout]
    for own, theirs in table.top.items():
        if stored == theirs:
            return own
    part = _PART.fullmatch(stored)
    if part is None:
        return None
    lora = part[3] and (names.LORA_A if part[3] in "aA" else names.LORA_B)
    module, last = part[1], lora or part[2]
    if not module.startswith(table.block):
        tops = {theirs.rpartition(".")[0]: own.rpartition(".")[0] for own, theirs in table.top.items()}
        return f"{tops[module]}{lora}" if lora and module in tops else None
    number, _, rest = module[len(table.block) :].partition(".")
    linear = next((own for own, theirs in table.modules.items() if theirs == rest), None)
    return f"model.layers.{number}.{linear}{last}" if linear and number.isdecimal() else None


def lora_linear(stored: str) -> str | None:
    """The linear, as its layout calls it, that a stored tensor of an adapter is for; None for others."""
    part = _PART.fullmatch(stored)
    return part[1] if part and part[3] else None


def is_mindspore_lora(stored: str) -> bool:
    """Whether a stored tensor is an adapter's under a name of mindformers', which PEFT does not write."""
    part = _PART.fullmatch(stored)
    return part is not None and part[3] is not None and not stored.endswith(".weight")


def is_slora(stored: str) -> bool:
    """Whether it has one of the names for serving several adapters."""
    return is_mindspore_lora(stored) and stored.endswith((".lora_a", ".lora_b"))


def _place(table: Table, name: str) -> tuple[str, Woven | None]:
    """Where a canonical tensor stands: the stored name, and the linear it is woven into, if it is."""
    if name in table.top:
        return table.top[name], None
    number, module, last = _in_block(name)
    for theirs, woven in table.woven.items():
        if module in woven.parts and last in woven.lasts:
            return f"{table.block}{number}.{theirs}{last}", woven
    return f"{table.block}{number}.{table.modules[module]}{last}", None


def _in_block(name: str) -> tuple[str, str, str]:
    """Of a canonical tensor in a block: the block's number, the module, the last part of the name."""
    match = _BLOCK.fullmatch(name)
    assert match is not None  # all others stand in the table's top
    return match[1], match[2], match[3]
