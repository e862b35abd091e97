"""What to change when the memory does not suffice, in the order of what it costs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tengtune.recipe import Recipe
from tengtune.ui import language
from tengtune.ui.problems import Problem


@contextmanager
def explained(recipe: Recipe) -> Iterator[None]:
    """Add this run's own settings to an out-of-memory Problem raised inside the block."""
    try:
        yield
    except Problem as problem:
        if problem.code != "device.out_of_memory":
            raise
        raise Problem(
            "train.out_of_memory",
            where=problem.where,
            exit_code=problem.exit_code,
            device=problem.values["device"],
            advice="\n".join(f"{i}. {line}" for i, line in enumerate(advice(recipe), 1)),
        ) from problem


def advice(recipe: Recipe) -> list[str]:
    """What this run can still change, from the cheapest on. The first two may change in mid-run, as the
    result does not depend on them."""
    train, data = recipe.train, recipe.data
    lines = []
    if train.micro_batch > 1:
        lines.append(language.say("train.advice_micro_batch", now=train.micro_batch))
    if train.recompute == "none":
        lines.append(language.say("train.advice_recompute"))
    if train.method == "full":
        lines.append(language.say("train.advice_lora"))
    if data.seq_len > 256:
        lines.append(language.say("train.advice_seq_len", now=data.seq_len, half=data.seq_len // 2))
    if train.method == "lora" and recipe.lora.rank > 8:
        lines.append(language.say("train.advice_rank", now=recipe.lora.rank))
    return [*lines, language.say("train.advice_model")]
