"""What a LoRA adapter is made for: lora.targets of a run file, and PEFT's target_modules.

Linears are named as inside a block: `self_attn.o_proj`.
"""

from __future__ import annotations

from collections.abc import Iterable

from tengtune.models.names import PARTS, QWEN1_BLOCK
from tengtune.models.spec import Family, ModelSpec
from tengtune.ui.lists import joined
from tengtune.ui.problems import Problem


def adapted_linears(spec: ModelSpec) -> dict[str, tuple[int, int]]:
    """The linears of a block that can have an adapter: name -> (out, in). Qwen1's q, k and v are one."""
    linears = spec.linears()
    if spec.family != "qwen1":
        return linears
    table: dict[str, tuple[int, int]] = {}
    for whole, parts in PARTS.items():
        table[whole] = (sum(linears[part][0] for part in parts), linears[parts[0]][1])
        linears = {name: shape for name, shape in linears.items() if name not in parts}
    return {**table, **linears}


def find_targets(spec: ModelSpec, wanted: Iterable[str], where: object = None) -> list[str]:
    """lora.targets as names of `adapted_linears`, in their order.

    Understood are canonical names, and on Qwen1 its own, in full or by their end, as PEFT does: `c_proj` is
    attn.c_proj and mlp.c_proj. Problem for a name that fits none, and for a part of Qwen1's c_attn alone.
    """
    names = [(own, own) for own in {**spec.linears(), **adapted_linears(spec)}]
    if spec.family == "qwen1":
        names += [(own, stored) for own, stored in QWEN1_BLOCK.items() if own in adapted_linears(spec)]
    found: set[str] = set()
    for target in wanted:
        fitting = {own for own, name in names if name == target or name.endswith(f".{target}")}
        if not fitting:
            known = dict.fromkeys(name.rpartition(".")[2] for _, name in names)
            raise Problem("lora.unknown_target", where=where, target=target, known=joined(known))
        found |= fitting
    if spec.family == "qwen1":
        for whole, parts in PARTS.items():
            given = [part for part in parts if part in found]
            if given and len(given) < len(parts) and whole not in found:
                named = joined(part.rpartition(".")[2] for part in given)
                raise Problem("lora.part_of_whole", where=where, targets=named)
            found |= {whole} if given else set()
    return [name for name in adapted_linears(spec) if name in found]


def target_modules(spec: ModelSpec, linears: Iterable[str]) -> list[str]:
    """PEFT's target_modules for linears of `adapted_linears`: the last parts of their names in the model's
    own layout, longer ones where those are not unique (Qwen1 has two c_proj)."""
    return peft_names(spec.family, adapted_linears(spec), linears)


def peft_names(family: Family, every: Iterable[str], linears: Iterable[str]) -> list[str]:
    """The same for linears out of `every` linear of a block that can have an adapter."""
    own = list(every)
    names = [QWEN1_BLOCK[linear] if family == "qwen1" else linear for linear in own]
    lasts = [name.rpartition(".")[2] for name in names]
    short = [last if lasts.count(last) == 1 else name for name, last in zip(names, lasts, strict=True)]
    return [short[own.index(linear)] for linear in linears]
