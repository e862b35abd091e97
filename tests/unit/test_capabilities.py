"""What is asked for, what a back end has, and the refusal: facts/capabilities.yaml and its reader."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
from tests.qwen1 import qwen1_config
from tests.tiny import tiny_config, tiny_model

from tengtune import capabilities
from tengtune import recipe as recipes
from tengtune.backends import base
from tengtune.doctor import compat
from tengtune.host import chips, releases
from tengtune.models.spec import ModelSpec, from_config
from tengtune.plan import asked as plan_asked
from tengtune.plan import can
from tengtune.recipe import Recipe
from tengtune.steps import train
from tengtune.ui import language
from tengtune.ui.problems import Problem

TESTS = Path(__file__).resolve().parents[1]
QWEN2 = from_config(tiny_config())
QWEN1 = from_config(qwen1_config(tiny_config(num_key_value_heads=4, max_position_embeddings=512)))
PROOFS = {
    ("lora", "torch"): "parity/test_torch_transformers.py::test_twenty_steps_are_those_of_peft",
    ("lora", "mindspore"): "parity/test_mindspore_training.py::test_every_tensor_and_moment_is_torchs",
    ("full", "torch"): "unit/test_torch_step.py::test_it_learns",
    ("full", "mindspore"): "parity/test_mindspore_training.py::test_every_tensor_and_moment_is_torchs",
    ("float16", "torch"): "unit/test_torch_step.py::test_narrow_types_to_their_own_error",
    ("float16", "mindspore"): "parity/test_mindspore_features.py::test_float16_is_torchs_float32",
    ("bfloat16", "torch"): "unit/test_torch_step.py::test_narrow_types_to_their_own_error",
    ("ranks", "torch"): "parity/test_data_parallel.py::test_ranks_train_as_one",
    ("ranks", "mindspore"): "parity/test_mindspore_ranks.py::test_ranks_train_as_one",
    ("nodes", "torch"): "faults/test_ranks.py::test_two_machines_with_one_folder_train_as_one",
    ("nodes", "mindspore"): "faults/test_mindspore_rank_faults.py::test_two_machines_train_as_one",
    ("train_embeddings", "torch"): "parity/test_qwen1_peft.py::test_embedding_and_head_trained_along",
    (
        "train_embeddings",
        "mindspore",
    ): "parity/test_mindspore_features.py::test_a_qwen1_base_model_is_trained_as_on_torch",
    ("qwen1_lora", "torch"): "parity/test_qwen1_peft.py::test_twelve_steps_are_pefts",
    (
        "qwen1_lora",
        "mindspore",
    ): "parity/test_mindspore_features.py::test_a_qwen1_base_model_is_trained_as_on_torch",
    ("qwen1_long", "torch"): "golden/test_qwen1_golden.py::test_a_text_beyond_seq_length",
    ("zero_1", "mindspore"): "parity/test_mindspore_ranks.py::test_ranks_train_as_one",
    ("zero_2", "mindspore"): "parity/test_mindspore_ranks.py::test_ranks_train_as_one",
    ("zero_3", "mindspore"): "parity/test_mindspore_ranks.py::test_ranks_train_as_one",
    ("recompute_full", "torch"): "unit/test_torch_step.py::test_recompute_gives_the_same_bits",
    ("recompute_full", "mindspore"): "parity/test_mindspore_training.py::test_losses_and_norms_are_torchs",
    ("packing", "torch"): "unit/test_torch_step.py::test_packed_is_unpacked",
    ("packing", "mindspore"): "golden/test_mindspore_goldens.py::test_packed_probabilities",
    ("mindrecord", "torch"): "cli/test_mindrecord_cli.py::test_it_trains_on_both_back_ends_as_the_texts_do",
    (
        "mindrecord",
        "mindspore",
    ): "cli/test_mindrecord_cli.py::test_it_trains_on_both_back_ends_as_the_texts_do",
    ("mindformers_optimizer", "torch"): "parity/test_adam_weight_decay.py::test_on_torch",
    ("mindformers_optimizer", "mindspore"): "parity/test_adam_weight_decay.py::test_on_mindspore",
    (
        "mindformers_layout",
        "torch",
    ): "cli/test_mindformers_tree.py::test_both_join_the_ranks_to_what_was_trained",
    (
        "mindformers_layout",
        "mindspore",
    ): "cli/test_mindspore_cli.py::test_mindformers_output_folder_holds_base_and_adapter",
    (
        "evaluation",
        "torch",
    ): "cli/test_evaluate_cli.py::test_other_files_are_scored_and_nothing_is_recorded",
    ("evaluation", "mindspore"): "cli/test_mindspore_cli.py::test_evaluate_marks_as_on_pytorch",
    ("generation", "torch"): "golden/test_torch_goldens.py::test_greedy_ids",
    ("generation", "mindspore"): "golden/test_mindspore_goldens.py::test_greedy_ids",
}
"""The test that stands for each yes."""


def make_recipe(*overrides: str) -> Recipe:
    return recipes.for_model(Path("/x/model"), overrides)


def cells() -> list[tuple[str, str, str, str]]:
    """(feature, back end, device, verdict) of every cell."""
    return [
        (feature, backend, device, verdict)
        for feature, backends in capabilities.table().items()
        for backend, devices in backends.items()
        for device, verdict in devices.items()
    ]


UNASKED = ("generation", "int8_all", "offload_all")
"""What no key of a run file asks for: answers, and what only the planner reckons with."""


def test_the_table_has_every_cell() -> None:
    places = [cell[:3] for cell in cells()]
    assert places == [
        (feature, backend, device)
        for feature in [*capabilities.FEATURES, *UNASKED]
        for backend in ("torch", "mindspore")
        for device in ("cpu", "cuda", "ascend_910", "ascend_910b")
    ]
    assert {verdict for *_, verdict in cells()} == {"yes", "no", "unverified"}


def test_yes_is_what_a_test_runs_and_nothing_on_a_card() -> None:
    yes = {(feature, backend, device) for feature, backend, device, verdict in cells() if verdict == "yes"}
    assert yes == {(*proof, "cpu") for proof in PROOFS}
    for proof in PROOFS.values():
        path, _, name = proof.partition("::")
        tree = ast.parse((TESTS / path).read_text(encoding="utf-8"))
        assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, proof


def test_the_first_910_has_no_bfloat16() -> None:
    assert capabilities.table()["bfloat16"]["torch"]["ascend_910"] == "no"


ASKED: list[tuple[str, str, str, ModelSpec | None]] = [
    ("lora", "", "", None),
    ("full", "train.method=full", "", None),
    ("float16", "model.dtype=float16", "model.dtype: float16", None),
    ("bfloat16", "model.dtype=bfloat16", "model.dtype: bfloat16", None),
    ("ranks", "parallel.ranks=2", "parallel.ranks: 2", None),
    ("nodes", "parallel.ranks=2 parallel.nodes=2", "parallel.ranks: 2", None),
    ("train_embeddings", "lora.train_embeddings=true", "lora.train_embeddings: true", None),
    ("qwen1_lora", "data.seq_len=512", "train.method: lora", QWEN1),
    ("qwen1_long", "data.seq_len=513 train.method=full", "data.seq_len: 513", QWEN1),
    ("int8_base", "lora.base=int8", "lora.base: int8", None),
    ("zero_1", "parallel.zero=1", "parallel.zero: 1", None),
    ("zero_2", "parallel.zero=2", "parallel.zero: 2", None),
    ("zero_3", "parallel.zero=3", "parallel.zero: 3", None),
    ("offload_optimizer", "parallel.offload=optimizer", "parallel.offload: optimizer", None),
    ("recompute_full", "train.recompute=full", "", None),
    ("packing", "", "", None),
    ("mindrecord", "data.files=a.mindrecord0", "", None),
    ("mindformers_optimizer", "train.optimizer=mindformers", "", None),
    ("mindformers_layout", "output.layout=mindformers", "", None),
    ("evaluation", "output.evaluate=a.json", "", None),
]
"""Feature, the settings that ask for it, how its refusal calls them, the model."""


@pytest.mark.parametrize(("name", "settings", "words", "spec"), ASKED)
def test_who_asks_for_what(name: str, settings: str, words: str, spec: ModelSpec | None) -> None:
    recipe = make_recipe(*settings.split())
    unpacked = make_recipe(*settings.split(), "data.pack=false")
    method = "full" if "train.method=full" in settings else "lora"
    along = {"ranks"} if name == "nodes" else set()
    asked = {each.name for each in capabilities.FEATURES.values() if each.asked(recipe, spec)}
    assert asked == {name, method, "packing"} | along  # rows are packed unless a run says otherwise
    assert "packing" not in {f.name for f in capabilities.FEATURES.values() if f.asked(unpacked, spec)}


@pytest.mark.parametrize(("settings", "spec"), [each[1:4:2] for each in ASKED])
def test_the_planner_asks_for_the_same(settings: str, spec: ModelSpec | None) -> None:
    """plan/can.py reads a plan as this reads a run file; data, optimizer and outputs are none of a plan's."""
    recipe, model = make_recipe(*settings.split()), spec or QWEN2
    of_a_run = {each.name for each in capabilities.FEATURES.values() if each.asked(recipe, model)}
    of_a_run -= {"packing", "mindrecord", "mindformers_optimizer", "mindformers_layout", "evaluation"}
    of_a_plan = set(can.features(model, plan_asked.strategy(recipe, 2), recipe.model.dtype)) - {"auto"}
    assert of_a_plan == of_a_run


