"""mindformers' run files read: the published numbers, what is told of them, and files that are none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from tests.mindrecord_lab import compose as compose_records

from tengtune import capabilities
from tengtune.mindformers import compose
from tengtune.mindformers.read import read
from tengtune.mindformers.reading import Reading, gathered
from tengtune.models.folder import PLACEHOLDER
from tengtune.recipe import Recipe, load
from tengtune.ui.problems import Problem

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures" / "mindformers"
BOMB = b"a: &a [1, 1, 1, 1, 1, 1, 1, 1]\n" + b"".join(
    b"%c: &%c [%s]\n" % (98 + i, 98 + i, b", ".join([b"*%c" % (97 + i)] * 8)) for i in range(8)
)
"""Aliases of aliases: 8^9 numbers."""
SEVEN = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def imported(path: Path, folder: Path) -> tuple[Recipe, Reading]:
    reading = read(path)
    file = folder / "made.yaml"
    file.write_text(compose.run_file(reading, reading.notes, None, None), encoding="utf-8")
    return load(file), reading


def names(reading: Reading) -> set[str]:
    return {note.name for note in reading.notes}


def changed(tmp_path: Path, name: str = "run_qwen_7b.yaml", **paths: Any) -> Path:
    """A fixture with keys set: `a__b` is a.b; ... takes the key out."""
    tree = yaml.safe_load((FIXTURES / name).read_text(encoding="utf-8"))
    for path, value in paths.items():
        *above, last = path.split("__")
        holder = tree
        for part in above:
            holder = holder[part]
        if value is ...:
            del holder[last]
        else:
            holder[last] = value
    file = tmp_path / "theirs.yaml"
    file.write_text(yaml.safe_dump(tree, allow_unicode=True), encoding="utf-8")
    return file


@pytest.mark.parametrize(("size", "recompute"), [("7b", "none"), ("14b", "full")])
def test_the_reference_s_full_tuning(size: str, recompute: str, tmp_path: Path) -> None:
    recipe, reading = imported(FIXTURES / f"run_qwen_{size}.yaml", tmp_path)
    train = recipe.train
    assert (train.method, train.epochs, train.micro_batch, train.global_batch) == ("full", 5, 1, 8)
    assert (train.lr, train.lr_schedule, train.lr_min_ratio, train.warmup_ratio) == (1e-5, "cosine", 0, 0.01)
    assert (train.beta1, train.beta2, train.eps, train.weight_decay) == (0.9, 0.95, 1e-6, 0.1)
    assert train.optimizer == "mindformers"
    assert (train.clip_norm, train.recompute, train.save_every, train.keep) == (1.0, recompute, 10000, 3)
    assert (recipe.seed, recipe.model.dtype, recipe.data.seq_len) == (0, "float16", 1024)
    assert (recipe.parallel.ranks, recipe.parallel.zero) == (8, 1)
    assert (recipe.data.policy, recipe.data.pack, recipe.data.heldout) == ("qwen", False, 0.0)
    told = {"read_use_parallel", "read_zero", "read_master", "read_records_qwen1"}
    assert names(reading) == told


@pytest.mark.parametrize("name", ["run_qwen_7b_lora.yaml", "finetune_qwen2_5_7b.yaml"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("sharded", [False, True])
def test_what_is_written_runs_on_a_back_end(name: str, dtype: str, sharded: bool, tmp_path: Path) -> None:
    """Neither bfloat16 nor ZeRO may lead to a run file that every back end refuses; without ZeRO MindSpore,
    from which the file comes, is not refused either."""
    paths = {"model__model_config__compute_dtype": dtype, "parallel__enable_parallel_optimizer": sharded}
    recipe, reading = imported(changed(tmp_path, name, **paths), tmp_path)
    assert recipe.backend == ("mindspore" if sharded else "auto")
    assert recipe.model.dtype == ("auto" if dtype == "bfloat16" else dtype)
    assert ("read_dtype" in names(reading)) == (dtype == "bfloat16")
    for backend in ("mindspore",) if sharded else ("mindspore", "torch"):
        capabilities.refuse(recipe, None, backend)


def test_records_as_they_are_have_no_policy(tmp_path: Path) -> None:
    """What is told of the data is about the data that is there."""
    for name, made in (("run_qwen_7b.yaml", "qwen1"), ("finetune_qwen2_5_7b.yaml", "new")):
        of_texts, of_records = (read(FIXTURES / name, tmp_path / each) for each in ("a.json", "a.mindrecord"))
        assert {f"read_records_{made}"} == {each for each in names(of_texts) if "record" in each}
        assert "read_as_stored" in names(of_records)
        assert not {"read_records_qwen1", "read_records_new"} & names(of_records)
        assert "data.policy" not in of_records.values
    at = "train_dataset__data_loader__dataset_dir"
    assert "read_as_stored" in names(read(changed(tmp_path, **{at: "/data/x.mindrecord"})))


def test_rows_are_as_long_as_the_records_that_are_there(tmp_path: Path) -> None:
    """The file's 1024 would leave rows of 128 ids nearly empty, and cut records of 1025."""
    for ids in (128, 1025):
        data = tmp_path / f"of_{ids}.mindrecord"
        compose_records(data, [dict.fromkeys(("input_ids", "labels"), [5] * ids)])
        reading = read(FIXTURES / "run_qwen_7b.yaml", data)
        assert reading.values["data.seq_len"] == ids
        assert [each.own for each in reading.taken if each.ours == "data.seq_len"] == [ids]
        assert "read_as_recorded" in names(reading)
        assert "read_as_stored" not in names(reading)
        at = "train_dataset__data_loader__dataset_dir"
        recipe, _ = imported(changed(tmp_path, **{at: str(data)}), tmp_path)
        assert recipe.data.seq_len == ids


