"""What of a run file must fit together, and what follows from the machine where the file says nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tengtune import cards
from tengtune.recipe_fault import place
from tengtune.run_yaml import Lines
from tengtune.ui.problems import Problem

if TYPE_CHECKING:
    from tengtune.recipe import Recipe


def on_the_cards(recipe: Recipe, there: int | None = None) -> Recipe:
    """Where the run file does not say how many ranks: one a card, as many as share global_batch evenly.

    there: how many cards there are; None: this machine's.
    """
    parallel, train = recipe.parallel, recipe.train
    if "ranks" in parallel.model_fields_set or parallel.nodes > 1:
        return recipe
    count = cards.count(recipe.backend) if there is None else there
    fit = [n for n in range(1, count + 1) if train.global_batch % (train.micro_batch * n) == 0]
    ranks = max(fit, default=1)
    return recipe.model_copy(update={"parallel": parallel.model_copy(update={"ranks": ranks})})


def check_together(recipe: Recipe, lines: Lines) -> None:
    """Problem for values that are right each by itself and wrong beside another."""
    _check_batch(recipe, lines)
    _check_early_stop(recipe, lines)
    ranks, nodes = recipe.parallel.ranks, recipe.parallel.nodes
    if ranks % nodes:
        where = place(recipe.file, lines, ("parallel", "nodes"))
        raise Problem("cluster.uneven", where=where, ranks=ranks, nodes=nodes)


def _check_batch(recipe: Recipe, lines: Lines) -> None:
    """global_batch must be a multiple of micro_batch x ranks: rounding it would train something else."""
    train, share = recipe.train, recipe.train.micro_batch * recipe.parallel.ranks
    if train.global_batch % share:
        down, up = train.global_batch // share * share, -(-train.global_batch // share) * share
        raise Problem(
            "recipe.batch",
            where=place(recipe.file, lines, ("train", "global_batch")),
            global_batch=train.global_batch,
            micro_batch=train.micro_batch,
            ranks=recipe.parallel.ranks,
            choices=" / ".join(str(size) for size in (down, up) if size),
        )


def _check_early_stop(recipe: Recipe, lines: Lines) -> None:
    """Early stopping looks at held-out losses, so there must be some."""
    lacking = {"train.eval_every": not recipe.train.eval_every, "data.heldout": not recipe.data.heldout}
    if recipe.train.early_stop and any(lacking.values()):
        key = next(key for key, lacks in lacking.items() if lacks)
        raise Problem("recipe.early_stop", where=place(recipe.file, lines, ("train", "early_stop")), key=key)
