"""What a run file asks for, and whether its back end has it: facts/capabilities.yaml, read.

A feature that a back end has on no device is refused before anything starts. What one device lacks
(bfloat16 on the first 910) the back end finds by trying.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Literal, cast

from tengtune import facts
from tengtune.models.spec import ModelSpec
from tengtune.recipe import Recipe
from tengtune.ui.problems import Problem

Verdict = Literal["yes", "no", "unverified"]
Table = dict[str, dict[str, dict[str, Verdict]]]

NAMES = {"torch": "PyTorch", "mindspore": "MindSpore"}
"""The back ends, as people call them."""
DEVICES = ("cpu", "cuda", "ascend_910", "ascend_910b")


@dataclass(frozen=True)
class Feature:
    """A row of the table.

    key: what asks for it in the run file. asked: whether a run does; the spec is None while the model is not
    there, and what hangs on the model is not asked then. training: only who trains asks for it; a trained
    model may be asked without. text: which text tells that it is lacking, where several features share one.
    """

    name: str
    key: str
    asked: Callable[[Recipe, ModelSpec | None], bool]
    training: bool = True
    text: str = ""

    @property
    def code(self) -> str:
        """The Problem of a back end that lacks it."""
        return f"capability.{self.text or self.name}"

    def words(self, recipe: Recipe) -> str:
        """The key with the run's value."""
        value = reduce(getattr, self.key.split("."), cast(object, recipe))
        return f"{self.key}: {value if isinstance(value, str) else json.dumps(value)}"


def _lora(recipe: Recipe) -> bool:
    return recipe.train.method == "lora"


def _float16(recipe: Recipe, spec: ModelSpec | None) -> bool:
    return recipe.model.dtype == "float16"


def _bfloat16(recipe: Recipe, spec: ModelSpec | None) -> bool:
    return recipe.model.dtype == "bfloat16"


def _qwen1_lora(recipe: Recipe, spec: ModelSpec | None) -> bool:
    return _lora(recipe) and spec is not None and spec.family == "qwen1"


def _mindrecord(recipe: Recipe, spec: ModelSpec | None) -> bool:
    return any(".mindrecord" in name for name in recipe.data.files)


def _qwen1_long(recipe: Recipe, spec: ModelSpec | None) -> bool:
    stretch = spec.stretch if spec else None
    return stretch is not None and recipe.data.seq_len > stretch.length


_ALL = (
    Feature("lora", "train.method", lambda r, s: _lora(r)),
    Feature("full", "train.method", lambda r, s: r.train.method == "full"),
    Feature("float16", "model.dtype", _float16, training=False, text="dtype"),
    Feature("bfloat16", "model.dtype", _bfloat16, training=False, text="dtype"),
    Feature("ranks", "parallel.ranks", lambda r, s: r.parallel.ranks > 1),
    Feature("nodes", "parallel.nodes", lambda r, s: r.parallel.nodes > 1),
    Feature(
        "train_embeddings",
        "lora.train_embeddings",
        lambda r, s: _lora(r) and r.lora.train_embeddings is True,
    ),
    Feature("qwen1_lora", "train.method", _qwen1_lora),
    Feature("qwen1_long", "data.seq_len", _qwen1_long, training=False),
    Feature("int8_base", "lora.base", lambda r, s: _lora(r) and r.lora.base == "int8"),
    Feature("zero_1", "parallel.zero", lambda r, s: r.parallel.zero == 1, text="zero"),
    Feature("zero_2", "parallel.zero", lambda r, s: r.parallel.zero == 2, text="zero"),
    Feature("zero_3", "parallel.zero", lambda r, s: r.parallel.zero == 3, text="zero"),
    Feature("offload_optimizer", "parallel.offload", lambda r, s: r.parallel.offload == "optimizer"),
    Feature("recompute_full", "train.recompute", lambda r, s: r.train.recompute == "full"),
    Feature("packing", "data.pack", lambda r, s: r.data.pack),
    Feature("mindrecord", "data.files", _mindrecord),
    Feature("mindformers_optimizer", "train.optimizer", lambda r, s: r.train.optimizer == "mindformers"),
    Feature("mindformers_layout", "output.layout", lambda r, s: r.output.layout == "mindformers"),
    Feature("evaluation", "output.evaluate", lambda r, s: bool(r.output.evaluate), training=False),
)
FEATURES = {feature.name: feature for feature in _ALL}
"""What a run file can ask for, by name, in the order in which it is refused."""


def table() -> Table:
    """feature -> back end -> device -> yes, no or unverified."""
    return cast(Table, facts.words("capabilities.yaml"))


def has(name: str, backend: str) -> bool:
    """Whether a back end has a feature on some device."""
    return set(table()[name][backend].values()) != {"no"}


def lacking(name: str, recipe: Recipe, backend: str) -> Problem:
    """The Problem of a back end that has the feature nowhere."""
    feature = FEATURES[name]
    return Problem(feature.code, where=recipe.file, asked=feature.words(recipe), backend=NAMES[backend])


def refuse(recipe: Recipe, spec: ModelSpec | None, backend: str, training: bool = True) -> None:
    """Problem for the first thing the run asks for that its back end has on no device; loads no framework."""
    for name, feature in FEATURES.items():
        wanted = (training or not feature.training) and feature.asked(recipe, spec)
        if wanted and not has(name, backend):
            raise lacking(name, recipe, backend)