def test_a_key_that_nobody_knows_is_told(tmp_path: Path) -> None:
    reading = read(changed(tmp_path, label_smoothing=0.1))
    assert [note.key for note in reading.notes if note.name == "why_unknown"] == ["label_smoothing"]


def test_the_reference_s_lora(tmp_path: Path) -> None:
    recipe, reading = imported(FIXTURES / "run_qwen_7b_lora.yaml", tmp_path)
    assert (recipe.train.method, recipe.train.lr, recipe.train.lr_min_ratio) == ("lora", 3e-4, 0.1)
    assert (recipe.lora.rank, recipe.lora.alpha, recipe.lora.targets) == (64, 16, SEVEN)
    assert recipe.lora.train_embeddings is True
    assert {"read_dropout", "read_embeddings"} <= names(reading)
    assert not {"read_master", "read_use_parallel"} & names(reading)


def test_the_newer_form_with_tensor_parallelism(tmp_path: Path) -> None:
    recipe, reading = imported(FIXTURES / "finetune_qwen_7b.yaml", tmp_path)
    assert (recipe.data.seq_len, recipe.train.recompute, recipe.train.lr_min_ratio) == (8192, "full", 1.0)
    assert (recipe.train.global_batch, recipe.parallel.ranks) == (
        8,
        8,
    )  # 1 x 2 x interleave 4, on 2 x 4 cards
    assert "read_split" in names(reading)
    assert "read_master" not in names(reading)
    assert recipe.train.optimizer == "adamw"  # AdamWeightDecayX corrects


def test_qwen2_with_a_pipeline(tmp_path: Path) -> None:
    recipe, reading = imported(FIXTURES / "finetune_qwen2_5_7b.yaml", tmp_path)
    assert (recipe.train.global_batch, recipe.parallel.ranks) == (64, 8)  # 1 x 4 x micro_batch_num 16
    assert (recipe.train.beta1, recipe.train.beta2, recipe.train.weight_decay) == (0.9, 0.95, 0.01)
    assert (recipe.model.dtype, recipe.data.policy, recipe.seed) == ("auto", "assistant", 42)
    assert recipe.train.recompute == "full"
    assert {"read_split", "read_recompute", "read_records_new"} <= names(reading)
    assert {"optimizer.betas.0", "optimizer.betas.1"} <= {each.theirs for each in reading.taken}


@pytest.mark.parametrize(
    "name",
    [
        "run_qwen_7b.yaml",
        "run_qwen_14b.yaml",
        "run_qwen_7b_lora.yaml",
        "finetune_qwen_7b.yaml",
        "finetune_qwen2_5_7b.yaml",
    ],
)
def test_every_key_is_accounted_for(name: str) -> None:
    from tengtune.mindformers.table import leaves

    reading = read(FIXTURES / name)
    told = {each.theirs for each in reading.taken} | {each.theirs for each in reading.left()}
    paths = {path for path, _, _ in leaves(reading.tree)}
    assert {path for path in paths if not any(f"{key}.".startswith(f"{path}.") for key in told)} == set()
    assert not [each for each in reading.left() if each.why == "unknown"]
    parts = gathered(reading.left(), reading.taken)
    assert parts["graph"][-1] == "context.*"
    assert parts["records"] == ["train_dataset.*", "train_dataset_task.*"]


