"""Answers: the cache changes nothing, stops are obeyed, seeds decide."""

from __future__ import annotations

import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.batches import Document, make_batch
from tests.shared import shared_path
from tests.tiny import VOCAB, tiny_config, tiny_weights
from tests.torch_lab import logits, make_backend, make_recipe, randomize_adapters

from tengtune.backends.base import Sampling
from tengtune.backends.torch.step import TorchBackend
from tengtune.models.spec import from_config, from_folder
from tengtune.weights.source import open_source

SPEC = from_config(tiny_config())
PROMPT = np.random.default_rng(4).integers(0, VOCAB, 70).tolist()  # longer than one tile of attention


@pytest.fixture(scope="module")
def backend() -> TorchBackend:
    made = make_backend(SPEC, tiny_weights(SPEC, seed=3), make_recipe())
    randomize_adapters(made)
    return made


def without_cache(backend: TorchBackend, prompt: list[int], count: int) -> list[int]:
    """The whole text again for every token."""
    ids = list(prompt)
    for _ in range(count):
        text = Document(np.array(ids), np.arange(len(ids)) == len(ids) - 1)
        ids.append(int(logits(backend, make_batch([[text]], len(ids)))[-1].argmax()))
    return ids[len(prompt) :]


@pytest.mark.parametrize("prompt", [PROMPT, PROMPT[:1]], ids=["long", "one token"])
def test_the_cache_changes_nothing(backend: TorchBackend, prompt: list[int]) -> None:
    assert list(backend.generate(prompt, 12, ())) == without_cache(backend, prompt, 12)


def test_stop_ids_end_it_and_are_not_given(backend: TorchBackend) -> None:
    whole = list(backend.generate(PROMPT, 12, ()))
    stop = whole[5]
    assert list(backend.generate(PROMPT, 12, [VOCAB - 1, stop])) == whole[: whole.index(stop)]
    assert list(backend.generate(PROMPT, 0, ())) == []


def test_tokens_come_one_by_one(backend: TorchBackend) -> None:
    """A consumer may stop early, and two answers may be under way at the same time."""
    one, other = backend.generate(PROMPT, 50, ()), backend.generate(PROMPT[:3], 50, ())
    mixed = [(next(one), next(other)) for _ in range(4)]
    assert [a for a, _ in mixed] == list(backend.generate(PROMPT, 4, ()))
    assert [b for _, b in mixed] == list(backend.generate(PROMPT[:3], 4, ()))


def test_the_seed_decides_a_draw(backend: TorchBackend) -> None:
    def draw(seed: int) -> list[int]:
        return list(backend.generate(PROMPT, 20, (), Sampling(temperature=2.0, top_p=0.9, seed=seed)))

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)


def test_answering_leaves_training_alone(backend: TorchBackend) -> None:
    list(backend.generate(PROMPT, 2, ()))
    assert torch.is_grad_enabled()
    assert all(p.grad is None for p in backend.model.parameters())


def test_a_real_model_tells_its_story(tmp_path: Path) -> None:
    """stories260K, greedy from the begin token alone: the text that llama2.c's doc/stories260K.md prints."""
    with tarfile.open(shared_path("models/stories260K-qwen2.tar.xz")) as archive:
        archive.extractall(tmp_path, filter="data")
    folder = next(tmp_path.rglob("config.json")).parent
    from tokenizers import Tokenizer

    spec = from_folder(folder)
    backend = make_backend(spec, open_source(folder, spec))
    text = Tokenizer.from_file(str(folder / "tokenizer.json")).decode(list(backend.generate([1], 60, ())))
    assert text.startswith(
        "Once upon a time, there was a little girl named Lily. She loved to play outside in the park. "
        "One day, she saw a big, red ball."
    )
