"""The device MindSpore computes on, compiled functions, and what this back end does not do yet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mindspore
import numpy as np
from mindspore import Tensor

from tengtune.recipe import Recipe
from tengtune.ui.problems import Problem

DTYPE = "float32"
"""Compute type, the only one so far."""


def prepare(recipe: Recipe) -> str:
    """Choose the device and return its name; Problem for a run file that asks for what is not there."""
    if recipe.model.dtype not in ("auto", DTYPE):
        raise not_there(f"model.dtype: {recipe.model.dtype}", recipe)
    if recipe.parallel.ranks > 1:
        raise not_there(f"parallel.ranks: {recipe.parallel.ranks}", recipe)
    if not mindspore.device_context.ascend.is_available():
        mindspore.set_device("CPU")
        return "cpu"
    mindspore.set_device("Ascend")
    return "Ascend:0"


def not_there(feature: str, recipe: Recipe) -> Problem:
    """The Problem that says truthfully what this back end lacks so far."""
    return Problem("mindspore.not_there", where=recipe.file, feature=feature)


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` of Tensors as a graph, compiled once for each set of argument shapes.

    Weights must be given as Tensors: a Parameter as an argument is compiled anew for each Parameter.
    """
    graph: Callable[..., Any] = mindspore.jit(function, fullgraph=True)
    return graph


def scalar(value: float) -> Tensor:
    """A float32 number as a Tensor, so that another value does not mean another graph."""
    return Tensor(np.float32(value))