def test_every_feature_a_run_file_asks_for_is_tried() -> None:
    assert [name for name, *_ in ASKED] == list(capabilities.FEATURES)


def test_what_full_tuning_does_not_read_is_not_asked_for() -> None:
    recipe = make_recipe("train.method=full", "lora.base=int8", "lora.train_embeddings=true")
    assert [f.name for f in capabilities.FEATURES.values() if f.asked(recipe, QWEN1)] == [
        "full",
        "qwen1_long",
        "packing",
    ]


TORCH_REFUSES = {"int8_base", "zero_1", "zero_2", "zero_3", "offload_optimizer"}
MINDSPORE_REFUSES = {"int8_base", "offload_optimizer", "bfloat16", "qwen1_long"}


@pytest.mark.parametrize("backend", ["torch", "mindspore"])
@pytest.mark.parametrize(("name", "settings", "words", "spec"), ASKED)
def test_what_is_refused(name: str, settings: str, words: str, spec: ModelSpec | None, backend: str) -> None:
    recipe = make_recipe(*settings.split())
    if name not in (TORCH_REFUSES if backend == "torch" else MINDSPORE_REFUSES):
        capabilities.refuse(recipe, spec, backend)
        return
    with pytest.raises(Problem) as caught:
        capabilities.refuse(recipe, spec, backend)
    found = caught.value
    expected = {"zero_1": "zero", "zero_2": "zero", "zero_3": "zero", "bfloat16": "dtype"}
    assert (found.code, found.exit_code) == (f"capability.{expected.get(name, name)}", 2)
    assert found.where == "/x/model"
    for tongue in language.LANGUAGES:
        texts = found.texts(tongue)
        assert set(texts) == {"what", "why", "fix"}
        assert words in texts["what"]
        assert ("`backend: torch`" in texts["fix"]) == (name not in TORCH_REFUSES)


