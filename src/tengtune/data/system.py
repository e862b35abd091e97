"""The system prompt of a run's questions: what its conversations were trained with."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tengtune.data.mindrecord import first_shard, is_mindrecord
from tengtune.data.store import open_store
from tengtune.recipe import Recipe
from tengtune.text.chatml import default_system
from tengtune.text.template import Template
from tengtune.text.tokenizer import IM_END, IM_START, Tokenizer

LOOKED_AT = 256
"""Rows that are looked at: scripts write one system turn before all conversations."""


def system_of_run(recipe: Recipe, tokenizer: Tokenizer, template: Template) -> str:
    """The system text of conversations that bring none, "": no system turn. data.system, where it is given;
    else, of MindRecord files alone, which were made elsewhere, what most of the run's rows begin with."""
    data = recipe.data
    if data.system is None and all(is_mindrecord(first_shard(recipe.resolve(name))) for name in data.files):
        found = _recorded(recipe.folder / "data" / "train", tokenizer)
        if found is not None:
            return found
    return default_system(data.system, data.policy, template)


def _recorded(folder: Path, tokenizer: Tokenizer) -> str | None:
    """What more than half of a store's documents begin with; None where there is no such, or no store."""
    if not folder.is_dir():
        return None
    store = open_store(folder)
    looked_at = min(LOOKED_AT, store.documents)
    texts = Counter(_opening(store.example(number).ids.tolist(), tokenizer) for number in range(looked_at))
    ((text, count),) = texts.most_common(1) or [(None, 0)]
    return text if 2 * count > looked_at else None


def _opening(ids: list[int], tokenizer: Tokenizer) -> str | None:
    """The text of a system turn at the beginning, "" where another turn stands there; None for no ChatML."""
    closing = tokenizer.id(IM_END)
    turn = tokenizer.decode(ids[: ids.index(closing)]) if closing in ids else ""
    if not turn.startswith(IM_START):
        return None
    role, _, text = turn.removeprefix(IM_START).partition("\n")
    return text if role == "system" else ""
