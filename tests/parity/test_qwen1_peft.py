"""LoRA on Qwen1 is PEFT's adapter of c_attn and the others: trained alike, read and written, merged.

The model on PEFT's side is a plain module in Qwen1's names (tests/qwen1.py), itself held to the goldens.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest
import torch
from safetensors.numpy import load_file
from tests.batches import make_batch, random_documents
from tests.qwen1 import load_qwen1, to_qwen1
from tests.tiny import VOCAB, tiny_model
from tests.torch_lab import gradients, logits, make_backend, make_recipe, randomize_adapters

from tengtune.backends.torch.step import TorchBackend
from tengtune.models.spec import from_folder
from tengtune.recipe import Recipe
from tengtune.weights.adapter import read_adapter, write_adapter
from tengtune.weights.merge import open_merge, write_merge
from tengtune.weights.source import open_source
from tengtune.weights.trained import write_lora

GOLDEN = Path(__file__).parents[1] / "golden" / "qwen1"
REFERENCE = ["c_attn", "c_proj", "w1", "w2"]
"""finetune.py's own targets."""


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A random Qwen1 folder; all biases and norms differ from their neutral values."""
    return to_qwen1(tiny_model(tmp_path / "qwen2", num_key_value_heads=4), tmp_path / "base")


def test_the_plain_module_is_the_original(tmp_path: Path) -> None:
    expected = load_file(GOLDEN / "eval_whole.safetensors")["eval_2x64"]
    ids = torch.from_numpy(load_file(GOLDEN / "inputs.safetensors")["ids_2x64"])
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((GOLDEN / name).read_bytes())
    with torch.no_grad():
        np.testing.assert_allclose(load_qwen1(tmp_path)(ids), expected, atol=5e-5, rtol=1e-4)


def ours(base: Path, targets: list[str], **train: Any) -> tuple[TorchBackend, Recipe]:
    """Our back end with an adapter whose B is not zero."""
    spec = from_folder(base)
    recipe = make_recipe(lora={"rank": 4, "alpha": 12, "targets": targets}, **train)
    backend = make_backend(spec, open_source(base, spec), recipe)
    randomize_adapters(backend)
    return backend, recipe


def theirs(base: Path, backend: TorchBackend, recipe: Recipe, folder: Path) -> peft.PeftModel:
    """The same adapter through files, loaded by PEFT onto the plain module."""
    tensors = {s.name: s.array for s in backend.named_shards() if s.kind == "param"}
    write_lora(folder, backend.spec, recipe.lora, tensors, base)
    model = peft.PeftModel.from_pretrained(load_qwen1(base), folder, is_trainable=True)
    loaded = peft.get_peft_model_state_dict(model)
    stored = load_file(folder / "adapter_model.safetensors")
    assert loaded.keys() == stored.keys()
    assert all(np.array_equal(loaded[name].detach().numpy(), array) for name, array in stored.items())
    return model


def loss_of(model: torch.nn.Module, documents: list[Any]) -> torch.Tensor:
    """Mean cross entropy of the labels, document by document, in plain torch."""
    losses, count = [], 0
    for document in documents:
        ids = torch.from_numpy(document.ids)
        train = torch.from_numpy(document.train[1:])
        shifted = model(ids[None])[0, :-1]
        losses.append(torch.nn.functional.cross_entropy(shifted[train], ids[1:][train], reduction="sum"))
        count += document.labels
    return torch.stack(losses).sum() / count


CANONICAL = ["q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "gate_proj", "down_proj"]


@pytest.mark.parametrize(
    ("targets", "linears"),
    [(["q_proj", "k_proj", "v_proj"], 1), (["o_proj", "gate_proj"], 2), (CANONICAL, 5)],
)
def test_gradients_are_pefts(base: Path, tmp_path: Path, targets: list[str], linears: int) -> None:
    """One A for q, k and v: its gradient is the sum over the three."""
    backend, recipe = ours(base, targets)
    model = theirs(base, backend, recipe, tmp_path / "adapter")
    documents = random_documents([20, 9, 14], VOCAB, seed=3)
    batch = make_batch([documents], 48)
    loss = loss_of(model.base_model.model, documents)
    loss.backward()
    loss_sum, found = gradients(backend, batch, 1 / batch.trained_tokens)
    assert loss_sum / batch.trained_tokens == pytest.approx(loss.item(), abs=2e-6)
    assert len(found) == 2 * 2 * linears
    expected = {n: p.grad.numpy() for n, p in model.named_parameters() if p.requires_grad}
    assert len(expected) == len(found)
    tables = {"self_attn.qkv_proj": "attn.c_attn", "self_attn.o_proj": "attn.c_proj", "mlp.up_proj": "mlp.w1"}
    tables |= {"mlp.gate_proj": "mlp.w2", "mlp.down_proj": "mlp.c_proj"}
    for name, gradient in found.items():
        _, _, layer, *module, kind = name.split(".")
        theirs_name = f"transformer.h.{layer}.{tables['.'.join(module)]}.{kind}.default.weight"
        wanted = expected[f"base_model.model.{theirs_name}"]
        turned = gradient.T if kind == "lora_B" else gradient
        np.testing.assert_allclose(turned, wanted, rtol=1e-3, atol=2e-6, err_msg=name)


def test_twelve_steps_are_pefts(base: Path, tmp_path: Path) -> None:
    backend, recipe = ours(base, CANONICAL, lr=2e-3, weight_decay=0.1)
    model = theirs(base, backend, recipe, tmp_path / "adapter")
    parameters = [p for p in model.parameters() if p.requires_grad]
    train = recipe.train
    optimizer = torch.optim.AdamW(
        parameters, lr=2e-3, betas=(train.beta1, train.beta2), eps=train.eps, weight_decay=0.1
    )
    found, expected = [], []
    for step in range(12):
        documents = random_documents([17, 11, 5], VOCAB, seed=50 + step % 3)
        batch = make_batch([documents], 40)
        tokens = batch.trained_tokens
        found.append(float(backend.train_step([batch], tokens, 2e-3, 1.0).loss_sum) / tokens)
        loss = loss_of(model.base_model.model, documents)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, train.clip_norm)
        optimizer.step()
        optimizer.zero_grad()
        expected.append(loss.item())
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    assert found[-1] < found[0] - 0.3


def random_adapter(base: Path, folder: Path, bin_file: bool = False, **config: Any) -> peft.PeftModel:
    """An adapter saved by PEFT, all of whose trained values are random."""
    torch.manual_seed(3)
    settings = {"r": 8, "lora_alpha": 16, "target_modules": REFERENCE, **config}
    model = peft.get_peft_model(load_qwen1(base), peft.LoraConfig(**settings))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder, safe_serialization=not bin_file)
    return model


CONFIGS: dict[str, dict[str, Any]] = {
    "finetune.py, chat model": {},
    "finetune.py, base model": {"modules_to_save": ["wte", "lm_head"]},
    "one of the two c_proj": {"target_modules": ["c_attn", "attn.c_proj", "w1", "w2"]},
    "patterns": {"rank_pattern": {"c_attn": 4, "h.1.mlp.w1": 2}, "alpha_pattern": {"attn.c_attn": 3}},
    "rslora": {"use_rslora": True},
    "a .bin": {"bin_file": True},
}


@pytest.mark.parametrize("name", CONFIGS)
def test_the_merge_equals_pefts_in_qwen1s_own_layout(base: Path, tmp_path: Path, name: str) -> None:
    model = random_adapter(base, tmp_path / "adapter", **CONFIGS[name])
    write_merge(open_merge(base, tmp_path / "adapter"), tmp_path / "out")
    merged = load_file(tmp_path / "out" / "model.safetensors")
    expected = {n: t.detach().numpy() for n, t in model.merge_and_unload().state_dict().items()}
    before = load_file(base / "model.safetensors")
    assert merged.keys() == expected.keys() == before.keys()
    assert any(not np.array_equal(before[n], merged[n]) for n in merged)
    for tensor, array in expected.items():
        assert np.abs(merged[tensor] - array).max() <= 1e-6 * np.abs(array).max(), tensor


def test_our_adapter_is_what_a_server_loads(base: Path, tmp_path: Path) -> None:
    """Names under base_model.model. by the model's own modules, two matrices each, no keys of newer PEFTs."""
    backend, recipe = ours(base, CANONICAL)
    theirs(base, backend, recipe, tmp_path / "adapter")
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert config["target_modules"] == ["c_attn", "attn.c_proj", "w2", "w1", "mlp.c_proj"]
    assert (config["r"], config["lora_alpha"], config["modules_to_save"]) == (4, 12, None)
    assert not {"rank_pattern", "alpha_pattern"} & config.keys()
    stored = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    shapes = {
        n.removeprefix("base_model.model.transformer.h.1."): a.shape for n, a in stored.items() if ".1." in n
    }
    assert shapes == {
        "attn.c_attn.lora_A.weight": (4, 64),
        "attn.c_attn.lora_B.weight": (192, 4),
        "attn.c_proj.lora_A.weight": (4, 64),
        "attn.c_proj.lora_B.weight": (64, 4),
        "mlp.w1.lora_A.weight": (4, 64),
        "mlp.w1.lora_B.weight": (96, 4),
        "mlp.w2.lora_A.weight": (4, 64),
        "mlp.w2.lora_B.weight": (96, 4),
        "mlp.c_proj.lora_A.weight": (4, 96),
        "mlp.c_proj.lora_B.weight": (64, 4),
    }


