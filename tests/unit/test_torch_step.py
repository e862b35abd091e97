"""Whole steps on a tiny model: the same work cut another way gives the same numbers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.batches import make_batch, random_documents
from tests.tiny import VOCAB, tiny_config, tiny_model, tiny_weights
from tests.torch_lab import gradients, logits, make_backend, make_recipe, randomize_adapters, shards

from tengtune.backends.base import Shard
from tengtune.backends.torch import step as module
from tengtune.backends.torch.step import TorchBackend
from tengtune.models.spec import ModelSpec, from_config, from_folder
from tengtune.train.batch import Batch, fill_rows
from tengtune.ui.problems import Problem
from tengtune.weights.source import open_source

SPEC = from_config(tiny_config())
WEIGHTS = tiny_weights(SPEC, seed=1)
DOCUMENTS = random_documents([23, 9, 70, 1, 14, 31], VOCAB, seed=2)
PACKED = make_batch([DOCUMENTS[:3], DOCUMENTS[3:]], 128)
METHODS = ["lora", "full"]


def backend_of(
    method: str = "lora", dtype: torch.dtype = torch.float32, spec: ModelSpec = SPEC, **train: object
) -> TorchBackend:
    weights = WEIGHTS if spec is SPEC else tiny_weights(spec, seed=1)
    backend = make_backend(spec, weights, make_recipe(method, lr=1e-2, **train), dtype)
    randomize_adapters(backend)
    return backend


def close(one: Mapping[object, np.ndarray], other: Mapping[object, np.ndarray], rtol: float) -> None:
    """Equal within rtol of each tensor's largest entry."""
    assert one.keys() == other.keys()
    for name, array in one.items():
        error = np.abs(array - other[name]).max()
        assert error <= rtol * max(np.abs(other[name]).max(), 1e-30), name


@pytest.mark.parametrize("method", METHODS)
def test_packed_is_unpacked(method: str) -> None:
    """One row a document, in another order and longer rows, with unused label slots."""
    single = make_batch([[d] for d in reversed(DOCUMENTS)], 80, slots=80)
    for dtype, error in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        (one, ours), (other, theirs) = (
            gradients(backend_of(method, dtype), batch, 0.01) for batch in (PACKED, single)
        )
        assert one == pytest.approx(other, rel=error)
        close(ours, theirs, error)


@pytest.mark.parametrize("method", METHODS)
def test_recompute_gives_the_same_bits(method: str) -> None:
    one, ours = gradients(backend_of(method), PACKED, 0.01)
    other, theirs = gradients(backend_of(method, recompute="full"), PACKED, 0.01)
    assert one == other
    close(ours, theirs, 0.0)


@pytest.mark.parametrize("method", METHODS)
def test_accumulated_is_one_batch(method: str) -> None:
    """Micro batches with different label counts weigh as in one batch: by the token, not by the batch."""
    whole, parts = backend_of(method, torch.float64), backend_of(method, torch.float64)
    micro = [make_batch([DOCUMENTS[:1]], 128), make_batch([DOCUMENTS[1:3], DOCUMENTS[3:]], 128)]
    tokens = PACKED.trained_tokens
    one = whole.train_step([PACKED], tokens, 0.01, 1.0)
    other = parts.train_step(micro, tokens, 0.01, 1.0)
    assert float(one.loss_sum) == pytest.approx(float(other.loss_sum), rel=1e-12)
    assert float(one.grad_norm) == pytest.approx(float(other.grad_norm), rel=1e-12)
    # AdamW divides tiny by tiny: what is near 0 in both may differ in its first step.
    close(shards(whole), shards(parts), 1e-6)


def test_the_norm_is_that_of_the_mean_loss() -> None:
    backend = backend_of()
    loss_sum, found = gradients(backend, PACKED, 1 / PACKED.trained_tokens)
    expected = np.sqrt(sum(float(np.square(g, dtype=np.float64).sum()) for g in found.values()))
    for parameter in backend.model.parameters():
        parameter.grad = None
    handles = backend.train_step([PACKED], PACKED.trained_tokens, 0.01, 4096.0)
    assert float(handles.grad_norm) == pytest.approx(expected, rel=1e-5)
    assert float(handles.loss_sum) == pytest.approx(loss_sum, rel=1e-6)
    assert float(handles.finite) == 1


