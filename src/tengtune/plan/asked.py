"""What a run file asks for, as the sum takes it."""

from __future__ import annotations

from tengtune.plan.strategy import Strategy
from tengtune.recipe import Recipe


def width_bytes(recipe: Recipe, on_cpu: bool) -> int:
    """Of a number of the compute type: `auto` is float32 on a CPU, and on cards a type of 16 bits."""
    dtype = recipe.model.dtype
    return 4 if dtype == "float32" or (on_cpu and dtype == "auto") else 2


def strategy(recipe: Recipe, width_bytes: int) -> Strategy:
    """The strategy of a run file that computes in numbers of `width_bytes`."""
    lora, train, parallel = recipe.lora, recipe.train, recipe.parallel
    return Strategy(
        method=train.method,
        cards=parallel.ranks,
        nodes=parallel.nodes,
        rows=train.micro_batch,
        row_tokens=recipe.data.seq_len,
        zero=parallel.zero,
        offload=parallel.offload,
        recompute=train.recompute == "full",
        rank=lora.rank,
        targets=tuple(lora.targets),
        base=lora.base,
        train_embeddings=lora.train_embeddings is True,
        width_bytes=width_bytes,
        checkpoints=train.keep,
        accumulate=recipe.accumulation,
    )
