"""What the training loop relies on in both back ends, beyond the numbers of a step."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from tests.batches import make_batch, random_documents
from tests.mindspore_lab import build
from tests.tiny import VOCAB, tiny_config, tiny_weights
from tests.torch_lab import make_backend, make_recipe

from tengtune.backends.base import Backend
from tengtune.models.spec import from_config
from tengtune.train.batch import Batch

SPEC = from_config(tiny_config())
RECIPE = make_recipe(lora={"rank": 2, "targets": ["q_proj"]})


def backend(name: str, weights: Mapping[str, np.ndarray]) -> Backend:
    if name == "torch":
        return make_backend(SPEC, weights, RECIPE)
    return build(SPEC, weights, RECIPE)


@pytest.fixture(scope="module")
def batch() -> Batch:
    return make_batch([random_documents([17, 13], VOCAB), random_documents([9], VOCAB)], 32)


@pytest.mark.parametrize("name", ["torch", "mindspore"])
def test_shards_stay_as_they_were_while_training_goes_on(name: str, batch: Batch) -> None:
    """A checkpoint is written from them in the background."""
    trained = backend(name, tiny_weights(SPEC))
    trained.train_step([batch], batch.trained_tokens, 1e-2, 1.0)
    held = list(trained.named_shards())
    copies = [shard.array.copy() for shard in held]
    assert all(shard.array.dtype == np.float32 for shard in held)
    for _ in range(2):
        trained.train_step([batch], batch.trained_tokens, 1e-2, 1.0)
    moved = [shard.array for shard in trained.named_shards()]
    assert sum(bool((a != b).any()) for a, b in zip(moved, copies, strict=True)) == len(held)
    for shard, copy in zip(held, copies, strict=True):
        np.testing.assert_array_equal(shard.array, copy)


@pytest.mark.parametrize(
    ("name", "place"), [("torch", "model.layers.1.mlp.down_proj"), ("mindspore", "model.layers.1")]
)
def test_the_first_overflow_is_found(name: str, place: str, batch: Batch) -> None:
    weights = tiny_weights(SPEC)
    assert backend(name, weights).first_overflow(batch) is None
    weights["model.layers.1.mlp.down_proj.weight"][0, 0] = np.inf
    assert backend(name, weights).first_overflow(batch) == place
    weights["model.embed_tokens.weight"][:] = np.nan
    assert backend(name, weights).first_overflow(batch) == "model.embed_tokens"
