"""float16, LoRA on Qwen1, and embedding and head beside LoRA on MindSpore, against PyTorch in float32.

The PyTorch back end is measured against transformers and peft in its own tests.
"""

from __future__ import annotations

import io
import math
import tracemalloc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from mindspore import Tensor, ops
from tests import fit_lab
from tests.batches import make_batch, random_documents
from tests.mindspore_lab import as_shards, build, compiled_graphs, copy_of_state
from tests.qwen1 import qwen1_config
from tests.tiny import VOCAB, tiny_config, tiny_weights
from tests.torch_lab import make_backend, make_recipe

from tengtune.backends.base import Backend
from tengtune.backends.mindspore import device
from tengtune.models.spec import ModelSpec, from_config
from tengtune.recipe import Dtype, Recipe
from tengtune.train.batch import Batch
from tengtune.train.loss_scale import LossScale
from tengtune.train.metrics import read
from tengtune.ui.problems import Problem

STEPS, LENGTH, SLOTS = 10, 48, 40
SCALE = 65536.0
"""Where the loop begins."""
State = dict[tuple[str, str], np.ndarray]


def batches_of(step: int) -> list[Batch]:
    """Two micro batches of two packed rows, from three sets that come again."""
    documents = random_documents([17, 30, 9, 21, 23, 12, 25, 18], VOCAB, seed=step % 3)
    rows = [documents[:2], documents[2:4], documents[4:6], documents[6:]]
    return [make_batch(rows[i : i + 2], LENGTH, SLOTS) for i in (0, 2)]


def narrowed(recipe: Recipe) -> Recipe:
    return recipe.model_copy(update={"model": recipe.model.model_copy(update={"dtype": "float16"})})


@dataclass
class Twins:
    """Both back ends with the same weights, and their losses."""

    torch: Backend
    mindspore: Backend
    losses: dict[str, list[float]] = field(default_factory=lambda: {"torch": [], "mindspore": []})
    graphs: list[int] = field(default_factory=list)

    def steps(self, numbers: Sequence[int], scale: float) -> None:
        """The same steps on both; on MindSpore of the loss times `scale`."""
        for step in numbers:
            batches = batches_of(step)
            tokens = sum(batch.trained_tokens for batch in batches)
            for name, backend, factor in (("torch", self.torch, 1.0), ("mindspore", self.mindspore, scale)):
                handles = backend.train_step(batches, tokens, 5e-3, factor)
                assert float(handles.finite) == 1
                self.losses[name].append(float(handles.loss_sum) / tokens)
            self.graphs.append(compiled_graphs())


def twins(spec: ModelSpec, recipe: Recipe, float16: bool) -> Twins:
    weights = tiny_weights(spec)
    return Twins(
        make_backend(spec, weights, recipe), build(spec, weights, narrowed(recipe) if float16 else recipe)
    )


def tiny(**shape: object) -> ModelSpec:
    return from_config(tiny_config(num_hidden_layers=1, **shape))


LORA = {"rank": 4, "alpha": 12, "targets": ["q_proj", "k_proj", "v_proj", "up_proj", "down_proj"]}
QWEN1 = from_config(qwen1_config(tiny_config(num_hidden_layers=1, num_key_value_heads=4)))


def test_a_qwen1_base_model_is_trained_as_on_torch() -> None:
    """One A for q, k and v, embedding and head trained along: losses, names and every tensor; then each goes
    on from the other's state."""
    recipe = make_recipe(lora={**LORA, "train_embeddings": True}, weight_decay=0.1)
    pair = twins(QWEN1, recipe, float16=False)
    pair.steps(range(STEPS), 1.0)
    np.testing.assert_allclose(pair.losses["mindspore"], pair.losses["torch"], rtol=1e-4)
    assert pair.losses["torch"][-1] < pair.losses["torch"][0] - 0.3
    states = copy_of_state(pair.mindspore), copy_of_state(pair.torch)
    assert states[0].keys() == states[1].keys()
    for key, expected in states[1].items():
        assert np.linalg.norm(states[0][key] - expected) <= 1e-3 * np.linalg.norm(expected), key
    pair.mindspore.load_shards(as_shards(states[1]), STEPS)
    pair.torch.load_shards(as_shards(states[0]), STEPS)
    pair.steps(range(STEPS, STEPS + 3), 1.0)
    np.testing.assert_allclose(pair.losses["mindspore"], pair.losses["torch"], rtol=1e-4)
    assert set(pair.graphs) == {pair.graphs[0]}


