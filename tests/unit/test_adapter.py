"""Adapter folders on their own; what PEFT makes of them is in tests/parity/test_merge_peft.py."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from tengtune.ui.problems import Problem
from tengtune.weights.adapter import read_adapter, write_adapter

Q, DOWN = "model.layers.0.self_attn.q_proj", "model.layers.1.mlp.down_proj"
PREFIX = "base_model.model."
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"

PEFT_0_3_KEYS = {
    "peft_type",
    "base_model_name_or_path",
    "task_type",
    "inference_mode",
    "r",
    "target_modules",
    "lora_alpha",
    "lora_dropout",
    "fan_in_fan_out",
    "bias",
    "modules_to_save",
    "init_lora_weights",
}
"""The fields of LoraConfig and PeftConfig in the peft 0.3.0 wheel."""


def tensors(rank: int = 4) -> dict[str, np.ndarray]:
    random = np.random.default_rng(11)
    shapes = {
        f"{Q}.lora_A.weight": (rank, 6),
        f"{Q}.lora_B.weight": (8, rank),
        f"{DOWN}.lora_A.weight": (rank, 5),
        f"{DOWN}.lora_B.weight": (6, rank),
    }
    return {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_adapter(
        tmp_path / "a", tensors(), rank=4, alpha=8.0, targets=["q_proj", "down_proj"], base="/models/x"
    )
    return tmp_path / "a"


def change(folder: Path, **keys: Any) -> None:
    config = json.loads((folder / CONFIG).read_text()) | keys
    (folder / CONFIG).write_text(json.dumps({k: v for k, v in config.items() if v is not ...}))


def change_tensors(folder: Path, **changes: np.ndarray | None) -> None:
    stored = load_file(folder / WEIGHTS) | {PREFIX + n: a for n, a in changes.items() if a is not None}
    for name in [n for n, a in changes.items() if a is None]:
        del stored[PREFIX + name]
    save_file(stored, folder / WEIGHTS)


def problem(folder: Path) -> Problem:
    with pytest.raises(Problem) as caught:
        read_adapter(folder)
    assert caught.value.texts()["what"]
    assert caught.value.exit_code == 2
    return caught.value


def test_what_is_written_is_what_peft_writes(folder: Path) -> None:
    config = json.loads((folder / CONFIG).read_text())
    assert config.keys() == PEFT_0_3_KEYS
    assert (config["peft_type"], config["task_type"], config["bias"]) == ("LORA", "CAUSAL_LM", "none")
    assert (config["r"], config["lora_alpha"]) == (4, 8)
    assert config["target_modules"] == ["q_proj", "down_proj"]
    assert config["base_model_name_or_path"] == "/models/x"
    stored = load_file(folder / WEIGHTS)
    assert stored.keys() == {PREFIX + name for name in tensors()}
    for name, expected in tensors().items():
        assert np.array_equal(stored[PREFIX + name], expected)
    assert sorted(f.name for f in folder.iterdir()) == [CONFIG, WEIGHTS]


def test_it_is_read_back(folder: Path) -> None:
    adapter = read_adapter(folder)
    assert (adapter.rank, adapter.alpha, adapter.scale) == (4, 8.0, 2.0)
    assert adapter.targets == ("q_proj", "down_proj")
    assert adapter.base == "/models/x"
    assert adapter.pairs.keys() == {Q, DOWN}
    assert adapter.whole == {}
    assert np.array_equal(adapter.pairs[Q].a, tensors()[f"{Q}.lora_A.weight"])
    assert np.array_equal(adapter.pairs[DOWN].b, tensors()[f"{DOWN}.lora_B.weight"])
    assert adapter.pairs[Q].scale == 2.0


def test_a_fractional_alpha_survives(tmp_path: Path) -> None:
    write_adapter(tmp_path, tensors(), rank=4, alpha=2.5, targets=["q_proj", "down_proj"], base="")
    assert read_adapter(tmp_path).scale == 0.625


def test_rslora_divides_by_the_root(folder: Path) -> None:
    change(folder, use_rslora=True)
    assert read_adapter(folder).pairs[Q].scale == 8 / math.sqrt(4)


def test_patterns_give_a_linear_its_own_rank_and_alpha(folder: Path) -> None:
    other = {n: a for n, a in tensors(rank=2).items() if n.startswith(DOWN)}
    change_tensors(folder, **other)
    change(folder, rank_pattern={"down_proj": 2}, alpha_pattern={r"layers\.\d+\.mlp\..*": 3, "proj": 100})
    adapter = read_adapter(folder)
    assert adapter.pairs[DOWN].scale == 3 / 2
    assert adapter.pairs[Q].scale == adapter.scale == 8 / 4  # "proj" is no whole part of a name


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("use_dora", True),
        ("lora_bias", True),
        ("fan_in_fan_out", True),
        ("init_lora_weights", "pissa"),
        ("init_lora_weights", "pissa_niter_4"),
        ("init_lora_weights", "loftq"),
        ("layer_replication", [[0, 1]]),
        ("trainable_token_indices", [5]),
        ("target_parameters", ["w"]),
        ("alora_invocation_tokens", [1]),
        ("peft_type", "LOHA"),
        ("use_something_new", True),
    ],
)
def test_what_cannot_be_applied_exactly_is_refused(folder: Path, key: str, value: object) -> None:
    change(folder, **{key: value})
    fault = problem(folder)
    assert fault.code == "adapter.unsupported"
    assert (fault.values["key"], fault.values["value"]) == (key, str(value))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("peft_type", ...),
        ("r", ...),
        ("r", 0),
        ("r", 2.5),
        ("r", True),
        ("r", "8"),
        ("lora_alpha", None),
        ("lora_alpha", -1),
        ("target_modules", 7),
        ("target_modules", [7]),
        ("target_modules", "(q_proj"),
        ("exclude_modules", "(q_proj"),
        ("exclude_modules", 7),
        ("layers_to_transform", "1"),
        ("layers_to_transform", [True]),
        ("layers_pattern", "(h"),
        ("layers_pattern", [7]),
        ("modules_to_save", {"norm": 1}),
        ("bias", "some"),
        ("rank_pattern", [1]),
        ("rank_pattern", {"q_proj": 0}),
        ("alpha_pattern", {"q_(proj": 4}),
    ],
)
def test_a_config_that_cannot_be_is_refused(folder: Path, key: str, value: object) -> None:
    change(folder, **{key: value})
    assert problem(folder).code == "adapter.bad_key"


NAN, INF = np.full((4, 6), np.nan, "f4"), np.full((4, 6), np.inf, "f4")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({f"{Q}.lora_B.weight": None}, f"{Q}: lora_A or lora_B is missing"),
        ({f"{Q}.lora_A.weight": None}, f"{Q}: lora_A or lora_B is missing"),
        (
            {f"{Q}.lora_A.weight": np.zeros((3, 6), "f4")},
            f"{Q}: lora_A [3, 6] and lora_B [8, 4] do not give rank 4",
        ),
        ({f"{Q}.lora_A.weight": np.zeros(24, "f4")}, f"{Q}: lora_A [24]"),
        ({f"{Q}.lora_A.weight": NAN}, f"{PREFIX}{Q}.lora_A.weight: holds NaN"),
        ({f"{Q}.lora_A.weight": INF}, f"{PREFIX}{Q}.lora_A.weight: holds NaN"),
        ({f"{Q}.lora_A.weight": np.zeros((4, 6), "i4")}, f"{PREFIX}{Q}.lora_A.weight: dtype int32"),
        ({f"{Q}.lora_magnitude_vector": np.zeros(8, "f4")}, f"{PREFIX}{Q}.lora_magnitude_vector: not a name"),
        ({"model.embed_tokens.lora_embedding_A": np.zeros((4, 9), "f4")}, "lora_embedding_A: not a name"),
    ],
)
def test_tensors_out_of_order_are_named(folder: Path, changes: dict[str, Any], message: str) -> None:
    change_tensors(folder, **changes)
    fault = problem(folder)
    assert fault.code == "adapter.bad_tensors"
    assert message in str(fault.values["faults"])


@pytest.mark.parametrize(
    ("keys", "left_out"),
    [
        ({"target_modules": ["q_proj", "nothing"]}, DOWN),
        ({"target_modules": ["nothing"]}, Q),
        ({"target_modules": [Q]}, DOWN),
        ({"target_modules": r"model\.layers\.\d\.self_attn\..*"}, DOWN),
        ({"exclude_modules": ["mlp.down_proj"]}, DOWN),
        ({"exclude_modules": ".*down_proj"}, DOWN),
        ({"layers_to_transform": [0]}, DOWN),
        ({"layers_to_transform": 1}, Q),
        ({"layers_to_transform": [0, 1], "layers_pattern": "blocks"}, Q),
        ({"modules_to_save": ["mlp"]}, DOWN),
    ],
)
def test_tensors_that_the_config_does_not_name_are_refused(
    folder: Path, keys: dict[str, Any], left_out: str
) -> None:
    change(folder, **keys)
    fault = problem(folder)
    assert fault.code == "adapter.bad_tensors"
    assert f"{left_out}: adapter_config.json does not name it" in str(fault.values["faults"])


@pytest.mark.parametrize("targets", [None, [], "all-linear"])
def test_targets_that_peft_would_look_up_are_no_claim(folder: Path, targets: object) -> None:
    change(folder, target_modules=targets)
    assert read_adapter(folder).pairs.keys() == {Q, DOWN}


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("model.norm.weight", {}),
        (f"{Q}.bias", {}),
        ("model.layers.0.self_attn.k_proj.bias", {"bias": "lora_only"}),
        (f"{Q}.weight", {"bias": "all"}),
    ],
)
def test_whole_tensors_that_the_config_does_not_name_are_refused(
    folder: Path, name: str, keys: dict[str, Any]
) -> None:
    change(folder, **keys)
    change_tensors(folder, **{name: np.ones(8, "f4")})
    assert f"{name}: adapter_config.json does not name it" in str(problem(folder).values["faults"])


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("model.norm.weight", {"modules_to_save": ["norm"]}),
        (f"{Q}.bias", {"bias": "lora_only"}),
        ("model.layers.0.self_attn.k_proj.bias", {"bias": "all"}),
        ("lm_head.weight", {}),  # PEFT saves it unasked when the vocabulary has grown
    ],
)
def test_whole_tensors_that_the_config_names(folder: Path, name: str, keys: dict[str, Any]) -> None:
    change(folder, **keys)
    change_tensors(folder, **{name: np.ones(8, "f4")})
    assert read_adapter(folder).whole.keys() == {name}


TWICE = [
    (
        {"model.norm.weight": (8,), "model.norm.modules_to_save.weight": (8,)},
        {"modules_to_save": ["norm"]},
        "model.norm.weight: another tensor stands for model.norm.weight",
    ),
    (
        {f"{DOWN}.base_layer.lora_A.weight": (4, 5)},
        {},
        f"another tensor stands for {DOWN}.lora_A.weight",
    ),
    (
        {
            "model.layers.0.self_attn.qkv_proj.lora_A.weight": (4, 6),
            "model.layers.0.self_attn.qkv_proj.lora_B.weight": (24, 4),
        },
        {"target_modules": ["q_proj", "down_proj", "qkv_proj"]},
        f"another tensor stands for {Q}",
    ),
]


@pytest.mark.parametrize(("changes", "keys", "message"), TWICE)
def test_two_tensors_for_one(
    folder: Path, changes: dict[str, tuple[int, ...]], keys: dict[str, Any], message: str
) -> None:
    change(folder, **keys)
    change_tensors(folder, **{name: np.ones(shape, "f4") for name, shape in changes.items()})
    fault = problem(folder)
    assert fault.code == "adapter.bad_tensors"
    assert message in str(fault.values["faults"])


def test_names_without_the_prefix_are_refused(folder: Path) -> None:
    save_file({f"{Q}.lora_A.weight": np.zeros((4, 6), "f4")}, folder / WEIGHTS)
    assert "not a name" in str(problem(folder).values["faults"])


def test_an_empty_adapter_is_refused(folder: Path) -> None:
    save_file({}, folder / WEIGHTS)
    assert problem(folder).values["faults"] == "There are no tensors."


@pytest.mark.parametrize(
    ("files", "code"),
    [
        ([], "adapter.no_config"),
        ([CONFIG], "adapter.no_weights"),
        ([CONFIG, "pytorch_model.bin"], "adapter.no_weights"),
    ],
)
def test_an_incomplete_folder(folder: Path, tmp_path: Path, files: list[str], code: str) -> None:
    (tmp_path / "b").mkdir()
    for name in files:
        (tmp_path / "b" / name).write_bytes((folder / CONFIG).read_bytes())
    fault = problem(tmp_path / "b")
    assert fault.code == code
    if files:
        assert files[-1] in str(fault.values["found"])


CLAIMS = ("exclude_modules", "layers_to_transform", "layers_pattern")
VALUE = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=6)
    | st.lists(st.integers(), max_size=2)
)
KEYS = st.sampled_from(
    [*sorted(PEFT_0_3_KEYS), "rank_pattern", "alpha_pattern", "use_rslora", "use_dora", *CLAIMS]
)


@settings(max_examples=200, deadline=None)
@given(
    keys=st.dictionaries(KEYS, VALUE | st.dictionaries(st.text(max_size=6), VALUE, max_size=2), max_size=3)
)
def test_any_config_is_a_problem_or_an_adapter(
    tmp_path_factory: pytest.TempPathFactory, keys: dict[str, Any]
) -> None:
    folder = tmp_path_factory.getbasetemp() / "fuzzed-adapter"
    if not folder.exists():
        write_adapter(folder, tensors(), rank=4, alpha=8, targets=["q_proj", "down_proj"], base="")
        (folder / CONFIG).rename(folder / "whole.json")
    config = json.loads((folder / "whole.json").read_text())
    (folder / CONFIG).write_text(json.dumps(config | keys))
    try:
        adapter = read_adapter(folder)
    except Problem as fault:
        assert fault.code.startswith("adapter.")
        assert fault.texts()["what"]
    else:
        assert adapter.rank == 4
        assert all(pair.scale > 0 for pair in adapter.pairs.values())
