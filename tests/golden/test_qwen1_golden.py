"""Qwen1 through our reader and the PyTorch back end, against what the model's original code computed.

index.json beside the fixtures says how they were made, and lists the original's behaviour by number.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from tests.answering import answers
from tests.batches import Document, make_batch
from tests.torch_lab import gradients, make_backend, make_recipe

from tengtune.backends.torch.generate import Cache, Texts
from tengtune.backends.torch.step import TorchBackend
from tengtune.models import names
from tengtune.models.spec import ModelSpec, Stretch, from_folder
from tengtune.weights.source import open_source

HERE = Path(__file__).parent / "qwen1"
TOLERANCE = json.loads((HERE / "index.json").read_text())["tolerance"]
SPELLINGS = ["config.json", "config_first_release.json"]
FLAGS = [(ntk, logn) for ntk in (False, True) for logn in (False, True)]


def golden(name: str) -> dict[str, np.ndarray]:
    return load_file(HERE / f"{name}.safetensors")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint as a model folder of its own."""
    return make_folder(tmp_path_factory.mktemp("qwen1"))


def make_folder(place: Path, spelling: str = "config.json", **changes: Any) -> Path:
    """The checkpoint with one of the two configs, some of its keys changed."""
    config = json.loads((HERE / spelling).read_text()) | changes
    (place / "config.json").write_text(json.dumps(config))
    shutil.copyfile(HERE / "model.safetensors", place / "model.safetensors")
    return place


def open_backend(folder: Path) -> TorchBackend:
    found = from_folder(folder)
    return make_backend(found, open_source(folder, found), make_recipe("full"))


def eval_logits(backend: TorchBackend, ids: np.ndarray) -> np.ndarray:
    """Logits [L,V] of one text in one evaluation pass."""
    model = backend.model
    cache = Cache(model, ids.size)
    positions = cache.extend(backend.spec, ids.size)
    bases = None if cache.long is None else cache.long.bases
    with torch.no_grad():
        hidden = model.model(
            torch.from_numpy(ids), positions, lambda layer: partial(cache.attend, layer), bases
        )
        return model.logits(hidden).numpy()


def cross_entropy(logits: np.ndarray, ids: np.ndarray) -> float:
    """Sum over all tokens but the first, from logits [L,V] in float64."""
    wide = logits.astype(np.float64)[:-1]
    log_sum = np.log(np.exp(wide - wide.max(1, keepdims=True)).sum(1)) + wide.max(1)
    return float((log_sum - wide[np.arange(ids.size - 1), ids[1:]]).sum())


def whole(ids: np.ndarray) -> Document:
    return Document(ids, np.arange(ids.size) > 0)


