"""What a LoRA run trains: its linears, and whether embedding and head are trained along with them.

A base model has never seen ChatML's tokens. LoRA leaves embedding and head alone, so it cannot teach them,
and the answer never ends (QwenLM/Qwen issues 608 and 622). QwenLM's finetune.py trains both for a model
whose path lacks "chat"; here the model itself is asked.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tengtune.json_file import read_object
from tengtune.models import spec as specs
from tengtune.models.names import parts_in_block
from tengtune.models.spec import ModelSpec
from tengtune.models.targets import find_targets
from tengtune.recipe import Recipe
from tengtune.text.tokenizer import open_tokenizer
from tengtune.ui import language
from tengtune.ui.console import Console
from tengtune.ui.problems import Problem
from tengtune.weights.source import open_source

SAMPLE = 2048
"""Rows of the embedding that stand for a token that has been learned."""

UNTRAINED = 0.15
"""A row is untrained if it is shorter than this part of the usual row: weight decay shrinks what no gradient
feeds. (Land and Bartolo, "Fishing for Magikarp", 2024, find 0.10 to 0.20 for Qwen1.5 and Qwen2.5, where such
rows have 0.00 to 0.003.)"""


def settle(recipe: Recipe, console: Console) -> Recipe:
    """The recipe with lora.targets as canonical names and lora.train_embeddings as true or false; what was
    decided is said. Without LoRA, as it is. Raises Problem for targets the model has not."""
    if recipe.train.method != "lora":
        return recipe
    spec = specs.from_folder(recipe.model_folder)
    linears = [
        part for own in find_targets(spec, recipe.lora.targets, recipe.file) for part in parts_in_block(own)
    ]
    chosen = {
        "targets": [linear.rpartition(".")[2] for linear in linears],
        "train_embeddings": _train_embeddings(recipe, spec, console),
    }
    return recipe.model_copy(update={"lora": recipe.lora.model_copy(update=chosen)})


def _train_embeddings(recipe: Recipe, spec: ModelSpec, console: Console) -> bool:
    wanted = recipe.lora.train_embeddings
    if wanted is True and spec.tie:
        raise Problem("lora.tied_embeddings", where=recipe.file)
    if wanted is False:
        return False
    untrained, reason = True, language.say("lora.asked_for")
    if wanted is not True:
        untrained, reason = chatml_is_new(recipe.model_folder, spec)
    if untrained and spec.tie:
        console.warn("lora.embeddings_tied", reason=reason)
        return False
    if not untrained:
        console.say("lora.embeddings_frozen", reason=reason)
        return False
    console.say("lora.embeddings_trained", reason=reason, parameters=f"{2 * spec.vocab * spec.hidden:,}")
    return True


def chatml_is_new(folder: Path, spec: ModelSpec) -> tuple[bool, str]:
    """Whether ChatML's tokens are new to the model in `folder`, and what tells so: what Qwen1's
    generation_config.json says of the model's use, else the length of the tokens' embeddings."""
    use = _chat_format(folder) if spec.family == "qwen1" else None
    if use in ("raw", "chatml"):
        return use == "raw", f"generation_config.json: chat_format {use}"
    tokenizer = open_tokenizer(folder)
    table = open_source(folder, spec)["model.embed_tokens.weight"]
    usual = float(np.median(_lengths(table[:: max(1, len(table) // SAMPLE)])))
    shortest = float(_lengths(table[[tokenizer.im_start, tokenizer.im_end]]).min())
    return shortest < UNTRAINED * usual, language.say(
        "lora.embedding_lengths", shortest=f"{shortest:.3g}", usual=f"{usual:.3g}"
    )


def _lengths(rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    lengths: np.ndarray[Any, Any] = np.linalg.norm(rows.astype(np.float32), axis=1)
    return lengths


def _chat_format(folder: Path) -> str | None:
    path = folder / "generation_config.json"
    return str(read_object(path, "model.bad_json").get("chat_format")) if path.exists() else None
