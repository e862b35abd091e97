"""A way that was found, as a run file: a new one, or a given one with what the way changes."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tengtune.files import as_text
from tengtune.plan import can, choices
from tengtune.plan.rewrite import Tree
from tengtune.plan.search import Way
from tengtune.ui import language

if TYPE_CHECKING:
    from tengtune.recipe import Recipe

TEMPLATE = """# {made}
# {needs}
model: {model}
backend: {backend}
data:
  files: {data}
  seq_len: {seq_len}
train:
  method: {method}
  micro_batch: {micro_batch}
  global_batch: {global_batch}
  recompute: {recompute}
"""
PLACEHOLDER = "data.json"


def new(way: Way, model: str, data: Sequence[str], global_batch: int) -> str:
    """The text of a run file for a model, as the run file shall call it, and data files (none: a name to be
    replaced)."""
    plan, now = way.plan, way.plan.strategy
    lora: dict[str, Any] = {"rank": now.rank} if now.method == "lora" else {}
    if lora and now.base != "compute":
        lora["base"] = now.base
    parallel: dict[str, Any] = {"ranks": now.cards}
    parallel |= {"nodes": now.nodes} if now.nodes > 1 else {}
    parallel |= {"zero": now.zero} if now.zero else {}
    parallel |= {"offload": now.offload} if now.offload != "none" else {}
    names = [json.dumps(name, ensure_ascii=False) for name in data or (PLACEHOLDER,)]
    text = TEMPLATE.format(
        made=language.say("plan.written", place=choices.place(plan)),
        needs=language.say(
            "plan.written_needs",
            card=f"{plan.card.total.expected / 1e9:.1f}",
            host=f"{plan.host.expected / 1e9:.0f}",
            disk=f"{plan.disk.expected / 1e9:.0f}",
        ),
        model=json.dumps(model, ensure_ascii=False),
        backend=plan.engine,
        data=names[0] if len(names) == 1 else f"[{', '.join(names)}]",
        seq_len=now.row_tokens,
        method=now.method,
        micro_batch=now.rows,
        global_batch=global_batch,
        recompute="full" if now.recompute else "none",
    )
    for group, values in (("lora", lora), ("parallel", parallel)):
        if values:
            text += f"{group}:\n" + "".join(f"  {key}: {value}\n" for key, value in values.items())
    return text


def changed(way: Way, recipe: Recipe, values: Tree, data: Sequence[str]) -> Tree:
    """A run file's values, with the settings of the call, as the way has them. Only keys whose value differs
    are changed; how many ranks there are is always said, as it would else depend on the machine."""
    plan, now = way.plan, way.plan.strategy
    tree = copy.deepcopy(values)
    backend = "torch" if recipe.backend == "auto" else recipe.backend
    kind = can.kind_of(plan.hardware)
    impossible = can.verdict(recipe.model.dtype, plan.engine, kind) == "no"
    narrow = recipe.model.dtype in ("float16", "bfloat16")
    changes: dict[tuple[str, ...], tuple[Any, Any]] = {
        ("backend",): (backend, plan.engine),
        ("model", "dtype"): (recipe.model.dtype, "auto" if narrow and impossible else recipe.model.dtype),
        ("train", "micro_batch"): (recipe.train.micro_batch, now.rows),
        ("train", "recompute"): (recipe.train.recompute, "full" if now.recompute else "none"),
        ("lora", "base"): (recipe.lora.base, now.base),
        ("parallel", "nodes"): (recipe.parallel.nodes, now.nodes),
        ("parallel", "zero"): (recipe.parallel.zero, now.zero),
        ("parallel", "offload"): (recipe.parallel.offload, now.offload),
    }
    changes["parallel", "ranks"] = ((values.get("parallel") or {}).get("ranks"), now.cards)
    for keys, (before, after) in changes.items():
        if before != after:
            _set(tree, keys, after)
    if data:
        _set(tree, ("data", "files"), [as_text(name) for name in data])
    return tree


def _set(tree: Tree, keys: tuple[str, ...], value: Any) -> None:
    """One value of a run file; the short forms `model: PATH` and `data: FILE` become groups."""
    group = tree
    for name in keys[:-1]:
        inner = tree.get(name)
        if not isinstance(inner, dict):
            inner = tree[name] = {} if inner is None else {_SHORT[name]: inner}
        group = inner
    group[keys[-1]] = value


_SHORT = {"model": "path", "data": "files"}
"""The key of a group that may be written as a mere value."""
