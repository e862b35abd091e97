"""The PyTorch back end against what transformers computed (index.json beside the fixtures says how)."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from tests.batches import Document, make_batch
from tests.torch_lab import gradients, logits, make_backend, make_recipe

from tengtune.models.spec import from_folder

HERE = Path(__file__).parent
CASES = [f"{family}/{variant}" for family in ("qwen2", "qwen3") for variant in ("tied", "untied")]


class Golden:
    """One checkpoint, opened by the back end, with its inputs and the expected outputs."""

    def __init__(self, folder: Path) -> None:
        self.tolerance = json.loads((folder.parent / "index.json").read_text())["tolerance"]
        self.inputs, self.eval, self.train, weights = (
            load_file(folder / f"{name}.safetensors") for name in ("inputs", "eval", "train", "model")
        )
        self.backend = make_backend(from_folder(folder), weights, make_recipe("full"))


@pytest.fixture(scope="module", params=CASES)
def golden(request: pytest.FixtureRequest) -> Golden:
    return Golden(HERE / request.param)


def untrained(ids: np.ndarray) -> Document:
    return Document(ids, np.arange(ids.size) == ids.size - 1)


def labelled(ids: np.ndarray, labels: np.ndarray) -> Document:
    """Labels are unshifted; a document's first token has no predecessor and is none."""
    document = Document(ids, labels != -100)
    assert np.array_equal(ids[document.train], labels[document.train])
    return document


def test_logits(golden: Golden) -> None:
    batch = make_batch([[untrained(row)] for row in golden.inputs["ids_2x48"]], 48)
    expected = golden.eval["logits_2x48"].reshape(96, -1)
    np.testing.assert_allclose(logits(golden.backend, batch), expected, **golden.tolerance["logits"])


def test_packed_logits(golden: Golden) -> None:
    """Three documents in one row, with padding behind: each as if it stood alone."""
    ids, positions = golden.inputs["packed_ids"][0], golden.inputs["packed_position_ids"][0]
    starts = [*np.flatnonzero(positions == 0), ids.size]
    documents = [untrained(ids[a:b]) for a, b in pairwise(starts)]
    found = logits(golden.backend, make_batch([documents], 60))
    np.testing.assert_allclose(found, golden.eval["packed_logits"][0], **golden.tolerance["logits"])


def test_loss_and_every_gradient(golden: Golden) -> None:
    pairs = zip(golden.inputs["batch_ids"], golden.inputs["batch_labels"], strict=True)
    batch = make_batch([[labelled(ids, labels)] for ids, labels in pairs], 40)
    loss_sum, found = gradients(golden.backend, batch, scale=1 / batch.trained_tokens)
    assert loss_sum / batch.trained_tokens == pytest.approx(
        float(golden.train["loss"][0]), abs=golden.tolerance["loss"]["atol"]
    )
    expected = {k.removeprefix("grad."): v for k, v in golden.train.items() if k.startswith("grad.")}
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        np.testing.assert_allclose(found[name], gradient, **golden.tolerance["grads"], err_msg=name)


def test_greedy_ids(golden: Golden) -> None:
    for ids in golden.eval["greedy_16_from_20"].tolist():
        assert list(golden.backend.generate(ids[:20], 16, ())) == ids[20:]