def test_who_only_asks_a_model_is_not_refused_for_its_training() -> None:
    trained = make_recipe(
        "lora.base=int8", "parallel.zero=3", "parallel.ranks=2", "parallel.offload=optimizer"
    )
    capabilities.refuse(trained, QWEN2, "mindspore", training=False)
    with pytest.raises(Problem, match=r"capability\.dtype"):
        capabilities.refuse(make_recipe("model.dtype=bfloat16"), QWEN2, "mindspore", training=False)
    with pytest.raises(Problem, match=r"capability\.qwen1_long"):
        capabilities.refuse(make_recipe("data.seq_len=513"), QWEN1, "mindspore", training=False)


@pytest.mark.parametrize(
    ("override", "code"),
    [("backend=mindspore", "capability.dtype"), ("lora.base=int8", "capability.int8_base")],
)
def test_a_refusal_loads_no_framework(
    override: str, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = {"model": str(tiny_model(tmp_path / "model")), "data": "a.json"}
    (tmp_path / "run.yaml").write_text(json.dumps(run))
    recipe = recipes.load(tmp_path / "run.yaml", ["model.dtype=bfloat16", override])

    def loaded(name: str) -> None:
        raise AssertionError(name)

    monkeypatch.setattr(base, "load", loaded)
    for begin in (lambda: train.check(recipe), lambda: base.open_backend(recipe, tmp_path / "model")):
        with pytest.raises(Problem) as caught:
            begin()
        assert caught.value.code == code


def test_the_new_keys_tell_one_training_from_another() -> None:
    """But runs that were recorded before there were these keys stay what they are."""
    newer = {"lora.base", "parallel.zero", "parallel.offload"}
    assert not newer & train.settings(make_recipe()).keys()
    other = train.settings(make_recipe("lora.base=int8", "parallel.zero=2", "parallel.offload=optimizer"))
    assert {key: other[key] for key in newer} == {
        "lora.base": "int8",
        "parallel.zero": 2,
        "parallel.offload": "optimizer",
    }
    assert not newer & set(recipes.CHANGEABLE)


def test_mindspore_on_the_first_910_is_older_than_the_back_end() -> None:
    """pyproject.toml's extra and Python against what facts/ say of MindSpore on these cards."""
    project = (TESTS.parent / "pyproject.toml").read_text("utf-8")
    last = chips.table().generations["910"].last_mindspore
    assert last is not None
    assert f'mindspore = ["mindspore>={compat.MINDSPORE_SINCE}"' in project
    assert f'torch = ["torch>={compat.TORCH_SINCE}"]' in project
    assert releases.older(last, compat.MINDSPORE_SINCE)
    (row,) = [row for row in compat.table("mindspore") if last.startswith(row["mindspore"] + ".")]
    assert (row["python"], 'requires-python = ">=3.10"' in project) == ("3.7 3.8 3.9", True)
    verdicts = {device["mindspore"]["ascend_910"] for device in capabilities.table().values()}
    assert verdicts == {"no"}
