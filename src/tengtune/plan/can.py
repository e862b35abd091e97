"""Whether our back ends can run a plan on a kind of device: facts/capabilities.yaml, read without
capabilities.py, which loads pydantic for run files."""

from __future__ import annotations

from typing import Literal

from tengtune import facts
from tengtune.models.spec import ModelSpec
from tengtune.plan.hardware import Hardware
from tengtune.plan.profiles import OURS
from tengtune.plan.strategy import Base, Offload, Strategy

Kind = Literal["cpu", "cuda", "ascend_910", "ascend_910b"]
Verdict = Literal["yes", "no", "unverified"]

_BASES: dict[Base, str] = {"compute": "", "int8": "int8_base", "int8-all": "int8_all", "int4": "int4_base"}
_OFFLOADS: dict[Offload, str] = {"none": "", "optimizer": "offload_optimizer", "all": "offload_all"}


def kind_of(hardware: Hardware) -> Kind:
    """The column of capabilities.yaml; Ascend cards of which only the size was named count as the newer."""
    if hardware.is_cpu:
        return "cpu"
    if hardware.generation == "910":
        return "ascend_910"
    return "ascend_910b" if hardware.generation or "plan.any_card" in hardware.doubts else "cuda"


def resolved(dtype: str, engine: str, kind: Kind) -> str:
    """What `model.dtype` computes in there; auto: float32 on a CPU, else bfloat16 where the back end has it,
    else float16."""
    if dtype != "auto":
        return dtype
    if kind == "cpu":
        return "float32"
    return "bfloat16" if verdict("bfloat16", engine, kind) != "no" else "float16"


def features(spec: ModelSpec, strategy: Strategy, dtype: str) -> tuple[str, ...]:
    """What a plan asks for, as capabilities.yaml calls it. dtype: what it computes in, not auto."""
    lora = strategy.method == "lora"
    stretch = spec.stretch
    asked = {
        strategy.method: True,
        dtype: dtype != "float32",
        "ranks": strategy.cards > 1,
        "nodes": strategy.nodes > 1,
        "train_embeddings": lora and strategy.train_embeddings,
        "qwen1_lora": lora and spec.family == "qwen1",
        "qwen1_long": stretch is not None and strategy.row_tokens > stretch.length,
        _BASES[strategy.base]: lora,
        f"zero_{strategy.zero}": strategy.zero > 0,
        _OFFLOADS[strategy.offload]: True,
        "recompute_full": strategy.recompute,
    }
    return tuple(name for name, wanted in asked.items() if name and wanted)


def lacking(spec: ModelSpec, strategy: Strategy, engine: str, kind: Kind, dtype: str) -> tuple[str, ...]:
    """What the plan asks of our back end that it does not have there: the method alone where it does not run
    there at all. Nothing is said of other programs."""
    if engine not in OURS:
        return ()
    dtype = resolved(dtype, engine, kind)
    found = tuple(name for name in features(spec, strategy, dtype) if verdict(name, engine, kind) == "no")
    return found[:1] if strategy.method in found else found


def unverified(spec: ModelSpec, strategy: Strategy, engine: str, kind: Kind, dtype: str) -> tuple[str, ...]:
    """What of the plan is written and has never run on that kind of device."""
    asked = features(spec, strategy, resolved(dtype, engine, kind))
    return tuple(name for name in asked if verdict(name, engine, kind) == "unverified")


def verdict(name: str, engine: str, kind: Kind) -> Verdict:
    """A cell of the table; no for what is not in it."""
    table: dict[str, dict[str, dict[Kind, Verdict]]] = facts.words("capabilities.yaml")
    return table[name][engine][kind] if name in table else "no"
