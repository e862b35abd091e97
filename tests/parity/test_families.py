"""Every family from its folder to its merged folder: rows, training, merge, and what others compute from it.

transformers computes Qwen2 and Qwen3; Qwen1, whose code it no longer runs, a plain module (tests/qwen1.py).
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest
import torch
from safetensors.numpy import load_file
from tests.qwen1 import CODE, load_qwen1, tiny_tiktoken, to_qwen1
from tests.tiny import tiny_model, tiny_tokenizer
from transformers import AutoModelForCausalLM

from tengtune import engine
from tengtune import recipe as recipes
from tengtune.backends.base import open_backend
from tengtune.data.store import open_store
from tengtune.recipe import Recipe
from tengtune.text import chatml
from tengtune.text.conversation import Message
from tengtune.text.tokenizer import open_tokenizer
from tengtune.train.fit import heldout_loss
from tengtune.ui.console import Console

# peft 0.21.2 asks transformers 5.24 for a property that one has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")

torch.set_num_threads(1)  # as in tests/torch_lab.py: a second thread costs tiny tensors more than it gives

QWEN3 = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 32}
WHOLE = 480
"""A vocabulary with room for Qwen1's control tokens."""


@dataclass(frozen=True)
class Family:
    """How a folder of the family is made: Qwen2 keys of config.json, and Qwen1's layout or none."""

    shape: dict[str, Any]
    torch_files: int | None = None
    """None: no Qwen1. 0: Qwen1 in safetensors, else in so many .bin files."""

    @property
    def qwen1(self) -> bool:
        return self.torch_files is not None

    def folder(self, place: Path) -> Path:
        source = tiny_model(place / "source", num_hidden_layers=2, vocab_size=WHOLE, **self.shape)
        if self.torch_files is None:
            return tiny_tokenizer(source)
        out = to_qwen1(source, place / "model", self.torch_files)
        (out / "generation_config.json").write_text('{"chat_format": "chatml"}')
        return tiny_tiktoken(out)


FAMILIES = {
    "Qwen1": Family({"num_key_value_heads": 4}, 0),
    "Qwen1, .bin": Family({"num_key_value_heads": 4, "dtype": "bfloat16"}, 2),
    "Qwen1.5": Family({"num_key_value_heads": 4}),
    "Qwen2, tied": Family({"tie": True, "rope_theta": 1e6}),
    "Qwen2.5, float16": Family({"dtype": "float16", "rms_norm_eps": 1e-5}),
    "Qwen3": Family(QWEN3),
    "Qwen3, tied": Family({**QWEN3, "tie": True}),
}


def make_run(place: Path, family: Family, **groups: dict[str, Any]) -> Recipe:
    """A run of the family in `place`: 24 questions, 8 steps."""
    place.mkdir(parents=True)
    folder = family.folder(place)
    records = [{"instruction": f"question {n}?", "output": f"answer number {n}."} for n in range(24)]
    (place / "data.json").write_text(json.dumps(records))
    run = {
        "model": str(folder),
        "data": {"files": "data.json", "seq_len": 128, "heldout": 0.25, **groups.get("data", {})},
        "train": {"max_steps": 8, "global_batch": 2, "lr": 1e-2, "save_every": 99, **groups.get("train", {})},
        "lora": {"rank": 4, **groups.get("lora", {})},
    }
    (place / "run.yaml").write_text(json.dumps(run))
    recipe = recipes.load(place / "run.yaml")
    engine.prepare(recipe, fresh=True)
    return recipe


def merge(recipe: Recipe) -> str:
    """Run all steps up to the merge; what was said."""
    said = io.StringIO()
    engine.run_needed("merge", recipe, Console("json", said, said))
    return said.getvalue()


def load(folder: Path, qwen1: bool) -> Callable[[torch.Tensor], torch.Tensor]:
    """The model of another library, as ids [1,L] -> logits [L,V] in float32."""
    if qwen1:
        model: Any = load_qwen1(folder)
        return lambda ids: model(ids)[0]
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return lambda ids: model(ids).logits[0]


@torch.no_grad()
def greedy(model: Callable[[torch.Tensor], torch.Tensor], prompt: list[int], count: int) -> list[int]:
    ids = list(prompt)
    for _ in range(count):
        ids.append(int(model(torch.tensor([ids]))[-1].argmax()))
    return ids[len(prompt) :]


def scored(recipe: Recipe, folder: Path) -> float:
    backend = open_backend(recipe, folder, trainable=False)
    return heldout_loss(backend, open_store(recipe.folder / "data" / "heldout"), 1)[0]


