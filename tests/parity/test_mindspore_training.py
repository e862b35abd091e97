"""Ten steps on both back ends from the same weights and batches; what MindSpore compiles on the way.

The PyTorch back end is measured against transformers and peft in its own tests.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from tests.batches import make_batch, random_documents
from tests.fit_lab import run_fit
from tests.mindspore_lab import as_shards, build, compiled_graphs, copy_of_state
from tests.tiny import VOCAB, tiny_config, tiny_weights
from tests.torch_lab import make_backend, make_recipe

from tengtune.backends.base import Backend
from tengtune.data.documents import Documents, starts
from tengtune.data.pack import pack
from tengtune.data.store import About, Store, open_store, write_store
from tengtune.models.spec import ModelSpec, from_config
from tengtune.recipe import Recipe
from tengtune.train.batch import Batch
from tengtune.train.metrics import read

STEPS, HALF, LENGTH = 10, 5, 64
SLOTS = (48, 64)
State = dict[tuple[str, str], np.ndarray]


def spec_of(layers: int) -> ModelSpec:
    return from_config(tiny_config(num_hidden_layers=layers, tie_word_embeddings=True))


def recipe_of(method: str) -> Recipe:
    lora = {"rank": 4, "alpha": 12, "targets": ["q_proj", "v_proj", "o_proj", "gate_proj", "down_proj"]}
    return make_recipe(method, lora=lora, weight_decay=0.1, clip_norm=0.5)


def micro_batches(step: int) -> list[Batch]:
    """Two micro batches of two packed rows; steps come in two numbers of label slots."""
    documents = random_documents([17, 30, 9, 41, 23, 12, 35, 28], VOCAB, seed=100 + step)
    rows = [documents[:2], documents[2:4], documents[4:6], documents[6:]]
    return [make_batch(rows[i : i + 2], LENGTH, SLOTS[step % 2]) for i in (0, 2)]


@dataclass
class Run:
    """A back end and what its steps gave."""

    backend: Backend
    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    states: list[State] = field(default_factory=list)
    graphs: list[int] = field(default_factory=list)

    def steps(self, numbers: Sequence[int]) -> None:
        for step in numbers:
            batches = micro_batches(step)
            tokens, lr = sum(b.trained_tokens for b in batches), 2e-3 * (1 - step / STEPS)
            handles = self.backend.train_step(batches, tokens, lr, 2.0**step)
            assert float(handles.finite) == 1
            self.losses.append(float(handles.loss_sum) / tokens)
            self.norms.append(float(handles.grad_norm))
            self.states.append(copy_of_state(self.backend))
            self.graphs.append(compiled_graphs())


@dataclass
class Case:
    """Both back ends after ten steps; MindSpore took a step in vain half-way."""

    method: str
    torch: Run
    mindspore: Run
    compiled: int
    in_vain: tuple[State, float, float]


@pytest.fixture(scope="module", params=["lora", "full"])
def case(request: pytest.FixtureRequest) -> Iterator[Case]:
    spec, recipe = spec_of(2), recipe_of(request.param)
    weights = tiny_weights(spec)
    torch_run = Run(make_backend(spec, weights, recipe))
    torch_run.steps(range(STEPS))
    before = compiled_graphs()
    run = Run(build(spec, weights, recipe))
    run.steps(range(HALF))
    batches = micro_batches(HALF)
    handles = run.backend.train_step(batches, 100, 1e-3, 3e38)
    in_vain = (copy_of_state(run.backend), float(handles.finite), float(handles.grad_norm))
    run.steps(range(HALF, STEPS))
    return Case(request.param, torch_run, run, run.graphs[-1] - before, in_vain)


def test_losses_and_norms_are_torchs(case: Case) -> None:
    np.testing.assert_allclose(case.mindspore.losses, case.torch.losses, rtol=1e-4)
    np.testing.assert_allclose(case.mindspore.norms, case.torch.norms, rtol=1e-4)
    assert case.mindspore.losses[-1] < case.mindspore.losses[0]
    assert min(case.torch.norms) > 0.5, "clipping was at work"


def test_every_tensor_and_moment_is_torchs(case: Case) -> None:
    """exp_avg after the first step is the clipped gradient times 1 - beta1."""
    for step in (0, HALF - 1, STEPS - 1):
        ours, theirs = case.mindspore.states[step], case.torch.states[step]
        assert ours.keys() == theirs.keys()
        for key, expected in theirs.items():
            assert ours[key].shape == expected.shape
            distance = np.linalg.norm(ours[key] - expected)
            assert distance <= 1e-4 * np.linalg.norm(expected), (step, key)


def test_graphs_grow_neither_with_steps_nor_with_depth(case: Case) -> None:
    """After one step of each number of label slots all is compiled, and as much for 8 layers as for 2."""
    assert set(case.mindspore.graphs[1:]) == {case.mindspore.graphs[1]}
    spec = spec_of(8)
    before = compiled_graphs()
    run = Run(build(spec, tiny_weights(spec), recipe_of(case.method)))
    run.steps(range(3))
    assert run.graphs[1] == run.graphs[2]
    assert run.graphs[2] - before == case.compiled
    assert case.compiled <= 20


def test_a_step_in_vain_leaves_every_bit(case: Case) -> None:
    """And is not counted: the losses after it are those of torch, which never took it."""
    state, finite, norm = case.in_vain
    assert finite == 0
    assert not np.isfinite(norm)
    for key, array in case.mindspore.states[HALF - 1].items():
        assert array.tobytes() == state[key].tobytes(), key


def test_resuming_repeats_every_bit(case: Case) -> None:
    backend = case.mindspore.backend
    backend.load_shards(as_shards(case.mindspore.states[HALF - 1]), HALF)
    again = Run(backend)
    again.steps(range(HALF, STEPS))
    assert again.losses == case.mindspore.losses[HALF:]
    for key, array in case.mindspore.states[-1].items():
        assert array.tobytes() == again.states[-1][key].tobytes(), key
    assert again.graphs[-1] == again.graphs[0]


def test_each_goes_on_from_the_others_state(case: Case) -> None:
    for run, other in ((case.mindspore, case.torch), (case.torch, case.mindspore)):
        run.backend.load_shards(as_shards(other.states[HALF - 1]), HALF)
        again = Run(run.backend)
        again.steps(range(HALF, STEPS))
        np.testing.assert_allclose(again.losses, other.losses[HALF:], rtol=1e-4)


def write_rows(folder: Path, seed: int) -> Store:
    """Twelve packed documents as a store."""
    parts = random_documents(np.random.default_rng(seed).integers(8, 40, 12).tolist(), VOCAB, seed)
    lengths = np.array([part.ids.size for part in parts])
    documents = Documents(
        np.concatenate([part.ids for part in parts]).astype(np.int32),
        np.concatenate([part.train for part in parts]),
        starts(lengths),
        np.zeros((len(parts), 2), np.int64),
        ("made.json",),
    )
    write_store(folder, documents, pack(lengths, LENGTH, seed), About("none", "assistant", LENGTH))
    return open_store(folder)


def test_the_loop_runs_both_alike(case: Case, tmp_path: Path) -> None:
    """train/fit.py from one store, with held-out rows scored on the way."""
    rows, heldout = write_rows(tmp_path / "train", 1), write_rows(tmp_path / "heldout", 2)
    recipe = make_recipe(
        case.method, micro_batch=2, global_batch=4, max_steps=5, lr=1e-3, log_every=2, eval_every=2
    )
    records = []
    for run in (case.torch, case.mindspore):
        run.backend.load_shards(as_shards(case.torch.states[0]), 1)
        folder = tmp_path / run.backend.__class__.__name__
        run_fit(folder, run.backend, rows, recipe, heldout)
        records.append(list(read(folder / "metrics.jsonl")))
    assert [r["step"] for r in records[1]] == [r["step"] for r in records[0]] == [2, 2, 4, 4, 5]
    for theirs, ours in zip(*records, strict=True):
        for key in {"loss", "grad_norm", "heldout_loss", "trained_tokens"} & theirs.keys():
            assert ours[key] == pytest.approx(theirs[key], rel=1e-4), (theirs["step"], key)