def run(backend: TorchBackend, steps: range) -> list[float]:
    tokens = PACKED.trained_tokens
    return [float(backend.train_step([PACKED], tokens, 0.01, 1.0).loss_sum) / tokens for _ in steps]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("method", METHODS)
def test_the_same_bits_every_time(method: str, dtype: torch.dtype) -> None:
    one, other = backend_of(method, dtype), backend_of(method, dtype)
    assert run(one, range(3)) == run(other, range(3))
    close(shards(one), shards(other), 0.0)


@pytest.mark.parametrize("method", METHODS)
def test_it_learns(method: str) -> None:
    losses = run(backend_of(method), range(12))
    assert losses[-1] < losses[0] - 1


@pytest.mark.parametrize("method", METHODS)
def test_shards_resume_to_the_same_bits(method: str) -> None:
    straight = backend_of(method)
    run(straight, range(2))
    saved = list(straight.named_shards())
    expected = run(straight, range(3))
    resumed = make_backend(SPEC, WEIGHTS, make_recipe(method, lr=1e-2, seed=7))
    resumed.load_shards(iter(saved), step=2)
    assert run(resumed, range(3)) == expected
    close(shards(resumed), shards(straight), 0.0)


def test_shards_have_the_names_and_shapes_of_files() -> None:
    found = shards(backend_of("lora"))
    name = "model.layers.1.mlp.gate_proj"
    assert found[f"{name}.lora_A.weight", "param"].shape == (8, 64)
    assert found[f"{name}.lora_B.weight", "exp_avg"].shape == (96, 8)
    assert len(found) == 3 * 2 * 7 * 2
    full = shards(backend_of("full"))
    assert {n: a.shape for (n, kind), a in full.items() if kind == "exp_avg_sq"} == dict(SPEC.tensors())
    assert all(a.dtype == np.float32 and a.flags.c_contiguous for a in (*found.values(), *full.values()))


def test_shards_are_copies() -> None:
    backend = backend_of()
    before = shards(backend)
    kept = {key: array.copy() for key, array in before.items()}
    run(backend, range(1))
    assert before.keys() == kept.keys()
    assert all(np.array_equal(before[key], array) for key, array in kept.items())


def test_foreign_and_missing_shards_are_problems() -> None:
    saved = list(backend_of().named_shards())
    with pytest.raises(Problem) as missing:
        backend_of().load_shards(saved[1:], step=1)
    assert missing.value.code == "device.missing_shard"
    strange = Shard("model.layers.9.self_attn.q_proj.lora_A.weight", "param", saved[0].array)
    turned = Shard(saved[0].name, saved[0].kind, np.ascontiguousarray(saved[0].array.T))
    for shard in (strange, turned):
        with pytest.raises(Problem) as foreign:
            backend_of().load_shards([shard, *saved[1:]], step=1)
        assert foreign.value.code == "device.foreign_shard"
        assert shard.name in str(foreign.value)


@pytest.mark.parametrize(("dtype", "scale"), [(torch.float32, 1e38), (torch.float16, 2.0**40)])
def test_an_overflow_skips_the_step(dtype: torch.dtype, scale: float) -> None:
    """A loss scale that the type cannot hold: reported, and nothing changed."""
    backend = backend_of(dtype=dtype)
    before = shards(backend)
    assert float(backend.train_step([PACKED], PACKED.trained_tokens, 0.01, scale).finite) == 0
    close(shards(backend), before, 0.0)
    assert float(backend.train_step([PACKED], PACKED.trained_tokens, 0.01, 64.0).finite) == 1


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_types_to_their_own_error(dtype: torch.dtype, method: str) -> None:
    """What is trained stays float32; loss and gradients are those of float32 to a few roundings."""
    narrow, wide = backend_of(method, dtype), backend_of(method)
    assert {a.dtype.name for a in shards(narrow).values()} == {"float32"}
    (one, ours), (other, theirs) = (gradients(b, PACKED, 1.0) for b in (narrow, wide))
    error = torch.finfo(dtype).eps
    assert one == pytest.approx(other, rel=error)
    for name, gradient in theirs.items():
        distance = np.linalg.norm(ours[name] - gradient) / np.linalg.norm(gradient)
        assert distance < 6 * error, name


