"""THE weight-name table: canonical names, and how each foreign layout writes them.

Canonical inside tengtune are Hugging Face's Qwen2 names (`model.layers.0.self_attn.q_proj.weight`), which
Qwen1.5, 2, 2.5 and 3 share: for their folders the mapping is the identity. A linear's name is its weight's
without `.weight`; its adapter is called `<linear>.lora_A.weight` [rank, in] and `<linear>.lora_B.weight`
[out, rank].
"""

from __future__ import annotations

import re

LORA_A, LORA_B = ".lora_A.weight", ".lora_B.weight"

_PEFT_PREFIX = "base_model.model."
"""PEFT wraps the model twice: PeftModel.base_model is a tuner, whose .model is the Hugging Face model."""

_PEFT_WRAPPERS = (".base_layer.", ".modules_to_save.")
"""What PEFT puts into the name of a tensor that replaces the model's own."""

_DERIVED = re.compile(r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq\Z")


def to_peft(name: str) -> str:
    """A canonical name as it stands in adapter_model.safetensors."""
    return _PEFT_PREFIX + name


def from_peft(name: str) -> str | None:
    """The canonical name of a tensor of a PEFT adapter; None for a name PEFT does not write."""
    if not name.startswith(_PEFT_PREFIX):
        return None
    name = name[len(_PEFT_PREFIX) :]
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
    return _DERIVED.match(name) is not None