@pytest.mark.parametrize(
    ("name", "paths"),
    [
        ("read_schedule", {"lr_schedule__type": "CosineWithRestartsAndWarmUpLR"}),
        ("read_total_steps", {"lr_schedule__total_steps": 500}),
        ("read_lr_end", {"lr_schedule__lr_end": 1e-3}),
        ("read_optimizer", {"optimizer__type": "Came"}),
        ("read_two_rates", {"optimizer__learning_rate": 1e-4}),
        ("read_theta", {"model__model_config__rotary_emb_base": 1000000}),
        (
            "trap_one_card",
            {"parallel_config__data_parallel": 1, "runner_config__gradient_accumulation_steps": 4},
        ),
        ("read_recompute", {"recompute_config__select_recompute": True}),
    ],
)
def test_what_contradicts_is_told(name: str, paths: dict[str, Any], tmp_path: Path) -> None:
    assert name not in names(read(FIXTURES / "run_qwen_7b.yaml"))
    recipe, reading = imported(changed(tmp_path, **paths), tmp_path)
    assert name in names(reading)
    assert recipe.train.lr_schedule == "cosine"


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("read_targets", "target_modules", "(a+)+$"),
        ("read_excluded", "freeze_exclude", ["*wte*"]),
    ],
)
def test_an_adapter_beyond_ours_is_told(name: str, key: str, value: Any, tmp_path: Path) -> None:
    paths = {f"model__model_config__pet_config__{key}": value}
    recipe, reading = imported(changed(tmp_path, "run_qwen_7b_lora.yaml", **paths), tmp_path)
    assert name in names(reading)
    assert recipe.lora.targets == SEVEN


def test_an_optimizer_that_is_not_there_is_told_once(tmp_path: Path) -> None:
    _, reading = imported(changed(tmp_path, optimizer__type="Came", optimizer__odd=1), tmp_path)
    told = [(note.key, note.name) for note in reading.notes if note.key.startswith("optimizer.")]
    assert told == [("optimizer.type", "read_optimizer"), ("optimizer.odd", "why_unknown")]


def test_a_part_of_c_attn_becomes_all_of_it(tmp_path: Path) -> None:
    paths = {"model__model_config__pet_config__target_modules": ".*wq|.*w2"}
    recipe, reading = imported(changed(tmp_path, "run_qwen_7b_lora.yaml", **paths), tmp_path)
    assert recipe.lora.targets == ["q_proj", "k_proj", "v_proj", "down_proj"]
    assert "read_part" in names(reading)
    paths = {"model__model_config__pet_config__target_modules": ".*w1|.*w3"}
    recipe, reading = imported(changed(tmp_path, "run_qwen_7b_lora.yaml", **paths), tmp_path)
    assert recipe.lora.targets == ["gate_proj", "up_proj"]
    assert "read_part" not in names(reading)


def test_names_of_a_strangers_file_are_printable(tmp_path: Path) -> None:
    reading = read(changed(tmp_path, callbacks=[{"type": "Mine", "a\x1b[2J": 1}]))
    shown = [each.theirs for each in reading.left() if each.theirs.startswith("callbacks")]
    assert shown == ["callbacks.Mine.a?[2J", "callbacks.Mine.type"]


@pytest.mark.parametrize("mark", ["\x85", "\u2028", "\u2029", "\n"])
def test_a_line_break_in_a_value_ends_no_comment(mark: str, tmp_path: Path) -> None:
    paths = {"optimizer__type": f"Mine{mark}model: x"}
    recipe, reading = imported(changed(tmp_path, **paths), tmp_path)
    assert "read_optimizer" in names(reading)
    assert str(recipe.model.path) == PLACEHOLDER


LEAF = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 2**40),
    st.floats(allow_nan=False),
    st.text("ab.*|[ 1\n\x85\u2028", max_size=6),
)
VALUE = st.one_of(
    LEAF, st.lists(LEAF, max_size=3), st.dictionaries(st.sampled_from(["type", "a"]), LEAF, max_size=2)
)


