"""ModelSpec: Qwen1's configs in both spellings, exact counts, what is refused, how texts are stretched."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tiny import tiny_config

from tengtune.models.spec import ModelSpec, Stretch, from_config, from_folder
from tengtune.ui.problems import Problem

LATER = {
    "architectures": ["QWenLMHeadModel"],
    "model_type": "qwen",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "kv_channels": 128,
    "intermediate_size": 22016,
    "vocab_size": 151936,
    "layer_norm_epsilon": 1e-6,
    "rotary_emb_base": 10000,
    "rotary_pct": 1.0,
    "max_position_embeddings": 32768,
    "seq_length": 8192,
    "no_bias": True,
    "scale_attn_weights": True,
    "tie_word_embeddings": False,
    "use_dynamic_ntk": True,
    "use_logn_attn": True,
}
"""Qwen-7B's config.json, as later revisions have it."""

RENAMED = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "intermediate_size": "ffn_hidden_size",
    "max_position_embeddings": "n_positions",
}


def first_release(config: dict[str, Any]) -> dict[str, Any]:
    """The same model in the first release's names, which has two vocabulary sizes."""
    renamed = {RENAMED.get(key, key): value for key, value in config.items()}
    return {**renamed, "padded_vocab_size": config["vocab_size"]}


def problem(config: dict[str, Any]) -> Problem:
    with pytest.raises(Problem) as caught:
        from_config(config)
    assert caught.value.exit_code == 2
    assert caught.value.texts()["what"]
    return caught.value


SIZES = {
    # hidden, layers, heads, intermediate_size, vocabulary -> parameters (reference-pipeline.md, 1.2)
    "1.8B": ((2048, 24, 16, 11008, 151936), 1_836_828_672),
    "7B": ((4096, 32, 32, 22016, 151936), 7_721_324_544),
    "14B": ((5120, 40, 40, 27392, 152064), 14_167_290_880),
    "72B": ((8192, 80, 64, 49152, 152064), 72_287_920_128),
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("rename", [dict, first_release])
def test_the_published_sizes(size: str, rename: Any) -> None:
    shape, parameters = SIZES[size]
    keys = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")
    spec = from_config(rename({**LATER, **dict(zip(keys, shape, strict=True))}))
    assert spec.parameters() == parameters
    assert (spec.kv_heads, spec.head_dim, spec.ffn) == (shape[2], 128, shape[3] // 2)
    assert (spec.family, spec.max_positions, spec.qkv_bias, spec.tie) == ("qwen1", 8192, True, False)


def test_theta_and_eps_are_the_configs_own() -> None:
    spec = from_config({**LATER, "rotary_emb_base": 1000000, "layer_norm_epsilon": 1e-5})
    assert (spec.rope_theta, spec.rms_eps) == (1e6, 1e-5)


@pytest.mark.parametrize(("ntk", "logn"), [(True, True), (True, False), (False, True)])
def test_the_flags(ntk: bool, logn: bool) -> None:
    spec = from_config({**LATER, "use_dynamic_ntk": ntk, "use_logn_attn": logn})
    assert spec.stretch == Stretch(8192, ntk, logn)


def test_flags_that_are_missing_are_as_in_the_code_that_belongs_to_the_config() -> None:
    bare = {key: value for key, value in LATER.items() if key not in ("use_dynamic_ntk", "use_logn_attn")}
    assert from_config(bare).stretch == Stretch(8192, True, True)
    assert from_config(first_release(bare)).stretch is None
    assert from_config({**LATER, "use_dynamic_ntk": False, "use_logn_attn": False}).stretch is None


def test_model_type_decides_where_no_architecture_is_named() -> None:
    assert from_config({**LATER, "architectures": None}).family == "qwen1"
    assert from_config(tiny_config(architectures=[])).family == "qwen2"


@pytest.mark.parametrize(
    ("changes", "code", "key"),
    [
        ({"intermediate_size": 22017}, "model.bad_key", "intermediate_size"),
        ({"kv_channels": 64}, "model.bad_key", "kv_channels"),
        ({"num_attention_heads": 31, "kv_channels": None}, "model.bad_key", "num_attention_heads"),
        ({"padded_vocab_size": 152000}, "model.bad_key", "padded_vocab_size"),
        ({"seq_length": None}, "model.missing_key", "seq_length"),
        ({"hidden_size": None}, "model.missing_key", "hidden_size"),
        ({"vocab_size": "151936"}, "model.bad_key", "vocab_size"),
        ({"no_bias": False}, "model.not_built", "no_bias"),
        ({"rotary_pct": 0.5}, "model.not_built", "rotary_pct"),
        ({"scale_attn_weights": False}, "model.not_built", "scale_attn_weights"),
        (
            {"apply_residual_connection_post_layernorm": True},
            "model.not_built",
            "apply_residual_connection_post_layernorm",
        ),
    ],
)
def test_what_would_be_another_model_is_refused(changes: dict[str, Any], code: str, key: str) -> None:
    fault = problem({**LATER, **changes})
    assert (fault.code, fault.values["key"]) == (code, key)


QWEN3 = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}


@pytest.mark.parametrize(
    ("changes", "code", "key"),
    [
        ({"hidden_act": "gelu"}, "model.not_built", "hidden_act"),
        ({"hidden_act": "relu", **QWEN3}, "model.not_built", "hidden_act"),
        ({"partial_rotary_factor": 0.5}, "model.not_built", "partial_rotary_factor"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "model.not_built", "partial_rotary_factor"),
        ({"use_sliding_window": True}, "model.sliding_window", None),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "model.sliding_window", None),
        ({"layer_types": 2}, "model.bad_key", "layer_types"),
        ({"use_sliding_window": "false"}, "model.bad_key", "use_sliding_window"),
        ({"tie_word_embeddings": "false"}, "model.bad_key", "tie_word_embeddings"),
        ({"attention_bias": 0, **QWEN3}, "model.bad_key", "attention_bias"),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, "model.rope_scaling", None),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "model.rope_scaling", None),
        ({"rope_parameters": {"rope_type": "llama3"}}, "model.rope_scaling", None),
        ({"rope_scaling": 4.0}, "model.bad_key", "rope_scaling"),
        ({"torch_dtype": "int8"}, "model.dtype", "torch_dtype"),
        ({"dtype": "float8_e4m3fn", "torch_dtype": None}, "model.dtype", "dtype"),
        ({"torch_dtype": 16}, "model.dtype", "torch_dtype"),
        ({"torch_dtype": "half"}, "model.dtype", "torch_dtype"),
        ({"model_type": "llama"}, "model.other_type", None),
        ({"model_type": "qwen3"}, "model.other_type", None),
        ({"model_type": ["qwen2"]}, "model.other_type", None),
        ({"rms_norm_eps": math.nan}, "model.bad_key", "rms_norm_eps"),
    ],
)
def test_oddities_of_later_configs_have_a_verdict(
    changes: dict[str, Any], code: str, key: str | None
) -> None:
    fault = problem(tiny_config(**changes))
    assert (fault.code, fault.values.get("key")) == (code, key)