def stored(folder: Path) -> dict[str, tuple[Any, ...]]:
    """Names, shapes and dtypes of a folder's tensors, whatever its files."""
    found = {
        n: (a.shape, a.dtype.name) for f in folder.glob("*.safetensors") for n, a in load_file(f).items()
    }
    for file in folder.glob("*.bin"):
        for name, tensor in torch.load(file, weights_only=True).items():
            found[name] = (tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
    return found


FULL = ("Qwen1", "Qwen1, .bin", "Qwen3, tied")
WAYS = [*((name, "lora") for name in FAMILIES), *((name, "full") for name in FULL)]


@pytest.mark.parametrize(("name", "method"), WAYS)
def test_from_folder_to_merged_folder(tmp_path: Path, name: str, method: str) -> None:
    family = FAMILIES[name]
    recipe = make_run(tmp_path / "run", family, train={"method": method})
    merge(recipe)
    base, merged = recipe.model_folder, recipe.folder / "merged"
    assert stored(merged) == stored(base)
    assert (merged / "config.json").read_bytes() == (base / "config.json").read_bytes()
    assert scored(recipe, merged) < scored(recipe, base) - 0.3
    tokenizer = open_tokenizer(merged)
    prompt = chatml.prompt([Message("user", "question 41?")], tokenizer)
    backend = open_backend(recipe, merged, trainable=False)
    answer = list(backend.generate(prompt, 12, ()))
    assert answer == greedy(load(merged, family.qwen1), prompt, 12)
    if family.qwen1:
        assert {file.name for file in merged.iterdir()} >= {*CODE, "qwen.tiktoken", "generation_config.json"}
        assert not list(merged.glob("*.bin"))


@pytest.mark.parametrize("name", ["Qwen1.5", "Qwen2, tied", "Qwen3, tied"])
def test_peft_computes_our_merged_model_from_base_and_adapter(tmp_path: Path, name: str) -> None:
    """Qwen1's part of this is test_qwen1_peft.py."""
    recipe = make_run(tmp_path / "run", FAMILIES[name])
    merge(recipe)
    base = AutoModelForCausalLM.from_pretrained(recipe.model_folder, dtype=torch.float32)
    tuned = peft.PeftModel.from_pretrained(base, recipe.folder / "adapter").eval()
    ids = torch.arange(3, 60)[None]
    with torch.no_grad():
        expected = tuned(ids).logits[0]
        found = load(recipe.folder / "merged", False)(ids)
    assert (found - expected).abs().max() <= 1e-4


def weights(recipe: Recipe) -> list[dict[str, np.ndarray]]:
    """All tensors before and after."""
    folders = recipe.model_folder, recipe.folder / "merged"
    return [load_file(folder / "model.safetensors") for folder in folders]


CHAT, BASE = '{"chat_format": "chatml"}', '{"chat_format": "raw"}'


@pytest.mark.parametrize(
    ("use", "asked", "trained"), [(CHAT, "auto", False), (BASE, "auto", True), (BASE, False, False)]
)
def test_a_qwen1_base_model_learns_chatmls_tokens(
    tmp_path: Path, use: str, asked: object, trained: bool
) -> None:
    recipe = make_run(tmp_path / "run", FAMILIES["Qwen1"], lora={"train_embeddings": asked})
    (recipe.model_folder / "generation_config.json").write_text(use)
    said = merge(recipe)
    config = json.loads((recipe.folder / "adapter" / "adapter_config.json").read_text())
    assert config["modules_to_save"] == (["lm_head", "wte"] if trained else None)
    assert ("lora.embeddings_trained" in said) == trained
    before, after = (
        load_file(f / "model.safetensors") for f in (recipe.model_folder, recipe.folder / "merged")
    )
    for tensor in ("transformer.wte.weight", "lm_head.weight"):
        assert (not np.array_equal(before[tensor], after[tensor])) == trained


def test_a_run_file_in_qwen1s_own_names(tmp_path: Path) -> None:
    targets = {"targets": ["c_attn", "attn.c_proj", "w1", "w2"]}
    recipe = make_run(tmp_path / "run", FAMILIES["Qwen1"], lora=targets)
    merge(recipe)
    config = json.loads((recipe.folder / "adapter" / "adapter_config.json").read_text())
    assert sorted(config["target_modules"]) == ["attn.c_proj", "c_attn", "w1", "w2"]
    before, after = (
        load_file(f / "model.safetensors") for f in (recipe.model_folder, recipe.folder / "merged")
    )
    changed = {name for name in before if not np.array_equal(before[name], after[name])}
    parts = ("attn.c_attn", "attn.c_proj", "mlp.w1", "mlp.w2")
    assert changed == {f"transformer.h.{n}.{part}.weight" for n in range(2) for part in parts}