@pytest.mark.parametrize("tie", [False, True])
def test_evaluation_is_the_loss_without_a_trace(tie: bool) -> None:
    backend = backend_of("full", spec=from_config(tiny_config(tie_word_embeddings=tie)))
    before = shards(backend)
    found = float(backend.eval_step(fill_rows(PACKED, 5)))
    assert found == pytest.approx(gradients(backend, PACKED)[0], rel=1e-6)
    close(shards(backend), before, 0.0)


def test_rows_of_padding_only() -> None:
    """A short last batch is filled with empty rows; a batch may even hold nothing else."""
    empty = fill_rows(Batch(*(getattr(PACKED, n)[:0] for n in PACKED.__dataclass_fields__)), 2)
    assert float(backend_of().eval_step(empty)) == 0
    alone, filled = backend_of(), backend_of()
    tokens = PACKED.trained_tokens
    one = alone.train_step([PACKED], tokens, 0.01, 1.0)
    other = filled.train_step([fill_rows(PACKED, 4), empty], tokens, 0.01, 1.0)
    assert float(one.loss_sum) == float(other.loss_sum)
    close(shards(alone), shards(filled), 0.0)


def test_frozen_weights_stay_on_the_file(tmp_path: Path) -> None:
    """Memory: no second copy where the types agree; trained weights never touch the file."""
    folder = tiny_model(tmp_path)
    spec = from_folder(folder)
    source = open_source(folder, spec)
    name = "model.layers.0.mlp.up_proj.weight"
    for method, shared in (("lora", True), ("full", False)):
        backend = make_backend(spec, source, make_recipe(method))
        weight = backend.model.get_parameter(name)
        assert (weight.data_ptr() == source[name].ctypes.data) == shared
        assert weight.requires_grad != shared
    before = (folder / "model.safetensors").read_bytes()
    run(backend_of("full"), range(1))
    assert (folder / "model.safetensors").read_bytes() == before


def test_a_bfloat16_folder(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path, dtype="bfloat16")
    spec = from_folder(folder)
    source = open_source(folder, spec)
    wide = {name: array.astype(np.float32) for name, array in source.items()}
    one, other = (make_backend(spec, s, make_recipe("full")) for s in (source, wide))
    np.testing.assert_array_equal(logits(one, PACKED), logits(other, PACKED))
    name = "model.layers.0.mlp.up_proj.weight"
    mapped = make_backend(spec, source, make_recipe(), torch.bfloat16).model.get_parameter(name)
    assert mapped.data_ptr() == source[name].ctypes.data


def test_build_follows_the_run_file(tmp_path: Path) -> None:
    """The contract's entrance: device and type, adapters by seed and targets, nothing trained on request."""
    folder = tiny_model(tmp_path)
    spec = from_folder(folder)
    source = open_source(folder, spec)
    recipe = make_recipe(lora={"targets": ["q_proj"], "rank": 2})
    backend = module.build(spec, source, recipe)
    assert (backend.device, backend.dtype) == ("cpu", "float32")
    assert {s.name.split(".")[-3] for s in backend.named_shards()} == {"q_proj"}
    narrow = recipe.model_copy(update={"model": recipe.model.model_copy(update={"dtype": "bfloat16"})})
    assert module.build(spec, source, narrow).dtype == "bfloat16"
    answering = module.build(spec, source, recipe, trainable=False)
    assert list(answering.named_shards()) == []
    np.testing.assert_array_equal(logits(answering, PACKED), logits(backend, PACKED))