QKV = {"qkv_proj.lora_A.weight": (4, 64), "qkv_proj.lora_B.weight": (192, 4)}
TABLES = {"model.embed_tokens.weight", "lm_head.weight"}


@pytest.mark.parametrize(
    ("spec", "lora", "attention", "tables"),
    [
        (QWEN1, {}, QKV, set()),
        (QWEN1, {"train_embeddings": True}, QKV, TABLES),
        (QWEN1, {"targets": ["up_proj"]}, {}, set()),
        (
            tiny(),
            {"train_embeddings": True, "targets": ["q_proj"]},
            {"q_proj.lora_A.weight": (4, 64), "q_proj.lora_B.weight": (64, 4)},
            TABLES,
        ),
        (tiny(tie_word_embeddings=True), {"targets": ["up_proj"]}, {}, set()),
    ],
)
def test_what_is_trained(
    spec: ModelSpec, lora: dict[str, object], attention: dict[str, tuple[int, int]], tables: set[str]
) -> None:
    backend = build(spec, tiny_weights(spec), make_recipe(lora={**LORA, **lora}))
    trained = {shard.name: shard.array.shape for shard in backend.named_shards()}
    of_attention = {n.removeprefix("model.layers.0.self_attn."): s for n, s in trained.items() if "attn" in n}
    assert of_attention == attention
    assert {n for n in trained if ".layers." not in n} == tables


@pytest.mark.parametrize(
    ("device_name", "wanted", "expected"),
    [
        ("cpu", "auto", "float32"),
        ("cpu", "float16", "float16"),
        ("Ascend:0", "auto", "float16"),
        ("Ascend:0", "float32", "float32"),
    ],
)
def test_the_compute_type(device_name: str, wanted: Dtype, expected: str) -> None:
    assert device.choose_dtype(device_name, wanted) == expected


def test_a_card_is_not_measured_and_float32_is_the_measure() -> None:
    assert device.slowdown("Ascend:0", "float16") == device.slowdown("cpu", "float32") == 1.0