@pytest.mark.parametrize(
    "changes",
    [
        {"hidden_act": "swish"},
        {"hidden_act": None},
        {"rope_scaling": None, "use_sliding_window": None, "tie_word_embeddings": None},
        {"rope_scaling": {"rope_type": "default"}},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0}},
        {"layer_types": ["full_attention", "full_attention"]},
        {"torch_dtype": "torch.bfloat16"},
        {"torch_dtype": None, "dtype": "float32"},
        {"model_type": None},
    ],
)
def test_other_ways_to_say_the_same(changes: dict[str, Any]) -> None:
    assert from_config(tiny_config(**changes)) == from_config(tiny_config())


def test_a_flag_of_qwen1_is_no_text() -> None:
    assert problem({**LATER, "use_logn_attn": "false"}).values["key"] == "use_logn_attn"


@pytest.mark.parametrize("config", [LATER, tiny_config()])
def test_a_quantized_model_is_named(config: dict[str, Any]) -> None:
    quantized = {**config, "quantization_config": {"bits": 4, "quant_method": "gptq"}}
    assert problem(quantized).code == "model.quantized"


def test_an_unknown_architecture_is_told_all_known_ones(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**LATER, "architectures": ["ChatGLMModel"]}))
    with pytest.raises(Problem) as caught:
        from_folder(tmp_path)
    assert caught.value.values["known"] == "QWenLMHeadModel, Qwen2ForCausalLM, Qwen3ForCausalLM"


@given(length=st.integers(1, 40_000), tokens=st.integers(1, 2_000_000))
def test_alpha_is_the_originals(length: int, tokens: int) -> None:
    """alpha = max(2^ceil(log2(tokens / length) + 1) - 1, 1), with the logarithm's ceiling found exactly."""
    ceiling = 0
    while Fraction(tokens, length) > Fraction(2) ** ceiling:
        ceiling += 1
    alpha = max(2 ** (ceiling + 1) - 1, 1)
    factor = Stretch(length, ntk=True, logn=False).base_factor(tokens, 128)
    assert factor == pytest.approx(alpha ** (128 / 126), rel=1e-12)


@given(length=st.integers(2, 40_000), position=st.integers(0, 2_000_000))
def test_logn_is_the_originals(length: int, position: int) -> None:
    """The original's table: log(i, length) if i > length else 1, for i = position + 1."""
    expected = math.log(position + 1, length) if position + 1 > length else 1.0
    assert Stretch(length, ntk=False, logn=True).query_factor(position) == pytest.approx(expected, rel=1e-12)


def test_what_is_switched_off_does_nothing() -> None:
    stretch = Stretch(64, ntk=False, logn=False)
    assert (stretch.base_factor(1000, 16), stretch.query_factor(999)) == (1.0, 1.0)


def test_other_families_have_no_stretch() -> None:
    spec = from_config(tiny_config())
    assert isinstance(spec, ModelSpec)
    assert spec.stretch is None