def test_it_comes_back_as_it_went(base: Path, tmp_path: Path) -> None:
    backend, recipe = ours(base, CANONICAL)
    theirs(base, backend, recipe, tmp_path / "adapter")
    pairs = read_adapter(tmp_path / "adapter").pairs
    shards = {s.name: s.array for s in backend.named_shards() if s.kind == "param"}
    assert len(pairs) == 2 * 7
    for layer in range(2):
        name = f"model.layers.{layer}.self_attn"
        for i, part in enumerate("qkv"):
            pair = pairs[f"{name}.{part}_proj"]
            assert np.array_equal(pair.a, shards[f"{name}.qkv_proj.lora_A.weight"])
            assert np.array_equal(pair.b, shards[f"{name}.qkv_proj.lora_B.weight"][64 * i : 64 * (i + 1)])
            assert pair.scale == 3.0


@pytest.mark.parametrize("parts", ["qkv", "qv", "k"])
def test_adapters_with_an_a_each_are_one_of_higher_rank(base: Path, tmp_path: Path, parts: str) -> None:
    """As mindformers trains them: for PEFT a c_attn adapter of up to three times the rank."""
    random, tensors = np.random.default_rng(1), {}
    for layer in range(2):
        for linear, out in [*((f"self_attn.{part}_proj", 64) for part in parts), ("mlp.up_proj", 96)]:
            name = f"model.layers.{layer}.{linear}"
            tensors[f"{name}.lora_A.weight"] = random.standard_normal((4, 64)).astype(np.float32)
            tensors[f"{name}.lora_B.weight"] = random.standard_normal((out, 4)).astype(np.float32)
    write_adapter(
        tmp_path / "adapter", tensors, rank=4, alpha=6, targets=["c_attn", "w1"], base="", family="qwen1"
    )
    model = peft.PeftModel.from_pretrained(load_qwen1(base), tmp_path / "adapter").merge_and_unload()
    found = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    before = load_file(base / "model.safetensors")
    for layer in range(2):
        name = f"transformer.h.{layer}.attn.c_attn.weight"
        added = (found[name] - before[name]).reshape(3, 64, 64)
        for i, part in enumerate("qkv"):
            linear = f"model.layers.{layer}.self_attn.{part}_proj"
            wanted = np.zeros((64, 64))
            if part in parts:
                wanted = 1.5 * tensors[f"{linear}.lora_B.weight"] @ tensors[f"{linear}.lora_A.weight"]
            np.testing.assert_allclose(added[i], wanted, atol=1e-4)
    adapter = read_adapter(tmp_path / "adapter")
    assert adapter.pairs["model.layers.0.self_attn.k_proj"].a.shape == (4 * len(parts), 64)
    assert {pair.scale for pair in adapter.pairs.values()} == {1.5}


