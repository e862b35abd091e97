"""Answers of the MindSpore back end are the PyTorch back end's, and what it compiles on the way.

The PyTorch back end is measured against transformers and plain passes without a cache in its own tests.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from tests.answering import answers
from tests.examples import script
from tests.mindspore_lab import as_shards, build, compiled_graphs
from tests.qwen1 import qwen1_config
from tests.tiny import VOCAB, tiny_config, tiny_weights
from tests.torch_lab import make_backend, make_recipe, randomize_adapters, shards

from tengtune.backends.base import Asked, Backend, Sampling
from tengtune.backends.mindspore.generate import CAPACITY, LONG, ROWS, SHORT
from tengtune.models.spec import ModelSpec, from_config, from_folder
from tengtune.text import chatml
from tengtune.text.conversation import Message
from tengtune.text.tokenizer import open_tokenizer
from tengtune.weights.source import open_source

NEW = 40
LENGTHS = (31, 3, 1, 32, 33, 64, 65, 100, 9)
"""Around the edges of chunks; more than there are rows."""
MHA = {"num_key_value_heads": 4}
QWEN3 = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 32}
FAMILIES: dict[str, dict[str, Any]] = {
    "Qwen1": qwen1_config(tiny_config(**MHA)),
    "Qwen1.5": tiny_config(**MHA),
    "Qwen3, tied": tiny_config(**QWEN3, tie_word_embeddings=True),
}


GREEDY = Sampling()


def prompts(*lengths: int) -> list[list[int]]:
    random = np.random.default_rng(7)
    return [random.integers(0, VOCAB, length).tolist() for length in lengths]


def frozen(spec: ModelSpec, weights: Mapping[str, np.ndarray]) -> Backend:
    return build(spec, weights, make_recipe("full"), trainable=False)


def alone(backend: Backend, asked: list[list[int]], sampling: Sampling = GREEDY) -> list[list[int]]:
    return [list(backend.generate(prompt, NEW, (), sampling)) for prompt in asked]


@dataclass
class Pair:
    """Both back ends with one Qwen2 and one adapter, not merged; how many graphs an answer compiled."""

    torch: Backend
    mindspore: Backend
    compiled: int


def spec_of(layers: int) -> ModelSpec:
    """A shape that no other test has: models of one shape share what is compiled."""
    return from_config(tiny_config(num_hidden_layers=layers, intermediate_size=88))


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    spec = spec_of(2)
    weights, recipe = tiny_weights(spec, seed=3), make_recipe(lora={"rank": 4, "alpha": 12})
    torch = make_backend(spec, weights, recipe)
    randomize_adapters(torch)
    mindspore = build(spec, weights, recipe)
    mindspore.load_shards(as_shards(shards(torch)), 0)
    before = compiled_graphs()
    list(mindspore.generate(*prompts(5), 3, ()))
    return Pair(torch, mindspore, compiled_graphs() - before)


def test_greedy_answers_are_torchs(pair: Pair) -> None:
    expected = alone(pair.torch, prompts(*LENGTHS))
    assert len({tuple(answer[:5]) for answer in expected}) == len(LENGTHS) > ROWS
    assert alone(pair.mindspore, prompts(*LENGTHS)) == expected
    assert answers(pair.mindspore.generate_many, prompts(*LENGTHS), NEW) == expected
    plain = make_backend(pair.torch.spec, tiny_weights(pair.torch.spec, seed=3), make_recipe("full"))
    assert alone(plain, prompts(*LENGTHS)) != expected, "the adapter counts"


def test_long_prompts_and_a_cache_that_grows(pair: Pair) -> None:
    """A chunk of the longer kind, not full; one with several of the shorter after it; answers that begin
    within the cache and end beyond it, with another beside them."""
    asked = prompts(LONG // 2 + 1, LONG + 2 * SHORT + 1, CAPACITY - 4, CAPACITY)
    expected = [list(pair.torch.generate(prompt, 9, ())) for prompt in asked]
    assert [list(pair.mindspore.generate(prompt, 9, ())) for prompt in asked] == expected
    assert answers(pair.mindspore.generate_many, [asked[0], asked[2]], 9) == [expected[0], expected[2]]


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(repetition_penalty=1.3),
        Sampling(temperature=1.5, top_p=0.9, top_k=50, seed=5, repetition_penalty=1.1),
    ],
    ids=["greedy with a penalty", "drawn"],
)
def test_one_way_of_choosing(pair: Pair, sampling: Sampling) -> None:
    asked = prompts(9, 33)
    found = alone(pair.mindspore, asked, sampling)
    assert found == alone(pair.mindspore, asked, sampling)
    assert found == alone(pair.torch, asked, sampling)
    assert found != alone(pair.torch, asked)


def test_draws_do_not_depend_on_the_others(pair: Pair) -> None:
    found: dict[int, list[int]] = {number: [] for number in range(len(LENGTHS))}

    def asked(number: int, prompt: list[int]) -> Asked:
        def take(token: int) -> bool:
            found[number].append(token)
            return len(found[number]) < 4 + number

        return Asked(prompt, 20, take, Sampling(temperature=2.0, seed=number))

    many = pair.mindspore.generate_many(map(asked, range(len(LENGTHS)), prompts(*LENGTHS)), ())
    assert sorted(many) == list(range(len(LENGTHS)))
    for number, prompt in enumerate(prompts(*LENGTHS)):
        sampling = Sampling(temperature=2.0, seed=number)
        assert found[number] == list(pair.torch.generate(prompt, 4 + number, (), sampling))


def test_stop_ids_end_it_and_are_not_given(pair: Pair) -> None:
    asked = prompts(31, 3)
    whole = alone(pair.torch, asked)
    stops = {whole[0][5], whole[1][20]}
    expected = [list(pair.torch.generate(prompt, NEW, stops)) for prompt in asked]
    assert [len(answer) < NEW for answer in expected] == [True, True]
    assert [list(pair.mindspore.generate(prompt, NEW, stops)) for prompt in asked] == expected
    assert answers(pair.mindspore.generate_many, asked, NEW, stops) == expected
    assert list(pair.mindspore.generate(asked[0], 0, ())) == []
    assert answers(pair.mindspore.generate_many, asked, 0) == [[], []]


def test_two_answers_under_way_at_a_time(pair: Pair) -> None:
    first, second = prompts(31, 3)
    one, other = pair.mindspore.generate(first, 50, ()), pair.mindspore.generate(second, 50, ())
    mixed = [(next(one), next(other)) for _ in range(4)]
    assert [a for a, _ in mixed] == list(pair.torch.generate(first, 4, ()))
    assert [b for _, b in mixed] == list(pair.torch.generate(second, 4, ()))


def test_graphs_grow_neither_with_depth_nor_with_prompts(pair: Pair) -> None:
    """Three for a chunk of the prompt and three for a token: embedding, block, head."""
    assert pair.compiled == 6
    before = compiled_graphs()
    for prompt in prompts(2, SHORT, SHORT - 1):
        list(pair.mindspore.generate(prompt, 4, ()))
    assert compiled_graphs() == before
    for seed in (0, 1):
        deep = frozen(spec_of(8), tiny_weights(spec_of(8), seed))
        list(deep.generate(*prompts(5), 3, ()))
    assert compiled_graphs() - before == 6, "and none for another model of the same shape"


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family(family: str) -> None:
    spec = from_config(FAMILIES[family])
    weights = tiny_weights(spec, seed=5)
    mindspore, torch = frozen(spec, weights), make_backend(spec, weights, make_recipe("full"))
    assert alone(mindspore, prompts(*LENGTHS[:2])) == alone(torch, prompts(*LENGTHS[:2]))


def test_a_trained_adapter_answers_as_it_is_now(pair: Pair) -> None:
    """Other values of the adapter are another model, without a new back end."""
    state = shards(pair.torch)
    zero = {key: array * 0 if "lora_B" in key[0] else array for key, array in state.items()}
    (prompt,) = prompts(31)
    with_adapter = list(pair.mindspore.generate(prompt, NEW, ()))
    pair.mindspore.load_shards(as_shards(zero), 0)
    plain = make_backend(pair.torch.spec, tiny_weights(pair.torch.spec, seed=3), make_recipe("full"))
    assert list(pair.mindspore.generate(prompt, NEW, ())) == list(plain.generate(prompt, NEW, ()))
    pair.mindspore.load_shards(as_shards(state), 0)
    assert list(pair.mindspore.generate(prompt, NEW, ())) == with_adapter


@pytest.mark.slow
def test_a_real_model() -> None:
    folder = script("smollm2").FOLDER
    assert (folder / "model.safetensors").exists(), "run `make fetch` (python examples/smollm2.py)"
    spec, tokenizer = from_folder(folder), open_tokenizer(folder)
    questions = ("What is the capital of France?", "Name three colours.", "2 + 2 =")
    asked = [chatml.prompt([Message("user", question)], tokenizer) for question in questions]
    source = open_source(folder, spec)
    expected = answers(make_backend(spec, source, make_recipe("full")).generate_many, asked, 12)
    assert "Paris" in tokenizer.decode(expected[0])
    assert answers(frozen(spec, source).generate_many, asked, 12) == expected
