"""download: the run file's model, where model.path is a hub id, into `models/<name>` beside the run file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tengtune.engine import Result
from tengtune.hub.download import bring
from tengtune.hub.plan import Wish
from tengtune.recipe import Recipe
from tengtune.ui.console import Console


def inputs(recipe: Recipe) -> list[Path]:
    return []


def settings(recipe: Recipe) -> dict[str, Any]:
    return {"model": recipe.hub_model}


def needed(recipe: Recipe) -> bool:
    """Whether the model is on a hub still."""
    return recipe.to_download


def run(recipe: Recipe, console: Console) -> Result:
    """Bring the model; Problem as `bring`."""
    figures = bring(Wish(recipe.hub_model or "", recipe.model_folder), console)
    return Result([figures["folder"]], figures)