def test_embedding_and_head_trained_along(base: Path, tmp_path: Path) -> None:
    """As finetune.py does for a base model: in the adapter they are modules_to_save."""
    spec = from_folder(base)
    recipe = make_recipe(lora={"rank": 4, "targets": CANONICAL, "train_embeddings": True}, lr=1e-2)
    backend = make_backend(spec, open_source(base, spec), recipe)
    documents = random_documents([17, 11, 5], VOCAB, seed=5)
    batch = make_batch([documents], 40)
    before = load_file(base / "model.safetensors")
    for _ in range(4):
        backend.train_step([batch], batch.trained_tokens, 1e-2, 1.0)
    model = theirs(base, backend, recipe, tmp_path / "adapter").eval()
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert config["modules_to_save"] == ["lm_head", "wte"]
    stored = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    for name in ("transformer.wte.weight", "lm_head.weight"):
        assert np.abs(stored[f"base_model.model.{name}"] - before[name]).max() > 1e-3
    write_merge(open_merge(base, tmp_path / "adapter"), tmp_path / "out")
    ids = torch.from_numpy(documents[0].ids)[None]
    with torch.no_grad():
        tuned, merged = model.base_model.model(ids)[0], load_qwen1(tmp_path / "out")(ids)[0]
    found = logits(backend, make_batch([documents], 40))[:17]
    np.testing.assert_allclose(found, tuned.numpy(), atol=2e-4)
    np.testing.assert_allclose(merged.numpy(), tuned.numpy(), atol=2e-4)
