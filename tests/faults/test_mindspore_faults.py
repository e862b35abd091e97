"""What a user of the MindSpore back end can run into ends as a Problem."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from tests.fault_lab import python
from tests.mindspore_lab import as_shards, build, copy_of_state
from tests.tiny import tiny_config, tiny_weights
from tests.torch_lab import make_recipe

from tengtune.backends.mindspore.step import MindSporeBackend
from tengtune.models.spec import from_config
from tengtune.ui.problems import Problem

ROOT = Path(__file__).parents[2]
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


OUT_OF_MEMORY = """
from tests.batches import make_batch, random_documents
from tests.faults.test_mindspore_faults import SPEC, build, make_recipe, tiny_weights
from tengtune.backends.base import Asked
from tengtune.backends.mindspore import generate
from tengtune.ui.problems import Problem

backend = build(SPEC, tiny_weights(SPEC), make_recipe())
row = make_batch([random_documents([9], 16)], {row})
generate.CAPACITY = {capacity}
for _ in range(2):
    try:
        {work}
    except Problem as problem:
        print(problem.code, problem.exit_code)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("work", "row", "capacity"),
    [
        pytest.param("backend.eval_step(row)", 1 << 20, 256, id="scores"),
        pytest.param("next(backend.generate([1, 2], 4, ()))", 16, 1 << 40, id="cache"),
        pytest.param(
            "next(backend.generate_many([Asked([1, 2], 4, lambda token: True)], ()))",
            16,
            1 << 40,
            id="caches",
        ),
    ],
)
def test_out_of_memory(work: str, row: int, capacity: int) -> None:
    """A row whose attention scores alone take terabytes, or such a cache: told, and told to be the end. In a
    process of its own: MindSpore crashes in what comes after."""
    script = OUT_OF_MEMORY.format(work=work, row=row, capacity=capacity)
    ended = python(script, PYTHONPATH=os.pathsep.join([str(ROOT), os.environ["PYTHONPATH"]]))
    assert ended.stdout.split() == ["device.out_of_memory", "4", "device.spent", "4"], ended.stderr
    assert ended.returncode == 0
