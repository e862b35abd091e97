"""Run files of ours from mindformers': every key is taken over, or said to have no counterpart, and why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tengtune.mindformers import joint, table
from tengtune.mindformers.codecs import CODECS
from tengtune.mindformers.reading import Reading, shown
from tengtune.mindformers.table import Tree
from tengtune.models.spec import Family
from tengtune.recipe_fault import place
from tengtune.run_yaml import Lines, read_yaml
from tengtune.ui.language import say
from tengtune.ui.lists import joined
from tengtune.ui.problems import Problem

_CODES = {
    "recipe.not_utf8": "mindformers.not_utf8",
    "recipe.too_large": "mindformers.too_large",
    "recipe.not_mapping": "mindformers.not_theirs",
    "recipe.is_data": "mindformers.not_theirs",
}
"""What the reader of run files says, in words for files of theirs."""


def read(path: Path, data: Path | None = None) -> Reading:
    """What the file says, for training on `data`.

    Problem for a file that is no YAML, none of mindformers', not for training a Qwen, or has a value that
    cannot be meant.
    """
    tree, lines = _yaml(path)
    model = table.value(tree, "model.model_config")
    if not isinstance(model, dict):
        ours = isinstance(tree.get("model"), str) or "data" in tree
        raise Problem("mindformers.ours" if ours else "mindformers.not_theirs", where=path)
    _one_shape(tree, lines, path)
    family = _family(model)
    experts = table.value(tree, "moe_config.expert_num")
    if family is None or experts not in (None, 1):
        known = joined(table.known()["types"]["models"])
        found = joined(f"{key} {shown(model.get(key))}" for key in ("type", "qkv_has_bias"))
        found = found if family is None else f"expert_num {shown(experts)}"
        where = place(path, lines, ("model", "model_config", "type"))
        raise Problem("mindformers.other_model", where=where, found=found, known=known)
    lacking = [key for key in table.known()["needed"] if table.value(tree, key) is None]
    if lacking:
        raise Problem("mindformers.lacking", where=path, keys=joined(lacking))
    reading = Reading(path, tree, lines, family, data)
    _by_table(reading)
    joint.read(reading)
    told = {note.key for note in reading.notes}
    for each in reading.left():
        if each.why == "unknown" and each.theirs not in told:
            reading.note("none", each.theirs, "why_unknown")
    return reading


def _family(model: Tree) -> Family | None:
    """Whose model it is. Llama's own has no biases at q, k and v."""
    kind = model.get("type")
    family: Family | None = table.known()["types"]["models"].get(kind) if isinstance(kind, str) else None
    return None if family == "qwen2" and model.get("qkv_has_bias") is not True else family


def _yaml(path: Path) -> tuple[Tree, Lines]:
    """What is wrong with the YAML, in words that fit a file of theirs."""
    try:
        return read_yaml(path)
    except Problem as problem:
        if problem.code not in _CODES:
            raise
        values: dict[str, Any] = problem.values
        raise Problem(_CODES[problem.code], where=problem.where, **values) from problem


def _one_shape(tree: Tree, lines: Lines, path: Path) -> None:
    """Problem where a part that has keys is none: `runner_config: 5`."""
    parts = {key.rpartition(".")[0] for row in table.rows() for key in row.theirs if "." in key}
    parts |= {"callbacks", "runner_wrapper", "parallel", "train_dataset", "train_dataset.data_loader"}
    for part in sorted(parts):
        at = ("callbacks",) if part.startswith("callbacks") else tuple(part.split("."))
        found = table.value(tree, ".".join(at))
        wanted: type = list if at[0] in ("callbacks",) or at[-1] == "betas" else dict
        if found is not None and not isinstance(found, wanted):
            reason = say("mindformers.wanted_list" if wanted is list else "mindformers.wanted_keys")
            where = place(path, lines, at)
            raise Problem(
                "mindformers.bad_value", where=where, key=".".join(at), value=shown(found), reason=reason
            )


def _by_table(reading: Reading) -> None:
    """The keys that say the same on both sides, with mindformers' own default where its file is silent."""
    defaults: dict[str, Any] = table.known()["defaults"]
    lora = reading.at("model.model_config.pet_config") is not None
    for row in table.rows():
        if row.ours.startswith("lora.") and not lora:
            continue
        there = [path for path in row.theirs if reading.at(path) is not None]
        if there:
            own = reading.checked(there[0], CODECS[row.codec].ours)
            reading.take(row.ours, own, there[0])
        elif row.ours in defaults:
            reading.take(row.ours, defaults[row.ours], row.theirs[0])