def test_what_is_measured_is_a_layer_in_the_compute_type(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products alone say 1.1 where a step takes 3 times as long: on a CPU it is the rest that is slow."""
    seen: list[tuple[str, str]] = []

    class Watched:
        def __getattr__(self, name: str) -> object:
            real = getattr(ops, name)

            def call(first: Tensor, *rest: object) -> Tensor:
                seen.append((name, str(first.dtype).lower()))
                return real(first, *rest)

            return call

    monkeypatch.setattr(device, "ops", Watched())
    assert device.slowdown("cpu", "float16") > 0
    for dtype in ("float16", "float32"):
        assert {name for name, of in seen if of == dtype} == {"matmul", "sigmoid", "softmax"}


def test_frozen_weights_take_two_bytes_and_loading_one_block_more() -> None:
    spec = from_config(tiny_config(num_hidden_layers=12, hidden_size=128, intermediate_size=512))
    weights, recipe = tiny_weights(spec), narrowed(make_recipe(lora={"rank": 1, "targets": ["v_proj"]}))
    block = sum(math.prod(shape) for shape in spec.block_tensors().values())
    build(spec, weights, recipe)  # what is imported and made once
    tracemalloc.start()
    backend = build(spec, weights, recipe)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert backend.dtype == "float16"
    assert 2 * spec.parameters() < peak < 2 * (spec.parameters() + block) + 2**18


@dataclass
class Narrow:
    """Twins after ten steps, MindSpore in float16; their state then."""

    pair: Twins
    state: State


@pytest.fixture(scope="module", params=["lora", "full"])
def narrow(request: pytest.FixtureRequest) -> Iterator[Narrow]:
    spec = from_config(tiny_config(tie_word_embeddings=request.param == "full"))
    pair = twins(spec, make_recipe(request.param, lora=LORA, weight_decay=0.1, clip_norm=0.5), float16=True)
    pair.steps(range(STEPS), SCALE)
    return Narrow(pair, copy_of_state(pair.mindspore))


def test_float16_is_torchs_float32(narrow: Narrow) -> None:
    pair = narrow.pair
    assert pair.mindspore.dtype == "float16"
    assert pair.mindspore.slowdown > 0
    np.testing.assert_allclose(pair.losses["mindspore"], pair.losses["torch"], rtol=2e-3)
    assert pair.losses["mindspore"][-1] < pair.losses["mindspore"][0] - 0.3
    assert pair.losses["mindspore"] != pair.losses["torch"], "it did compute in another type"
    assert {array.dtype.name for array in narrow.state.values()} == {"float32"}
    assert set(pair.graphs) == {pair.graphs[0]}


def test_a_state_in_float32_goes_to_the_other(narrow: Narrow) -> None:
    pair, (batch, _) = narrow.pair, batches_of(0)
    other = copy_of_state(pair.torch)
    assert narrow.state.keys() == other.keys()
    for backend, state in ((pair.torch, narrow.state), (pair.mindspore, other)):
        backend.load_shards(as_shards(state), STEPS)
    found = float(pair.mindspore.eval_step(batch))
    pair.mindspore.load_shards(as_shards(narrow.state), STEPS)
    again = float(pair.mindspore.eval_step(batch))
    expected = float(pair.torch.eval_step(batch))
    pair.torch.load_shards(as_shards(other), STEPS)
    assert again == pytest.approx(expected, rel=2e-3)
    assert found == pytest.approx(float(pair.torch.eval_step(batch)), rel=2e-3)


@pytest.mark.parametrize("narrow", ["lora"], indirect=True)
def test_it_answers_in_float16(narrow: Narrow) -> None:
    """The ids of the model in float32."""
    narrow.pair.torch.load_shards(as_shards(narrow.state), STEPS)
    narrow.pair.mindspore.load_shards(as_shards(narrow.state), STEPS)
    expected = list(narrow.pair.torch.generate([3, 4, 5, 6], 8, ()))
    assert list(narrow.pair.mindspore.generate([3, 4, 5, 6], 8, ())) == expected


def test_an_overflow_leaves_every_bit(narrow: Narrow) -> None:
    batches, backend = batches_of(0), narrow.pair.mindspore
    backend.load_shards(as_shards(narrow.state), STEPS)
    assert float(backend.train_step(batches, 100, 1e-3, 2.0**26).finite) == 0
    for key, array in copy_of_state(backend).items():
        assert array.tobytes() == narrow.state[key].tobytes(), key


class Store:
    """Rows of one batch over and over."""

    rows = 200
    trained_tokens = 200 * 20
    labels_per_row = np.full(200, 20, np.int32)

    def batch(self, rows: Sequence[int]) -> Batch:
        documents = random_documents([17, 30], VOCAB, seed=1)
        return make_batch([documents for _ in rows], LENGTH, SLOTS)


def in_the_loop(narrow: Narrow, folder: Path, state: State, steps: int) -> tuple[dict[str, object], str]:
    """The loop's figures and what it said, from a state."""
    narrow.pair.mindspore.load_shards(as_shards(state), STEPS)
    recipe = make_recipe(micro_batch=2, global_batch=2, max_steps=steps, lr=1e-3, log_every=1)
    err = io.StringIO()
    return fit_lab.run_fit(folder, narrow.pair.mindspore, Store(), recipe, err=err), err.getvalue()


def test_the_loop_halves_the_scale_until_it_fits(
    narrow: Narrow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fit_lab, "LossScale", partial(LossScale, value=2.0**26))
    figures, said = in_the_loop(narrow, tmp_path, narrow.state, 12)
    records = list(read(tmp_path / "metrics.jsonl"))
    skipped = [record["scale"] for record in records if record.get("event") == "skipped"]
    assert skipped == [2.0 ** (26 - i) for i in range(len(skipped))]
    assert 1 <= len(skipped) < 10
    assert figures["skipped_steps"] == len(skipped)
    assert said.count("loss scale") >= len(skipped)
    logged = [record for record in records if "loss_scale" in record]
    assert logged[-1]["loss_scale"] == 2.0 ** (26 - len(skipped))
    assert [record["loss"] is None for record in logged] == [i < len(skipped) for i in range(12)]


@pytest.mark.parametrize("narrow", ["full"], indirect=True)
def test_a_storm_of_overflows_stops_with_the_reason(narrow: Narrow, tmp_path: Path) -> None:
    """Weights whose products leave float16's range, whatever the scale."""
    state = dict(narrow.state)
    (name,) = [key for key in state if key[1] == "param" and "layers.1.mlp.down_proj" in key[0]][-1:]
    state[name] = np.full_like(state[name], 3e4)
    with pytest.raises(Problem) as caught:
        in_the_loop(narrow, tmp_path, state, 40)
    assert caught.value.code == "train.forward_overflow"
    assert "model.layers.1" in str(caught.value)
    last = list(read(tmp_path / "metrics.jsonl"))[-1]
    assert (last["event"], last["reason"], last["place"]) == ("stopped", "overflow", "model.layers.1")
