"""Which back end a run uses; told without loading any framework, or numpy."""

from __future__ import annotations

import importlib.util

from tengtune.recipe import Recipe
from tengtune.ui.problems import Problem


def choose(recipe: Recipe) -> str:
    """The back end's name: as the run file says, else the one that is installed (torch first)."""
    names = ("torch", "mindspore") if recipe.backend == "auto" else (recipe.backend,)
    for name in names:
        if importlib.util.find_spec(name):
            return name
    raise Problem("backend.missing", where=recipe.file, exit_code=3, name=" / ".join(names), extra=names[0])
