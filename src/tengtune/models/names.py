"""THE weight-name table: canonical names, and how each foreign layout writes them.

Canonical inside tengtune are Hugging Face's Qwen2 names (`model.layers.0.self_attn.q_proj.weight`), which
Qwen1.5, 2, 2.5 and 3 share: for their folders the mapping is the identity. A linear's name is its weight's
without `.weight`; its adapter is called `<linear>.lora_A.weight` [rank, in] and `<linear>.lora_B.weight`
[out, rank].

Qwen1 keeps q, k and v in one linear, c_attn, and an adapter of it has one A for the three. Its canonical name
is `self_attn.qkv_proj`, whose rows are those of q_proj, k_proj and v_proj.
"""

from __future__ import annotations

import re

from tengtune.models.spec import Family, ModelSpec

LORA_A, LORA_B = ".lora_A.weight", ".lora_B.weight"

QKV = "self_attn.qkv_proj"
PARTS: dict[str, tuple[str, ...]] = {QKV: ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")}
"""A linear of a block that stands for several: its rows are theirs, one after the other."""

_QWEN1 = {
    "model.embed_tokens": "transformer.wte",
    "model.norm": "transformer.ln_f",
    "lm_head": "lm_head",
}
QWEN1_BLOCK = {
    "input_layernorm": "ln_1",
    QKV: "attn.c_attn",
    "self_attn.o_proj": "attn.c_proj",
    "post_attention_layernorm": "ln_2",
    "mlp.up_proj": "mlp.w1",
    "mlp.gate_proj": "mlp.w2",  # the code computes w1(x) * silu(w2(x))
    "mlp.down_proj": "mlp.c_proj",
}
"""Modules of a block, canonical -> Qwen1's; a tensor's last part (.weight, .lora_A.weight ...) stays."""

_WHOLE = {part: whole for whole, parts in PARTS.items() for part in parts}
_FROM_QWEN1 = {name: own for own, name in _QWEN1.items()}
_FROM_QWEN1_BLOCK = {name: own for own, name in QWEN1_BLOCK.items()}

_BLOCK, _BLOCK_QWEN1 = re.compile(r"model\.layers\.(\d+)\.(.+)"), re.compile(r"transformer\.h\.(\d+)\.(.+)")
_TENSOR = re.compile(r"(.+?)((?:\.lora_[AB])?\.(?:weight|bias))")

PEFT_PREFIX = "base_model.model."
"""PEFT wraps the model twice: PeftModel.base_model is a tuner, whose .model is the Hugging Face model."""

_PEFT_WRAPPERS = (".base_layer.", ".modules_to_save.")
"""What PEFT puts into the name of a tensor that replaces the model's own."""

_DERIVED = re.compile(
    r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq"
    r"|transformer\.(h\.\d+\.attn\.)?(rotary_emb\.inv_freq|logn_tensor|masked_bias)"
)


def to_stored(name: str, family: Family) -> str:
    """A canonical tensor's name (qkv_proj among them) as the family's folders and adapters write it."""
    if family != "qwen1":
        return name
    module, last = _module(name)
    if block := _BLOCK.fullmatch(module):
        return f"transformer.h.{block[1]}.{QWEN1_BLOCK.get(block[2], block[2])}{last}"
    return _QWEN1.get(module, module) + last


def from_stored(name: str) -> str:
    """The canonical name of a tensor in any family's folder or adapter; a name unknown to us stays."""
    module, last = _module(name)
    if block := _BLOCK_QWEN1.fullmatch(module):
        own = _FROM_QWEN1_BLOCK.get(block[2])
        return name if own is None else f"model.layers.{block[1]}.{own}{last}"
    return _FROM_QWEN1.get(module, module) + last


def stored_tensors(spec: ModelSpec) -> dict[str, list[str]]:
    """The tensors of a folder, by the names in its files -> the canonical tensors whose rows each one is."""
    table: dict[str, list[str]] = {}
    for name, _ in spec.tensors():
        whole = name
        if spec.family == "qwen1":
            module, last = _module(name)
            whole = whole_linear(module) + last
        table.setdefault(to_stored(whole, spec.family), []).append(name)
    return table


def whole_linear(linear: str) -> str:
    """Of `model.layers.0.self_attn.k_proj`: `model.layers.0.self_attn.qkv_proj`; other names stay."""
    block = _BLOCK.fullmatch(linear)
    return f"model.layers.{block[1]}.{_WHOLE.get(block[2], block[2])}" if block else linear


def parts_of(linear: str) -> list[str]:
    """Of `model.layers.0.self_attn.qkv_proj`: its q_proj, k_proj and v_proj; of others: themselves."""
    block = _BLOCK.fullmatch(linear)
    return [f"model.layers.{block[1]}.{part}" for part in parts_in_block(block[2])] if block else [linear]


def parts_in_block(linear: str) -> tuple[str, ...]:
    """The same for a linear named as inside a block, `self_attn.qkv_proj`."""
    return PARTS.get(linear, (linear,))


def to_peft(name: str, family: Family) -> str:
    """A canonical name as it stands in adapter_model.safetensors."""
    return PEFT_PREFIX + to_stored(name, family)


def from_peft(name: str) -> str | None:
    """The canonical name of a tensor of a PEFT adapter; None for a name PEFT does not write."""
    return from_stored(_unwrapped(name)) if name.startswith(PEFT_PREFIX) else None


def peft_module(name: str) -> str:
    """Of a LoRA tensor's name in an adapter file the module, as the model calls it."""
    return _module(_unwrapped(name))[0]


def _unwrapped(name: str) -> str:
    name = name[len(PEFT_PREFIX) :]
    for wrapper in _PEFT_WRAPPERS:
        name = name.replace(wrapper, ".")
    return name


def split_lora(name: str) -> tuple[str, str] | None:
    """(linear, LORA_A or LORA_B) of an adapter tensor's canonical name; None for any other tensor."""
    for suffix in (LORA_A, LORA_B):
        if name.endswith(suffix):
            return name[: -len(suffix)], suffix
    return None


def is_derived(name: str) -> bool:
    """Whether a stored tensor only repeats what config.json says (older files keep RoPE's frequencies)."""
    return _DERIVED.fullmatch(name) is not None


def _module(name: str) -> tuple[str, str]:
    """A tensor's module and the rest of its name: (`model.norm`, `.weight`)."""
    tensor = _TENSOR.fullmatch(name)
    return (tensor[1], tensor[2]) if tensor else (name, "")
