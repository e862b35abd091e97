"""Real weights in Qwen1's layout and in Qwen2's: the same logits and text and, fine-tuned, the same losses.

Every bias of these two models is zero; test_qwen1_golden.py has models whose biases are not.
"""

from __future__ import annotations

import json
import shutil
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.batches import make_batch, random_documents
from tests.qwen1 import to_qwen1
from tests.shared import ROOT, shared_path
from tests.torch_lab import logits, make_backend, make_recipe

from tengtune.backends.torch.step import TorchBackend
from tengtune.models.spec import from_folder
from tengtune.weights.source import open_source

NOT_ATTENTION = ["o_proj", "gate_proj", "up_proj", "down_proj"]
"""Targets with an adapter of their own in both layouts. One A for q, k and v learns otherwise than three."""


@dataclass(frozen=True)
class Layouts:
    """One model twice."""

    qwen2: Path
    qwen1: Path


@pytest.fixture(scope="module")
def stories(tmp_path_factory: pytest.TempPathFactory) -> Layouts:
    place = tmp_path_factory.mktemp("stories")
    with tarfile.open(shared_path("models/stories260K-qwen2.tar.xz")) as archive:
        archive.extractall(place / "qwen2", filter="data")
    return Layouts(place / "qwen2", to_qwen1(place / "qwen2", place / "qwen1"))


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Layouts]:
    folder = ROOT / "models" / "SmolLM2-135M-Instruct"
    if not (folder / "model.safetensors").exists():
        pytest.skip("models/SmolLM2-135M-Instruct is not here (examples/smollm2.py makes it)")
    made = to_qwen1(folder, tmp_path_factory.mktemp("smollm2") / "qwen1")
    yield Layouts(folder, made)
    shutil.rmtree(made)  # 700 MB


@pytest.fixture(params=["stories", pytest.param("smollm2", marks=pytest.mark.slow)])
def layouts(request: pytest.FixtureRequest) -> Layouts:
    found: Layouts = request.getfixturevalue(request.param)
    return found


def open_backend(folder: Path, method: str = "full", **lora: object) -> TorchBackend:
    spec = from_folder(folder)
    return make_backend(spec, open_source(folder, spec), make_recipe(method, lora=lora))


def losses(backend: TorchBackend, steps: int, lr: float) -> list[float]:
    """Mean losses of steps on two documents."""
    documents = random_documents([30, 17], backend.spec.vocab, seed=2)
    batch = make_batch([documents], 48)
    tokens = batch.trained_tokens
    return [float(backend.train_step([batch], tokens, lr, 1.0).loss_sum) / tokens for _ in range(steps)]


def test_the_same_logits(layouts: Layouts) -> None:
    backends = [open_backend(folder, "lora") for folder in (layouts.qwen2, layouts.qwen1)]
    batch = make_batch([random_documents([40, 24], backends[0].spec.vocab)], 64)
    expected, found = (logits(backend, batch) for backend in backends)
    assert expected.std() > 1
    np.testing.assert_allclose(found, expected, atol=2e-4)


def test_fine_tuned_the_same_losses(layouts: Layouts) -> None:
    expected, found = (
        losses(open_backend(folder, "lora", targets=NOT_ATTENTION, alpha=64), 4, 5e-3)
        for folder in (layouts.qwen2, layouts.qwen1)
    )
    assert expected[-1] < expected[0] - 0.5
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_the_same_text(stories: Layouts) -> None:
    """256 greedy tokens; few errors survive that many choices in a row."""
    expected, found = (
        list(open_backend(folder).generate([1], 256, ())) for folder in (stories.qwen2, stories.qwen1)
    )
    assert len(expected) == 256
    assert found == expected


def test_fully_tuned_the_same_losses(stories: Layouts, tmp_path: Path) -> None:
    """Against a Qwen2 folder with as many key heads and a head of its own, as Qwen1 has them."""
    config = json.loads((stories.qwen2 / "config.json").read_text())
    config |= {"num_key_value_heads": config["num_attention_heads"], "tie_word_embeddings": False}
    (tmp_path / "config.json").write_text(json.dumps(config))
    source, untied = load_file(stories.qwen1 / "model.safetensors"), {}
    renamed = {"attn.c_proj": "self_attn.o_proj", "mlp.w1": "mlp.up_proj", "mlp.w2": "mlp.gate_proj"}
    renamed |= {"mlp.c_proj": "mlp.down_proj", "ln_1": "input_layernorm", "ln_2": "post_attention_layernorm"}
    outside = {"transformer.wte.weight": "model.embed_tokens.weight", "lm_head.weight": "lm_head.weight"}
    outside |= {"transformer.ln_f.weight": "model.norm.weight"}
    for name, array in source.items():
        if ".h." not in name:
            name = name.replace("transformer.wte", "model.embed_tokens").replace(
                "transformer.ln_f", "model.norm"
            )
            untied[name] = array
            continue
        _, _, layer, *module, kind = name.split(".")
        if module == ["attn", "c_attn"]:
            for part, rows in zip("qkv", np.split(array, 3), strict=True):
                untied[f"model.layers.{layer}.self_attn.{part}_proj.{kind}"] = rows.copy()
        else:
            untied[f"model.layers.{layer}.{renamed['.'.join(module)]}.{kind}"] = array
    save_file(untied, tmp_path / "model.safetensors")
    expected, found = (losses(open_backend(folder), 8, 3e-3) for folder in (tmp_path, stories.qwen1))
    assert expected[-1] < expected[0] - 0.5
    np.testing.assert_allclose(found, expected, rtol=1e-5)
