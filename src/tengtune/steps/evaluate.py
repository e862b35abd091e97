"""evaluate: the held-out loss of the model before and after."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tengtune.backends.base import open_backend
from tengtune.data.store import open_store
from tengtune.engine import Result
from tengtune.recipe import Recipe
from tengtune.train.fit import heldout_loss
from tengtune.ui.console import Console


def inputs(recipe: Recipe) -> list[Path]:
    heldout = recipe.folder / "data" / "heldout"
    return [recipe.model_folder, recipe.folder / "merged", *([heldout] if heldout.exists() else [])]


def settings(recipe: Recipe) -> dict[str, Any]:
    return {"backend": recipe.backend, "dtype": recipe.model.dtype, "micro_batch": recipe.train.micro_batch}


def run(recipe: Recipe, console: Console) -> Result:
    """Score both models on `data/heldout`; figures None when nothing was held out."""
    heldout = recipe.folder / "data" / "heldout"
    if not heldout.exists():
        console.warn("evaluate.nothing_held_out")
        return Result([], {"loss_before": None, "loss_after": None, "tokens": 0})
    store = open_store(heldout)
    losses = []
    for folder in (recipe.model_folder, recipe.folder / "merged"):
        backend = open_backend(recipe, folder, trainable=False)
        loss, tokens = heldout_loss(backend, store, recipe.train.micro_batch)
        losses.append(loss)
    console.say("evaluate.done", before=f"{losses[0]:.4f}", after=f"{losses[1]:.4f}", tokens=tokens)
    return Result([], {"loss_before": losses[0], "loss_after": losses[1], "tokens": tokens})