def close(found: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(found, expected, **TOLERANCE["logits"])


# The checks, each on a model folder: mutations further down must fail them


def check_short_texts(folder: Path) -> None:
    backend, inputs, expected = open_backend(folder), golden("inputs"), golden("eval_whole")
    close(eval_logits(backend, inputs["ids_1x37"][0]), expected["eval_1x37"][0])
    for ids, logits in zip(inputs["ids_2x64"], expected["eval_2x64"], strict=True):
        close(eval_logits(backend, ids), logits)


def check_long_texts(folder: Path) -> None:
    """One over seq_length (64), and more than twice as long; both NTK and log-n."""
    backend, inputs, expected = open_backend(folder), golden("inputs"), golden("eval_whole")
    close(eval_logits(backend, inputs["ids_1x100"][0, :65]), expected["eval_first65_of_1x100"][0])
    close(eval_logits(backend, inputs["ids_1x140"][0]), expected["eval_1x140"][0])


def check_gradients(folder: Path) -> None:
    backend, inputs, expected = open_backend(folder), golden("inputs"), golden("train_batch")
    rows = zip(inputs["batch_ids"], inputs["batch_labels"], strict=True)
    batch = make_batch([[Document(ids, labels != -100)] for ids, labels in rows], 48)
    loss_sum, found = gradients(backend, batch, scale=1 / batch.trained_tokens)
    loss, tolerance = float(expected["loss"][0]), TOLERANCE["loss"]["atol"]
    assert loss_sum / batch.trained_tokens == pytest.approx(loss, abs=tolerance)
    layout = names.stored_tensors(backend.spec)
    assert {f"grad.{name}" for name in layout} == {name for name in expected if name.startswith("grad.")}
    for name, parts in layout.items():
        gradient = np.concatenate([found[part] for part in parts])
        np.testing.assert_allclose(gradient, expected[f"grad.{name}"], **TOLERANCE["grads"], err_msg=name)


CHECKS = [check_short_texts, check_long_texts, check_gradients]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_the_original_code(tmp_path: Path, spelling: str, check: Callable[[Path], None]) -> None:
    check(make_folder(tmp_path, spelling))


def test_both_spellings_give_one_spec(tmp_path: Path) -> None:
    specs = [from_folder(make_folder(tmp_path, spelling)) for spelling in SPELLINGS]
    expected = ModelSpec(
        family="qwen1",
        hidden=64,
        layers=2,
        heads=4,
        kv_heads=4,
        head_dim=16,
        ffn=96,
        vocab=512,
        rope_theta=10000.0,
        rms_eps=1e-6,
        max_positions=64,
        tie=False,
        qkv_bias=True,
        qk_norm=False,
        stretch=Stretch(64, ntk=True, logn=True),
    )
    assert specs == [expected, expected]
    assert expected.parameters() == sum(array.size for array in golden("model").values())


@pytest.mark.parametrize(("ntk", "logn"), FLAGS)
def test_a_text_beyond_seq_length(tmp_path: Path, ntk: bool, logn: bool) -> None:
    """One pass over 100 tokens with each of the two switched off or on: logits, and the loss of eval_step."""
    backend = open_backend(make_folder(tmp_path, use_dynamic_ntk=ntk, use_logn_attn=logn))
    ids = golden("inputs")["ids_1x100"][0]
    expected = golden("eval_1x100")[f"eval_1x100_ntk{ntk:d}_logn{logn:d}"][0]
    close(eval_logits(backend, ids), expected)
    loss = float(backend.eval_step(make_batch([[whole(ids)]], 100)))
    assert loss == pytest.approx(cross_entropy(expected, ids), abs=1e-3)


@pytest.mark.parametrize(("ntk", "logn"), FLAGS)
@pytest.mark.parametrize("prefill", [48, 80])
def test_token_by_token(tmp_path: Path, prefill: int, ntk: bool, logn: bool) -> None:
    """Behaviour 4: the base is chosen at the prompt and kept. A prompt within seq_length (48 of 64) leaves
    it as it is, even when the answer goes on beyond; log-n counts every position."""
    backend = open_backend(make_folder(tmp_path, use_dynamic_ntk=ntk, use_logn_attn=logn))
    ids = golden("inputs")["ids_1x100"][0].tolist()
    kept = ntk and prefill > 64
    expected = golden("eval_1x100")[f"eval_1x100_ntk{kept:d}_logn{logn:d}"][0]
    texts = Texts(backend.model)
    texts.begin(0, 100)
    found = [texts.take({0: taken})[0] for taken in (ids[:prefill], *([token] for token in ids[prefill:]))]
    close(np.stack(found), expected[prefill - 1 :])


def test_generate_goes_the_same_way(folder: Path) -> None:
    """The greedy ids after a prompt of 80, from logits of whole passes over prompt and answer."""
    backend = open_backend(folder)
    ids = golden("inputs")["ids_1x100"][0, :80]
    answer = list(backend.generate(ids.tolist(), 6, ()))
    assert len(answer) == 6
    for done in range(6):
        text = np.concatenate([ids, answer[:done]]).astype(np.int64)
        assert int(eval_logits(backend, text)[-1].argmax()) == answer[done]


def test_a_packed_row_stretches_each_text_by_its_own_length(folder: Path) -> None:
    """Behaviour 5: 100 and 60 tokens side by side, the second within seq_length."""
    backend, inputs = open_backend(folder), golden("inputs")
    long, short = inputs["ids_1x100"][0], inputs["padded_right_ids"][1, :60]
    expected = cross_entropy(golden("eval_1x100")["eval_1x100_ntk1_logn1"][0], long)
    expected += cross_entropy(golden("eval_whole")["padded_right_row1_first60"], short)
    loss = float(backend.eval_step(make_batch([[whole(long), whole(short)]], 170)))
    assert loss == pytest.approx(expected, abs=1e-3)


def test_training_never_stretches(folder: Path) -> None:
    """Behaviour 1, also after an evaluation of 140 tokens (the first release kept its alpha, behaviour 7)."""
    backend, inputs = open_backend(folder), golden("inputs")
    ids = inputs["ids_1x100"][0]
    backend.eval_step(make_batch([[whole(inputs["ids_1x140"][0])]], 140))
    loss, _ = gradients(backend, make_batch([[whole(ids)]], 100))
    expected = cross_entropy(golden("eval_1x100")["eval_1x100_ntk0_logn0"][0], ids)
    assert loss == pytest.approx(expected, abs=1e-3)


# Mutations: each is a plausible mistake, and a named check must catch it


def swap(table: dict[str, str], one: str, other: str) -> dict[str, str]:
    return {**table, one: table[other], other: table[one]}


def mutate_names(patch: pytest.MonkeyPatch, one: str, other: str) -> None:
    patch.setattr(names, "QWEN1_BLOCK", swap(names.QWEN1_BLOCK, one, other))


def mutate_rows(patch: pytest.MonkeyPatch, *order: int) -> None:
    """c_attn's three parts in another order."""
    stored_tensors = names.stored_tensors

    def mutated(found: ModelSpec) -> dict[str, list[str]]:
        table = stored_tensors(found)
        return {
            name: [parts[i] for i in order] if len(parts) == 3 else parts for name, parts in table.items()
        }

    patch.setattr(names, "stored_tensors", mutated)


def mutate_config(**changes: Any) -> Callable[[pytest.MonkeyPatch, Path], None]:
    def mutate(_: pytest.MonkeyPatch, folder: Path) -> None:
        make_folder(folder, **changes)

    return mutate


def mutate_weights(folder: Path, change: Callable[[dict[str, np.ndarray]], None]) -> None:
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors")


def lose_bias(part: int) -> Callable[[dict[str, np.ndarray]], None]:
    def change(weights: dict[str, np.ndarray]) -> None:
        weights["transformer.h.1.attn.c_attn.bias"].reshape(3, 64)[part] = 0

    return change


def mutate_factor(patch: pytest.MonkeyPatch, factor: Callable[[Stretch, int, int], float]) -> None:
    patch.setattr(Stretch, "base_factor", factor)


def linear_alpha(stretch: Stretch, tokens: int, head_dim: int) -> float:
    """NTK as Llama has it: in proportion to the length."""
    return max(1.0, 2 * tokens / stretch.length - 1) ** (head_dim / (head_dim - 2))


def no_exponent(stretch: Stretch, tokens: int, head_dim: int) -> float:
    return float(2 ** (math.ceil(math.log2(max(tokens / stretch.length, 1))) + 1) - 1)


def one_too_late(stretch: Stretch, tokens: int, head_dim: int) -> float:
    return 3.0 ** (head_dim / (head_dim - 2)) if tokens > stretch.length + 1 else 1.0


def never(stretch: Stretch, tokens: int, head_dim: int) -> float:
    return 1.0


def from_zero(stretch: Stretch, position: int) -> float:
    """log-n with positions that count from 0."""
    return math.log(max(position, stretch.length)) / math.log(stretch.length)


MUTATIONS: dict[str, tuple[Callable[[pytest.MonkeyPatch, Path], None], Callable[[Path], None]]] = {
    "w1 and w2 swapped": (
        lambda patch, _: mutate_names(patch, "mlp.up_proj", "mlp.gate_proj"),
        check_short_texts,
    ),
    "q and k swapped": (lambda patch, _: mutate_rows(patch, 1, 0, 2), check_short_texts),
    "k and v swapped": (lambda patch, _: mutate_rows(patch, 0, 2, 1), check_short_texts),
    "bias of q lost": (lambda _, folder: mutate_weights(folder, lose_bias(0)), check_short_texts),
    "bias of k lost": (lambda _, folder: mutate_weights(folder, lose_bias(1)), check_gradients),
    "bias of v lost": (lambda _, folder: mutate_weights(folder, lose_bias(2)), check_short_texts),
    "norms swapped": (
        lambda patch, _: mutate_names(patch, "input_layernorm", "post_attention_layernorm"),
        check_short_texts,
    ),
    "no NTK": (lambda patch, _: mutate_factor(patch, never), check_long_texts),
    "linear NTK": (lambda patch, _: mutate_factor(patch, linear_alpha), check_long_texts),
    "NTK without its exponent": (lambda patch, _: mutate_factor(patch, no_exponent), check_long_texts),
    "NTK one token late": (lambda patch, _: mutate_factor(patch, one_too_late), check_long_texts),
    "no log-n": (
        lambda patch, _: patch.setattr(Stretch, "query_factor", lambda stretch, position: 1.0),
        check_long_texts,
    ),
    "log-n by positions from 0": (
        lambda patch, _: patch.setattr(Stretch, "query_factor", from_zero),
        check_long_texts,
    ),
    "seq_length one short": (mutate_config(seq_length=63), check_short_texts),
    "seq_length one long": (mutate_config(seq_length=65), check_long_texts),
    "another theta": (mutate_config(rotary_emb_base=20000), check_short_texts),
    "another eps": (mutate_config(layer_norm_epsilon=1e-4), check_gradients),
}


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_mistake_fails_a_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mutation: str) -> None:
    mutate, check = MUTATIONS[mutation]
    folder = make_folder(tmp_path)
    check(folder)
    mutate(monkeypatch, folder)
    with pytest.raises(AssertionError):
        check(folder)


def test_texts_beyond_seq_length_beside_short_ones(folder: Path) -> None:
    """Each keeps the base its own prompt chose, and its own factors."""
    backend = open_backend(folder)
    ids = golden("inputs")["ids_1x100"][0].tolist()
    prompts = [ids[:80], ids[:20], ids[:60], ids[10:90]]  # the third goes beyond 64 while it answers
    alone = [list(backend.generate(prompt, 12, ())) for prompt in prompts]
    assert answers(backend.generate_many, prompts, 12) == alone
