"""The MindSpore back end against what transformers computed (index.json beside the fixtures says how)."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from tests.batches import Document, make_batch
from tests.mindspore_lab import build
from tests.torch_lab import make_recipe

from tengtune.backends.mindspore import loss
from tengtune.backends.mindspore.step import MindSporeBackend
from tengtune.models.spec import from_folder
from tengtune.train.batch import Batch

HERE = Path(__file__).parent
VOCAB = 384


@dataclass(frozen=True)
class Golden:
    """One checkpoint, opened by the back end, with its inputs and the expected outputs."""

    backend: MindSporeBackend
    inputs: dict[str, np.ndarray]
    eval: dict[str, np.ndarray]
    train: dict[str, np.ndarray]
    tolerance: dict[str, Any]


# The label rows of the loss in one chunk, or in many of 7 rows, of which the last is not full.
@pytest.fixture(
    scope="module", params=[("qwen2/tied", 2**24), ("qwen2/untied", 7 * VOCAB), ("qwen3/tied", 2**24)]
)
def golden(request: pytest.FixtureRequest) -> Golden:
    case, chunk = request.param
    folder = HERE / case
    inputs, expected, train, weights = (
        load_file(folder / f"{name}.safetensors") for name in ("inputs", "eval", "train", "model")
    )
    # Without momentum and clipping, exp_avg after a step is the step's gradient.
    recipe = make_recipe("full", beta1=0.0, clip_norm=0.0)
    tolerance = json.loads((folder.parent / "index.json").read_text())["tolerance"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loss, "CHUNK_LOGITS", chunk)
        yield Golden(build(from_folder(folder), weights, recipe), inputs, expected, train, tolerance)


def packed(golden: Golden) -> Batch:
    """Three documents in one row, with padding behind, and one label slot."""
    ids, positions = golden.inputs["packed_ids"][0], golden.inputs["packed_position_ids"][0]
    starts = [*np.flatnonzero(positions == 0), ids.size]
    documents = [Document(ids[a:b], np.arange(b - a) == 1) for a, b in pairwise(starts)]
    batch = make_batch([documents], 60)
    return replace(batch, label_index=batch.label_index[:, :1], label=batch.label[:, :1])


def test_packed_probabilities(golden: Golden) -> None:
    """The cross entropy of single labels is what the golden logits of that position say."""
    batch, logits = packed(golden), golden.eval["packed_logits"][0].astype(np.float64)
    log_sum = np.log(np.exp(logits).sum(-1))
    random = np.random.default_rng(3)
    places, labels = random.permutation(48)[:12], random.integers(0, VOCAB, 12)
    found = [
        float(
            golden.backend.eval_step(
                replace(batch, label_index=np.array([[p]], np.int32), label=np.array([[v]], np.int32))
            )
        )
        for p, v in zip(places, labels, strict=True)
    ]
    np.testing.assert_allclose(found, log_sum[places] - logits[places, labels], **golden.tolerance["logits"])


def test_greedy_ids(golden: Golden) -> None:
    for ids in golden.eval["greedy_16_from_20"].tolist():
        assert list(golden.backend.generate(ids[:20], 16, ())) == ids[20:]


def test_loss_and_every_gradient(golden: Golden) -> None:
    pairs = zip(golden.inputs["batch_ids"], golden.inputs["batch_labels"], strict=True)
    batch = make_batch([[Document(ids, labels != -100)] for ids, labels in pairs], 40)
    before = float(golden.backend.eval_step(batch))
    handles = golden.backend.train_step([batch], batch.trained_tokens, 1e-3, 1.0)
    mean = float(handles.loss_sum) / batch.trained_tokens
    assert mean == pytest.approx(float(golden.train["loss"][0]), abs=golden.tolerance["loss"]["atol"])
    assert before == pytest.approx(float(handles.loss_sum), rel=1e-6)
    expected = {k.removeprefix("grad."): v for k, v in golden.train.items() if k.startswith("grad.")}
    found = {s.name: s.array for s in golden.backend.named_shards() if s.kind == "exp_avg"}
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        np.testing.assert_allclose(found[name], gradient, **golden.tolerance["grads"], err_msg=name)
    norm = np.sqrt(sum((g.astype(np.float64) ** 2).sum() for g in expected.values()))
    assert float(handles.grad_norm) == pytest.approx(norm, rel=1e-5)
