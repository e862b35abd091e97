"""Weight names of both layouts, and which linears an adapter is made for."""

from __future__ import annotations

import pytest
from tests.qwen1 import qwen1_config, qwen1_weights
from tests.tiny import tiny_config, tiny_weights

from tengtune.models import names
from tengtune.models.spec import from_config
from tengtune.models.targets import adapted_linears, find_targets, target_modules
from tengtune.ui.problems import Problem

SHAPE = tiny_config(num_key_value_heads=4)
QWEN1 = from_config(qwen1_config(SHAPE))
QWEN2 = from_config(SHAPE)
QWEN3 = from_config(tiny_config(architectures=["Qwen3ForCausalLM"], model_type="qwen3", head_dim=32))

QKV, O, GATE, UP, DOWN = (
    "self_attn.qkv_proj",
    "self_attn.o_proj",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
)


def test_qwen1s_tensors_are_those_of_its_layout() -> None:
    """Against a table written by hand (tests/qwen1.py): names and shapes."""
    expected = {n: a.shape for n, a in qwen1_weights(SHAPE, tiny_weights(QWEN2)).items()}
    found = names.stored_tensors(QWEN1)
    assert found.keys() == expected.keys()
    shapes = dict(QWEN1.tensors())
    for name, parts in found.items():
        rows = sum(shapes[part][0] for part in parts)
        assert (rows, *shapes[parts[0]][1:]) == expected[name]
    assert found["transformer.h.1.attn.c_attn.bias"] == [
        f"model.layers.1.self_attn.{part}_proj.bias" for part in "qkv"
    ]


@pytest.mark.parametrize("spec", [QWEN2, QWEN3])
def test_later_families_are_stored_as_they_are(spec: object) -> None:
    assert names.stored_tensors(spec) == {name: [name] for name, _ in spec.tensors()}  # type: ignore[attr-defined,arg-type]


@pytest.mark.parametrize(
    ("canonical", "stored"),
    [
        ("model.embed_tokens.weight", "transformer.wte.weight"),
        ("model.norm.weight", "transformer.ln_f.weight"),
        ("lm_head.weight", "lm_head.weight"),
        ("model.layers.12.self_attn.qkv_proj.bias", "transformer.h.12.attn.c_attn.bias"),
        ("model.layers.0.self_attn.qkv_proj.lora_A.weight", "transformer.h.0.attn.c_attn.lora_A.weight"),
        ("model.layers.0.mlp.gate_proj.lora_B.weight", "transformer.h.0.mlp.w2.lora_B.weight"),
        ("model.layers.0.mlp.up_proj.weight", "transformer.h.0.mlp.w1.weight"),
        ("model.layers.0.input_layernorm.weight", "transformer.h.0.ln_1.weight"),
    ],
)
def test_names_there_and_back(canonical: str, stored: str) -> None:
    assert names.to_stored(canonical, "qwen1") == stored
    assert names.from_stored(stored) == canonical
    assert names.to_stored(canonical, "qwen2") == names.from_stored(canonical) == canonical
    assert names.from_peft(names.to_peft(canonical, "qwen1")) == canonical


@pytest.mark.parametrize(
    "name",
    [
        "transformer.h.0.attn.rotary_emb.inv_freq",
        "transformer.rotary_emb.inv_freq",
        "transformer.h.9.attn.masked_bias",
    ],
)
def test_buffers_of_older_files_are_derived(name: str) -> None:
    assert names.is_derived(name)
    assert not names.is_derived("transformer.h.0.attn.c_attn.weight")


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (["c_attn"], [QKV]),
        (["q_proj", "k_proj", "v_proj"], [QKV]),
        (["c_attn", "attn.c_proj", "w1", "w2"], [QKV, O, GATE, UP]),
        (["c_proj"], [O, DOWN]),
        (["mlp.c_proj"], [DOWN]),
        (["attn.c_attn", "mlp.w1"], [QKV, UP]),
        (["gate_proj", "w2"], [GATE]),
        (["down_proj", "self_attn.o_proj"], [O, DOWN]),
        (
            ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
            [QKV, O, GATE, UP, DOWN],
        ),
    ],
)
def test_qwen1_targets_in_either_spelling(wanted: list[str], found: list[str]) -> None:
    assert find_targets(QWEN1, wanted) == found


def test_targets_of_the_other_families() -> None:
    assert find_targets(QWEN2, ["v_proj", "down_proj"]) == ["self_attn.v_proj", DOWN]
    assert list(adapted_linears(QWEN3)) == list(QWEN3.linears())


@pytest.mark.parametrize(
    ("spec", "wanted", "code"),
    [
        (QWEN1, ["q_proj"], "lora.part_of_whole"),
        (QWEN1, ["q_proj", "v_proj", "w1"], "lora.part_of_whole"),
        (QWEN1, ["c_attn", "wq"], "lora.unknown_target"),
        (QWEN1, ["attn"], "lora.unknown_target"),
        (QWEN2, ["c_attn"], "lora.unknown_target"),
        (QWEN2, ["w1"], "lora.unknown_target"),  # mindformers calls Qwen2's gate w1, Qwen1 its up
        (QWEN2, ["proj"], "lora.unknown_target"),
        (QWEN2, ["Q_PROJ"], "lora.unknown_target"),
    ],
)
def test_targets_that_are_none(spec: object, wanted: list[str], code: str) -> None:
    with pytest.raises(Problem) as caught:
        find_targets(spec, wanted, "run.yaml")  # type: ignore[arg-type]
    assert caught.value.code == code
    assert caught.value.where == "run.yaml"
    assert "c_proj" not in str(caught.value.values.get("known")) or spec is QWEN1


def test_the_missing_parts_are_told_by_short_names() -> None:
    with pytest.raises(Problem) as caught:
        find_targets(QWEN1, ["q_proj", "self_attn.v_proj"])
    assert caught.value.values["targets"] == "q_proj, v_proj"


def test_an_adapters_shapes() -> None:
    assert adapted_linears(QWEN1) == {
        QKV: (192, 64),
        O: (64, 64),
        GATE: (96, 64),
        UP: (96, 64),
        DOWN: (64, 96),
    }


def test_trainable_parameters_are_pefts() -> None:
    """Rank 64 on finetune.py's targets of Qwen-7B (reference-pipeline.md, 1.1)."""
    shape = {
        **SHAPE,
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "intermediate_size": 11008,
        "vocab_size": 151936,
    }
    spec = from_config(qwen1_config(shape))
    chosen = find_targets(spec, ["c_attn", "c_proj", "w1", "w2"])
    table = adapted_linears(spec)
    assert spec.layers * sum(64 * sum(table[linear]) for linear in chosen) == 143_130_624


@pytest.mark.parametrize(
    ("spec", "linears", "modules"),
    [
        (QWEN1, [QKV, O], ["c_attn", "attn.c_proj"]),
        (QWEN1, [GATE, UP, DOWN], ["w2", "w1", "mlp.c_proj"]),
        (QWEN2, ["self_attn.q_proj", DOWN], ["q_proj", "down_proj"]),
    ],
)
def test_what_peft_is_told(spec: object, linears: list[str], modules: list[str]) -> None:
    assert target_modules(spec, linears) == modules  # type: ignore[arg-type]
