"""Answers: the cache changes nothing, stops are obeyed, seeds decide."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.answering import answers
from tests.batches import Document, make_batch, random_documents
from tests.shared import shared_path
from tests.tiny import VOCAB, tiny_config, tiny_weights
from tests.torch_lab import logits, make_backend, make_recipe, randomize_adapters

from tengtune.backends.base import Asked, Sampling
from tengtune.backends.torch.device import Placement
from tengtune.backends.torch.generate import ROWS
from tengtune.backends.torch.kernels import PLAIN
from tengtune.backends.torch.model import Maker, Qwen
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


LENGTHS = (70, 3, 1, 64, 20, 65, 9, 130, 2, 40, 7, 33)  # more than there are rows


def prompts() -> list[list[int]]:
    random = np.random.default_rng(7)
    return [random.integers(0, VOCAB, length).tolist() for length in LENGTHS]


def test_several_at_a_time_answer_as_each_alone(backend: TorchBackend) -> None:
    """Each stops at its own end, at different times, and others take the place."""
    alone = [list(backend.generate(prompt, 24, ())) for prompt in prompts()]
    stops = {alone[0][5], alone[3][11], alone[7][0]}
    expected = [list(backend.generate(prompt, 24, stops)) for prompt in prompts()]
    assert len({len(answer) for answer in expected}) > 2
    assert answers(backend.generate_many, prompts(), 24, stops) == expected
    assert answers(backend.generate_many, prompts(), 24) == alone
    assert answers(backend.generate_many, prompts(), 0) == [[] for _ in LENGTHS]
    assert answers(backend.generate_many, [], 24) == []


def test_draws_do_not_depend_on_the_others(backend: TorchBackend) -> None:
    found: dict[int, list[int]] = {number: [] for number in range(len(LENGTHS))}

    def asked(number: int, prompt: list[int]) -> Asked:
        def take(token: int) -> bool:
            found[number].append(token)
            return len(found[number]) < 4 + number

        return Asked(prompt, 20, take, Sampling(temperature=2.0, top_p=0.9, seed=number))

    list(backend.generate_many([asked(*each) for each in enumerate(prompts())], ()))
    for number, prompt in enumerate(prompts()):
        sampling = Sampling(temperature=2.0, top_p=0.9, seed=number)
        assert found[number] == list(backend.generate(prompt, 20, (), sampling))[: 4 + number]


def test_a_prompt_is_taken_when_there_is_room(backend: TorchBackend) -> None:
    taken = []

    def asked() -> Iterator[Asked]:
        for number, prompt in enumerate(prompts()):
            taken.append(number)
            yield Asked(prompt, 1 + (number > 0), lambda token: True)

    ends = backend.generate_many(asked(), ())
    assert next(ends) == 0
    assert taken == [0]
    assert next(ends) == 1
    assert len(taken) == ROWS + 1


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


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 32},
        {"intermediate_size": 100, "tie_word_embeddings": True},
    ],
    ids=["qwen2 with biases", "qwen3", "narrow, tied"],
)
def test_a_model_that_only_answers_computes_the_same_with_its_linears_joined(config: dict[str, Any]) -> None:
    spec = from_config(tiny_config(**config))
    weights, recipe = tiny_weights(spec, seed=5), make_recipe()
    batch = make_batch([random_documents([30, 11, 7], VOCAB, 1)], 48)
    placement = Placement(torch.device("cpu"), torch.float32)
    answering = TorchBackend(spec, Qwen(spec, Maker(weights, placement, "frozen")), placement, PLAIN, recipe)
    attention = answering.model.model.layers[0].self_attn
    assert attention.joined is not None
    assert attention.q_proj.weight.data_ptr() == attention.joined.weight.data_ptr()  # no second copy
    with torch.no_grad():
        found, wanted = logits(answering, batch), logits(make_backend(spec, weights, recipe), batch)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