@settings(max_examples=60, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(data=st.data())
def test_any_value_anywhere_is_read_or_is_a_problem(data: st.DataObject, tmp_path_factory: Any) -> None:
    name = data.draw(st.sampled_from(["run_qwen_7b_lora.yaml", "finetune_qwen2_5_7b.yaml"]))
    tree = yaml.load((FIXTURES / name).read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
    holders: list[tuple[Any, Any]] = []

    def collect(at: Any) -> None:
        for key, inner in at.items() if isinstance(at, dict) else enumerate(at):
            holders.append((at, key))
            if isinstance(inner, (dict, list)):
                collect(inner)

    collect(tree)
    for _ in range(data.draw(st.integers(1, 3))):
        holder, key = data.draw(st.sampled_from(holders))
        holder[key] = data.draw(VALUE)
    file = tmp_path_factory.getbasetemp() / "any.yaml"
    file.write_text(yaml.dump(tree, Dumper=yaml.CSafeDumper), encoding="utf-8")
    try:
        reading = read(file)
    except Problem as problem:
        assert all(problem.texts(language) for language in ("zh", "en"))
        return
    assert gathered(reading.left(), reading.taken)
    made = compose.run_file(reading, reading.notes, None, None)
    assert "train:" in made
    assert isinstance(yaml.safe_load(made), dict)


def test_their_records_are_the_data_where_their_place_is_plain(tmp_path: Path) -> None:
    at = "train_dataset__data_loader__dataset_dir"
    recipe, _ = imported(changed(tmp_path, **{at: "/data/x.mindrecord"}), tmp_path)
    assert recipe.data.files == ["/data/x.mindrecord"]
    recipe, _ = imported(changed(tmp_path, **{at: "./x.mindrecord"}), tmp_path)
    assert recipe.data.files == [compose.DATA]


def test_accumulation_makes_the_global_batch(tmp_path: Path) -> None:
    paths = {"runner_config__gradient_accumulation_steps": 4, "runner_config__batch_size": 2}
    recipe, _ = imported(changed(tmp_path, **paths), tmp_path)
    assert (recipe.train.micro_batch, recipe.train.global_batch, recipe.accumulation) == (2, 64, 4)


@pytest.mark.parametrize(
    ("code", "key", "value"),
    [
        ("bad_value", "runner_config__epochs", "five"),
        ("bad_value", "runner_config__epochs", 0),
        ("bad_value", "runner_config__batch_size", True),
        ("bad_value", "lr_schedule__learning_rate", "1e-5x"),
        ("bad_value", "lr_schedule__learning_rate", -1.0),
        ("bad_value", "optimizer__beta1", [0.9]),
        ("bad_value", "model__model_config__compute_dtype", "int8"),
        ("bad_value", "runner_wrapper__use_clip_grad", "yes"),
        ("bad_value", "runner_config", 5),
        ("bad_value", "callbacks", {"type": "MFLossMonitor"}),
        ("bad_value", "optimizer__type", 3),
        ("other_model", "model__model_config__type", "GPT2Config"),
        ("other_model", "model__model_config__type", ["QwenConfig"]),
        ("other_model", "model__model_config__type", ...),
        ("other_model", "moe_config", {"expert_num": 64}),
        ("not_theirs", "model__model_config", ...),
        ("not_theirs", "model__model_config", "QwenConfig"),
        ("lacking", "lr_schedule", ...),
        ("lacking", "runner_config__epochs", ...),
    ],
)
def test_what_cannot_be_meant_is_a_problem(code: str, key: str, value: Any, tmp_path: Path) -> None:
    with pytest.raises(Problem) as caught:
        read(changed(tmp_path, **{key: value}))
    assert caught.value.code == f"mindformers.{code}"
    assert str(tmp_path / "theirs.yaml") in str(caught.value.where)


@pytest.mark.parametrize("value", [False, ...])
def test_a_llama_is_no_qwen(value: Any, tmp_path: Path) -> None:
    """Both are LlamaConfig; Qwen's q, k and v have biases."""
    with pytest.raises(Problem, match="other_model"):
        read(changed(tmp_path, "finetune_qwen2_5_7b.yaml", model__model_config__qkv_has_bias=value))


def test_a_bad_value_is_shown_with_its_line(tmp_path: Path) -> None:
    text = (FIXTURES / "run_qwen_7b.yaml").read_text(encoding="utf-8")
    line = next(n for n, each in enumerate(text.splitlines(), 1) if "epochs: 5" in each)
    file = tmp_path / "theirs.yaml"
    file.write_text(text.replace("epochs: 5", "epochs: 五"), encoding="utf-8")
    with pytest.raises(Problem) as caught:
        read(file)
    assert caught.value.where == f"{file}:{line}"
    assert caught.value.values["key"] == "runner_config.epochs"


@pytest.mark.parametrize(
    ("code", "raw"),
    [
        ("mindformers.not_theirs", b""),
        ("mindformers.not_theirs", b"just a text"),
        ("mindformers.not_theirs", b"a: 1"),
        ("mindformers.ours", b"model: m\ndata: d.json\n"),
        ("mindformers.not_utf8", "# 学习率\nseed: 0\n".encode("gbk")),
        ("mindformers.too_large", b"#" * 1_000_001),
        ("mindformers.too_large", BOMB),
        ("mindformers.too_large", b"a: &a [*a]\n"),
        ("recipe.not_yaml", b"a: [1\n"),
        ("recipe.not_yaml", b"a: *nowhere\n"),
        ("recipe.tag", b"a: !!python/object/apply:os.system [echo]\n"),
        ("recipe.key_twice", b"seed: 0\nseed: 1\n"),
    ],
)
def test_a_file_that_is_none_is_one_problem(code: str, raw: bytes, tmp_path: Path) -> None:
    file = tmp_path / "theirs.yaml"
    file.write_bytes(raw)
    with pytest.raises(Problem) as caught:
        read(file)
    assert caught.value.code == code
    assert all(caught.value.texts(language) for language in ("zh", "en"))
