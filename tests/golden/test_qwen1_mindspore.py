"""Qwen1 on the MindSpore back end: loss and every gradient of the original code, and long answers."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from tests.answering import answers
from tests.batches import Document, make_batch
from tests.mindspore_lab import build
from tests.torch_lab import make_backend, make_recipe

from tengtune.models import names
from tengtune.models.spec import from_folder
from tengtune.weights.source import open_source

HERE = Path(__file__).parent / "qwen1"


def test_loss_and_every_gradient(tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        shutil.copyfile(HERE / name, tmp_path / name)
    inputs, expected = (load_file(HERE / f"{name}.safetensors") for name in ("inputs", "train_batch"))
    tolerance = json.loads((HERE / "index.json").read_text())["tolerance"]
    spec = from_folder(HERE)
    rows = zip(inputs["batch_ids"], inputs["batch_labels"], strict=True)
    batch = make_batch([[Document(ids, labels != -100)] for ids, labels in rows], 48)
    # Without momentum and clipping, exp_avg after a step is the step's gradient.
    backend = build(spec, open_source(tmp_path, spec), make_recipe("full", beta1=0.0, clip_norm=0.0))
    handles = backend.train_step([batch], batch.trained_tokens, 0.0, 1.0)
    loss = float(handles.loss_sum) / batch.trained_tokens
    assert loss == pytest.approx(float(expected["loss"][0]), abs=tolerance["loss"]["atol"])
    found = {s.name: s.array for s in backend.named_shards() if s.kind == "exp_avg"}
    for name, parts in names.stored_tensors(spec).items():
        gradient = np.concatenate([found[part] for part in parts])
        np.testing.assert_allclose(gradient, expected[f"grad.{name}"], **tolerance["grads"], err_msg=name)


@pytest.mark.parametrize("prompt", [48, 80])
def test_answers_beyond_seq_length_are_stretched(tmp_path: Path, prompt: int) -> None:
    """As on PyTorch, whose logits of such texts are measured against the original code."""
    for name in ("config.json", "model.safetensors"):
        shutil.copyfile(HERE / name, tmp_path / name)
    spec, recipe = from_folder(HERE), make_recipe("full")
    assert spec.stretch is not None
    assert spec.stretch.length == 64
    ids = load_file(HERE / "inputs.safetensors")["ids_1x100"][0, :prompt].tolist()
    source = open_source(tmp_path, spec)
    expected, plain = (
        list(make_backend(each, source, recipe).generate(ids, 40, ()))
        for each in (spec, replace(spec, stretch=None))
    )
    assert expected != plain
    answering = build(spec, source, recipe, trainable=False)
    assert list(answering.generate(ids, 40, ())) == expected
    assert answers(answering.generate_many, [ids, ids[:9]], 40)[0] == expected
