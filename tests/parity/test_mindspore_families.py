"""Thirty steps of every family on both back ends, from the same weights and rows, in float32.

The PyTorch back end is measured against transformers and peft in its own tests.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.batches import make_batch, random_documents
from tests.examples import script
from tests.mindspore_lab import as_shards, build, copy_of_state
from tests.qwen1 import qwen1_config
from tests.tiny import VOCAB, tiny_config, tiny_weights
from tests.torch_lab import make_backend, make_recipe

from tengtune.backends.base import Backend
from tengtune.models.spec import from_config, from_folder
from tengtune.train.batch import Batch
from tengtune.weights.source import open_source

STEPS, LENGTH, SLOTS = 30, 40, 40
MHA = {"num_key_value_heads": 4}
QWEN3 = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 32, "rope_theta": 1e6}
FAMILIES: dict[str, dict[str, Any]] = {
    "Qwen1": qwen1_config(tiny_config(num_hidden_layers=1, **MHA)),
    "Qwen1.5": tiny_config(num_hidden_layers=1, **MHA),
    "Qwen2, tied": tiny_config(num_hidden_layers=1, tie_word_embeddings=True, rope_theta=1e6),
    "Qwen2.5": tiny_config(num_hidden_layers=1, rms_norm_eps=1e-5, rope_theta=1e6),
    "Qwen3, tied": tiny_config(num_hidden_layers=1, **QWEN3, tie_word_embeddings=True),
}


def packed(step: int) -> Batch:
    """Two rows with two or three documents each."""
    documents = random_documents([17, 20, 9, 14, 16], VOCAB, seed=step % 5)
    return make_batch([documents[:2], documents[2:]], LENGTH, SLOTS)


def padded(step: int) -> Batch:
    """Two rows with one document each, and padding."""
    documents = random_documents([19 + 4 * (step % 5), 11], VOCAB, seed=step % 5)
    return make_batch([[document] for document in documents], LENGTH, SLOTS)


def losses(backend: Backend, batches: list[Batch]) -> list[float]:
    found = []
    for step, batch in enumerate(batches):
        tokens, lr = batch.trained_tokens, 5e-3 * (1 - step / STEPS)
        found.append(float(backend.train_step([batch], tokens, lr, 1.0).loss_sum) / tokens)
    return found


WAYS = [(family, method) for family in FAMILIES for method in ("lora", "full")]
REPEATED = {("Qwen1", "full"), ("Qwen1.5", "lora"), ("Qwen2.5", "full")}
"""What has nothing that another does not have as well."""


@pytest.mark.parametrize(
    ("family", "method"),
    [pytest.param(*way, marks=pytest.mark.slow if way in REPEATED else ()) for way in WAYS],
)
def test_thirty_steps_are_torchs(family: str, method: str) -> None:
    spec = from_config(FAMILIES[family])
    weights, recipe = tiny_weights(spec, seed=2), make_recipe(method, lora={"rank": 4}, weight_decay=0.1)
    theirs, ours = make_backend(spec, weights, recipe), build(spec, weights, recipe)
    start = copy_of_state(theirs)
    assert copy_of_state(ours).keys() == start.keys()
    for rows in (packed, padded):
        batches = [rows(step) for step in range(STEPS)]
        expected = losses(theirs, batches)
        np.testing.assert_allclose(losses(ours, batches), expected, rtol=1e-4)
        assert np.mean(expected[-5:]) < np.mean(expected[:5]) - 0.5
        for backend in (theirs, ours):
            backend.load_shards(as_shards(start), 0)


@pytest.mark.slow
def test_a_real_model_of_thirty_layers() -> None:
    """SmolLM2, five steps of LoRA."""
    folder = script("smollm2").FOLDER
    assert (folder / "model.safetensors").exists(), "run `make fetch` (python examples/smollm2.py)"
    spec = from_folder(folder)
    source, recipe = open_source(folder, spec), make_recipe("lora")
    rows = [make_batch([random_documents([30, 25], spec.vocab, seed=step)], 64, 64) for step in range(5)]
    theirs = losses(make_backend(spec, source, recipe), rows)
    ours = losses(build(spec, source, recipe), rows)
    np.testing.assert_allclose(ours, theirs, rtol=1e-4)
    assert len(set(theirs)) == len(rows)
