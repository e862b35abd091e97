"""The weight layouts against ones made by hand (tests/mindformers_lab.py), for all 29 models scaled down."""

from __future__ import annotations

import csv
import io
from functools import cache
from importlib import resources
from itertools import product
from math import gcd
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.mindformers_lab import MCORE, in_layout, qwen1_in_mindformers
from tests.qwen1 import qwen1_config, qwen1_weights

from tengtune.models import layouts
from tengtune.models.spec import from_config
from tengtune.weights.stacks import Picked, put_together, stored_shapes, take_apart
from tengtune.weights.stream import stream

Weights = dict[str, np.ndarray]
WQ = "transformer.layers.3.attention.wq"


@cache
def rows() -> dict[str, dict[str, str]]:
    text = resources.files("tengtune.facts").joinpath("models.csv").read_text(encoding="utf-8")
    return {row["name"]: row for row in csv.DictReader(io.StringIO(text))}


def small_config(row: dict[str, str]) -> dict[str, Any]:
    """The model's config.json with its ratios of heads and widths kept, and all else small."""
    heads, kv_heads, size = int(row["heads"]), int(row["kv_heads"]), int(row["head_dim"])
    common = gcd(heads, kv_heads)
    heads, kv_heads = (2 * n // common for n in (heads, kv_heads))
    width = heads * 4 * int(row["hidden"]) // (int(row["heads"]) * size)
    family = row["family"]
    return {
        "architectures": ["Qwen3ForCausalLM" if family == "qwen3" else "Qwen2ForCausalLM"],
        "hidden_size": width,
        "head_dim": 4,
        "num_hidden_layers": 2,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": 6,
        "vocab_size": 10,
        "rms_norm_eps": 1e-6,
        "rope_theta": float(row["rope_theta"]),
        "max_position_embeddings": 64,
        "tie_word_embeddings": row["tie"] == "1",
    }


def random_weights(config: dict[str, Any], seed: int) -> Weights:
    """Every tensor by Hugging Face's Qwen2 or 3 names, of random bits."""
    random = np.random.default_rng(seed)
    kind = np.dtype(ml_dtypes.bfloat16)
    return {
        name: random.integers(0, 2**16, shape, np.uint16).view(kind)
        for name, shape in from_config(config).tensors()
    }


def every_layout(name: str) -> tuple[Any, dict[str, Weights]]:
    """The model's spec, and its weights in each of its layouts, `hf` and what is canonical among them."""
    row = rows()[name]
    config = small_config(row)
    weights = random_weights(config, len(name))
    if row["family"] == "qwen1":
        del config["head_dim"]
        hf = qwen1_weights(config, weights)
        return from_config(qwen1_config(config)), {
            "canonical": weights,
            "hf": hf,
            "mindformers": qwen1_in_mindformers(hf),
        }
    kinds = list(MCORE) if row["family"] == "qwen3" else ["mindformers", "qkv-concat", *MCORE]
    made = {kind: in_layout(weights, kind, config) for kind in kinds}
    return from_config(config), {"canonical": weights, "hf": weights, **made}


def same(found: Any, expected: np.ndarray) -> bool:
    values = found[:]
    return (values.shape, values.dtype) == (
        expected.shape,
        expected.dtype,
    ) and values.tobytes() == expected.tobytes()


@pytest.mark.parametrize("name", rows())
def test_every_pair_of_layouts_of_every_model(name: str) -> None:
    spec, made = every_layout(name)
    canonical = made.pop("canonical")
    assert set(made) == {"hf", *layouts.available(spec.family)}
    for layout, weights in made.items():
        assert stored_shapes(spec, layout) == {n: a.shape for n, a in weights.items()}, layout
        found = layouts.detect(weights)
        assert found == (spec.family, "mcore" if layout in MCORE else layout)
    for one, other in product(made, made):
        parts = take_apart(spec, made[one], one)
        assert list(parts) == [n for n, _ in spec.tensors()]
        assert all(same(part, canonical[n]) for n, part in parts.items()), one
        streams = put_together(spec, [stream(n, part) for n, part in parts.items()], other)
        assert {s.name for s in streams} == made[other].keys()
        for tensor in streams:
            values = np.concatenate([piece.reshape(-1) for piece in tensor.pieces()]).reshape(tensor.shape)
            assert same(values, made[other][tensor.name]), (one, other, tensor.name)


def test_the_29_models_are_all_there() -> None:
    assert len(rows()) == 29
    assert {row["family"] for row in rows().values()} == {"qwen1", "qwen1.5", "qwen2", "qwen2.5", "qwen3"}


@pytest.mark.parametrize(
    ("family", "layout", "canonical", "stored"),
    [
        ("qwen1", "mindformers", "mlp.up_proj.weight", "transformer.layers.3.feed_forward.w1.weight"),
        ("qwen1", "mindformers", "mlp.gate_proj.weight", "transformer.layers.3.feed_forward.w3.weight"),
        ("qwen1", "mindformers", "mlp.down_proj.weight", "transformer.layers.3.feed_forward.w2.weight"),
        ("qwen1", "mindformers", "self_attn.k_proj.bias", "transformer.layers.3.attention.wk.bias"),
        ("qwen2", "mindformers", "mlp.gate_proj.weight", "model.layers.3.feed_forward.w1.weight"),
        ("qwen2", "mindformers", "mlp.up_proj.weight", "model.layers.3.feed_forward.w3.weight"),
        ("qwen3", "mcore", "self_attn.q_norm.weight", "decoder.layers.3.self_attention.q_layernorm.weight"),
        ("qwen1", "mindformers", "self_attn.q_proj.lora_A.weight", f"{WQ}.mindpet_delta_lora_a"),
        ("qwen1", "mindformers", "self_attn.q_proj.lora_B.weight", f"{WQ}.mindpet_delta_lora_b"),
    ],
)
def test_names_there_and_back(family: Any, layout: str, canonical: str, stored: str) -> None:
    name = f"model.layers.3.{canonical}"
    assert layouts.stored_name(name, family, layout) == stored
    assert layouts.canonical_name(stored, family, layout) == name


@pytest.mark.parametrize(
    ("stored", "linear"),
    [
        ("transformer.layers.0.attention.wq.tk_delta_lora_a", "transformer.layers.0.attention.wq"),
        ("model.layers.0.attention.wv.lora_b", "model.layers.0.attention.wv"),
        ("transformer.h.0.attention.wk.lora_B.weight", "transformer.h.0.attention.wk"),
        ("base_model.model.lm_head.lora_A.weight", "base_model.model.lm_head"),
        ("transformer.layers.0.attention.wq.weight", None),
        ("model.flora_a", None),
    ],
)
def test_an_adapters_tensors_are_known_by_their_ends(stored: str, linear: str | None) -> None:
    assert layouts.lora_linear(stored) == linear


@pytest.mark.parametrize(
    "stored",
    [
        "model.layers.x.attention.wq.weight",
        "model.layers.0.attention.w_qkv.weight",
        "model.layers.0.attention.wz.weight",
        "model.layers.",
        "",
        "optimizer",
        "lm_head.lora_c",
    ],
)
def test_other_names_have_no_canonical_one(stored: str) -> None:
    assert layouts.canonical_name(stored, "qwen2", "mindformers") is None


@pytest.mark.parametrize(
    ("found", "kind"),
    [
        (
            ["transformer.h.0.attention.wq.weight", "transformer.h.0.attn.c_attn.bias"],
            ("qwen1", "half-reversed"),
        ),
        (["lm_head.weight", "bert.encoder"], None),
        ([], None),
    ],
)
def test_what_names_tell(found: list[str], kind: Any) -> None:
    assert layouts.detect(found) == kind


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_any_rows_of_a_part_are_those_of_the_whole_part(data: st.DataObject) -> None:
    groups, shares = (
        data.draw(st.integers(1, 5)),
        data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)),
    )
    width = data.draw(st.integers(1, 3))
    whole = np.arange(groups * sum(shares) * width).reshape(-1, width)
    number = data.draw(st.integers(0, len(shares) - 1))
    first = sum(shares[:number])
    part = Picked(whole, groups, first, shares[number])
    expected = np.concatenate([block[first : first + shares[number]] for block in np.split(whole, groups)])
    start, stop = data.draw(st.integers(0, len(part) + 2)), data.draw(st.integers(0, len(part) + 2))
    assert np.array_equal(part[start:stop], expected[start:stop])
    assert (part.shape, part.size, part.nbytes) == (expected.shape, expected.size, expected.nbytes)


def test_a_mistake_in_the_table_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check above fails for each table with two of its entries exchanged."""
    spec, made = every_layout("Qwen2.5-7B")
    table = layouts._TABLES["qwen2"]["mindformers"]
    swapped = {**table.modules, "mlp.gate_proj": "feed_forward.w3", "mlp.up_proj": "feed_forward.w1"}
    monkeypatch.setitem(
        layouts._TABLES["qwen2"], "mindformers", layouts.Table(table.top, table.block, swapped, table.woven)
    )
    parts = take_apart(spec, made["mindformers"], "mindformers")
    assert not all(same(part, made["canonical"][n]) for n, part in parts.items())
