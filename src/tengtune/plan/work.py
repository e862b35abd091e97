"""What there is to train: the rows of a run folder's data step, or a number of tokens that was said."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tengtune.json_file import read_object
from tengtune.ui.problems import Problem

if TYPE_CHECKING:
    from tengtune.recipe import Recipe

MOST = 10**15
"""Tokens, as --tokens takes them."""


EPOCHS = 3.0
"""As often as a run file goes through its data where it does not say."""


@dataclass(frozen=True)
class Work:
    """slots: places for tokens in all rows of all epochs, padding too; the rest of one epoch, None where only
    the tokens are known."""

    slots: float
    epochs: float = 1.0
    rows: int | None = None
    tokens: int | None = None
    trained_tokens: int | None = None


def of_run(recipe: Recipe) -> Work | None:
    """The rows that a run's data step has made; None where there are none, or of another length of rows."""
    path = store_file(recipe)
    try:
        about = read_object(path, "data.store_broken") if path.is_file() else {}
        rows, tokens, trained, length = (
            _count(about[name]) for name in ("rows", "tokens", "trained_tokens", "seq_len")
        )
    except (Problem, KeyError, ValueError):  # the data step itself says what is wrong with it
        return None
    if length != recipe.data.seq_len or rows < 1:
        return None
    train = recipe.train
    epochs = train.epochs if train.max_steps is None else train.max_steps * train.global_batch / rows
    return Work(rows * epochs * length, epochs, rows, tokens, trained)


def _count(value: object) -> int:
    """A number of rows or tokens; ValueError for what cannot be one."""
    if type(value) is not int or not 0 <= value <= MOST:
        raise ValueError
    return value


def store_file(recipe: Recipe) -> Path:
    """What the data step says of the rows to train. (data/store.py)"""
    return recipe.folder / "data" / "train" / "store.json"
