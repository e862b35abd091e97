"""What a LoRA run trains along: found in the model, said on the screen, decided by the run file."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.qwen1 import tiny_tiktoken, to_qwen1
from tests.tiny import IM_END, IM_START, tiny_model, tiny_tokenizer

from tengtune import recipe as recipes
from tengtune.recipe import Recipe
from tengtune.train.adaptation import settle
from tengtune.ui.console import Console
from tengtune.ui.problems import Problem


def make_recipe(model: Path, **lora: Any) -> Recipe:
    run = {"model": str(model), "data": "data.json", "lora": lora}
    (model.parent / "run.yaml").write_text(json.dumps(run))
    return recipes.load(model.parent / "run.yaml")


def settled(recipe: Recipe) -> tuple[Recipe, str]:
    """The recipe, and what was said."""
    said = io.StringIO()
    return settle(recipe, Console("normal", said, said)), said.getvalue()


def shrink(folder: Path, rows: list[int], length: float) -> Path:
    """Give rows of the embedding this length; the others have one of about 8."""
    weights = load_file(folder / "model.safetensors")
    table = weights["model.embed_tokens.weight"]
    table[rows] *= length / np.linalg.norm(table[rows], axis=1, keepdims=True)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny_tokenizer(tiny_model(tmp_path / "model"))


@pytest.fixture
def qwen1(tmp_path: Path) -> Path:
    """A Qwen1 folder with room for its tokenizer's control tokens, trained at 512 tokens."""
    source = tiny_model(tmp_path / "source", num_key_value_heads=4, vocab_size=480)
    return tiny_tiktoken(to_qwen1(source, tmp_path / "model"))


def test_tokens_as_long_as_others_are_known(model: Path) -> None:
    recipe, said = settled(make_recipe(model))
    assert recipe.lora.train_embeddings is False
    assert "are known to the model" in said


@pytest.mark.parametrize("rows", [[IM_START, IM_END], [IM_END], [IM_START]])
def test_tokens_without_length_are_new(model: Path, rows: list[int]) -> None:
    """As measured on Qwen1.5-32B: 0.000001 against 0.9."""
    recipe, said = settled(make_recipe(shrink(model, rows, 1e-5)))
    assert recipe.lora.train_embeddings is True
    assert "length 1e-05" in said
    assert f"{2 * 384 * 64:,} parameters more" in said


def test_the_threshold_lies_between(model: Path) -> None:
    usual = float(
        np.median(np.linalg.norm(load_file(model / "model.safetensors")["model.embed_tokens.weight"], axis=1))
    )
    assert settled(make_recipe(shrink(model, [IM_END], 0.14 * usual)))[0].lora.train_embeddings is True
    assert settled(make_recipe(shrink(model, [IM_END], 0.16 * usual)))[0].lora.train_embeddings is False


def test_a_tied_model_cannot_learn_them_by_lora(tmp_path: Path) -> None:
    model = shrink(tiny_tokenizer(tiny_model(tmp_path / "model", tie=True)), [IM_END], 1e-5)
    recipe, said = settled(make_recipe(model))
    assert recipe.lora.train_embeddings is False
    assert "warning: <|im_start|> and <|im_end|> are new to this base model" in said
    with pytest.raises(Problem) as caught:
        settled(make_recipe(model, train_embeddings=True))
    assert caught.value.code == "lora.tied_embeddings"


@pytest.mark.parametrize("asked", [True, False])
def test_the_run_file_has_the_last_word(model: Path, asked: bool) -> None:
    shrink(model, [IM_END], 8.0 if asked else 1e-5)
    assert settled(make_recipe(model, train_embeddings=asked))[0].lora.train_embeddings is asked


@pytest.mark.parametrize("value", ["maybe", 2, None])
def test_other_values_are_refused(model: Path, value: object) -> None:
    with pytest.raises(Problem) as caught:
        make_recipe(model, train_embeddings=value)
    assert caught.value.code == "recipe.bad_value"


@pytest.mark.parametrize(
    ("generation", "trained", "reason"),
    [
        ('{"chat_format": "raw"}', True, "generation_config.json: chat_format raw"),
        ('{"chat_format": "chatml"}', False, "generation_config.json: chat_format chatml"),
        ("{}", False, "their embeddings have length"),
        (None, False, "their embeddings have length"),
    ],
)
def test_qwen1_says_what_it_is_for(qwen1: Path, generation: str | None, trained: bool, reason: str) -> None:
    if generation is not None:
        (qwen1 / "generation_config.json").write_text(generation)
    recipe, said = settled(make_recipe(qwen1))
    assert recipe.lora.train_embeddings is trained
    assert reason in said


def test_targets_come_out_in_canonical_names(qwen1: Path) -> None:
    recipe, _ = settled(make_recipe(qwen1, targets=["c_attn", "w1"]))
    assert recipe.lora.targets == ["q_proj", "k_proj", "v_proj", "up_proj"]
    with pytest.raises(Problem) as caught:
        settled(make_recipe(qwen1, targets=["q_proj"]))
    assert caught.value.code == "lora.part_of_whole"
    assert caught.value.where == str(qwen1.parent / "run.yaml")


def test_full_tuning_has_nothing_to_settle(model: Path) -> None:
    (model.parent / "run.yaml").write_text(f"model: {model}\ndata: a.json\ntrain: {{method: full}}\n")
    recipe = recipes.load(model.parent / "run.yaml")
    assert settled(recipe) == (recipe, "")
