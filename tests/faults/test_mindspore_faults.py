"""What a user of the MindSpore back end can run into ends as a Problem."""

from __future__ import annotations

import numpy as np
import pytest
from tests.batches import make_batch, random_documents
from tests.mindspore_lab import as_shards, build, copy_of_state
from tests.tiny import tiny_config, tiny_weights
from tests.torch_lab import make_recipe

from tengtune.backends.base import Asked
from tengtune.backends.mindspore import generate
from tengtune.backends.mindspore.step import MindSporeBackend
from tengtune.models.spec import from_config
from tengtune.ui.problems import Problem

SPEC = from_config(tiny_config(hidden_size=8, num_attention_heads=2, num_key_value_heads=1, vocab_size=16))
NAME = "model.layers.1.mlp.up_proj.lora_B.weight"


@pytest.fixture(scope="module")
def backend() -> MindSporeBackend:
    return build(SPEC, tiny_weights(SPEC), make_recipe())


def test_a_model_for_answering_trains_nothing() -> None:
    backend = build(SPEC, tiny_weights(SPEC), make_recipe(), trainable=False)
    assert list(backend.named_shards()) == []


@pytest.mark.parametrize("fault", ["foreign", "shape", "kind", "twice"])
def test_a_foreign_shard_is_refused(backend: MindSporeBackend, fault: str) -> None:
    state = copy_of_state(backend)
    shards = as_shards(state)
    if fault == "foreign":
        shards += as_shards({("model.norm.weight", "param"): np.ones(8, np.float32)})
    elif fault == "shape":
        shards = as_shards({**state, (NAME, "param"): state[NAME, "param"].T})
    elif fault == "kind":
        shards += as_shards({(NAME, "momentum"): state[NAME, "param"]})
    else:
        shards += shards[:1]
    with pytest.raises(Problem, match=r"device\.foreign_shard"):
        backend.load_shards(shards, 1)


def test_a_missing_shard_is_named(backend: MindSporeBackend) -> None:
    state = copy_of_state(backend)
    del state[NAME, "exp_avg_sq"]
    with pytest.raises(Problem, match=r"device\.missing_shard") as caught:
        backend.load_shards(as_shards(state), 1)
    assert caught.value.where == f"{NAME} (exp_avg_sq)"
    assert caught.value.values["count"] == 1


def test_out_of_memory(backend: MindSporeBackend) -> None:
    """A row whose attention scores alone would take terabytes."""
    batch = make_batch([random_documents([9], 16)], 1 << 20)
    with pytest.raises(Problem, match=r"device\.out_of_memory") as caught:
        backend.eval_step(batch)
    assert caught.value.exit_code == 4


def test_out_of_memory_while_it_answers(backend: MindSporeBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of terabytes."""
    monkeypatch.setattr(generate, "CAPACITY", 1 << 40)
    with pytest.raises(Problem, match=r"device\.out_of_memory"):
        next(backend.generate([1, 2], 4, ()))
    with pytest.raises(Problem, match=r"device\.out_of_memory"):
        next(backend.generate_many([Asked([1, 2], 4, lambda token: True)], ()))
