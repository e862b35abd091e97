"""LoRA's targets in mindformers: names of linears there, and the pattern target_modules."""

from __future__ import annotations

from collections.abc import Iterable

from tengtune.models.layouts import MINDFORMERS, stored_name
from tengtune.models.names import parts_in_block
from tengtune.models.spec import Family, ModelSpec
from tengtune.models.targets import find_targets

EXCLUDED: dict[Family, list[str]] = {
    "qwen1": ["*wte*", "*lm_head*"],
    "qwen2": ["*tok_embeddings*", "*lm_head*"],
}
"""pet_config.freeze_exclude that leaves embedding and head to be trained."""


LINEARS = (
    "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
    "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj",
)  # fmt: skip


def cells(family: Family) -> dict[str, str]:
    """mindformers' names of a block's linears -> ours, in our order: {"wq": "q_proj", ...}."""
    stored = {own: stored_name(f"model.layers.0.{own}.weight", family, MINDFORMERS) for own in LINEARS}
    return {name.split(".")[-2]: own.rpartition(".")[2] for own, name in stored.items()}


def pattern(spec: ModelSpec, targets: Iterable[str], where: object) -> str:
    """target_modules for lora.targets; Problem for a target the model has not."""
    wanted = {
        part.rpartition(".")[2] for own in find_targets(spec, targets, where) for part in parts_in_block(own)
    }
    return "|".join(f".*{cell}" for cell, own in cells(spec.family).items() if own in wanted)


def targets(text: str, family: Family) -> list[str] | None:
    """lora.targets for a target_modules of the usual form, `.*wq|.*wk`; None for any other."""
    known = cells(family)
    found = []
    for part in text.split("|"):
        own = known.get(part.strip().removeprefix(".*").removesuffix("$"))
        if own is None:
            return None
        found.append(own)
    return in_order(found, family)


def in_order(found: Iterable[str], family: Family) -> list[str]:
    """Names of linears in the order of a block, each once."""
    names = set(found)
    return [own for own in cells(family).values() if own in names]


def unshared(found: Iterable[str]) -> list[str]:
    """Which of q, k, v lack: Qwen1's adapters have them together, with one A."""
    names = set(found)
    return [own for own in ("q_proj", "k_proj", "v_proj") if own not in names]
