"""mindformers' run files written, read again, and what is told of them."""

from __future__ import annotations

import json
import shlex
import subprocess
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from tests.mindrecord_lab import compose as compose_records

from tengtune.mindformers import commands, compose, hardware, losses, table, write
from tengtune.mindformers.notes import Note
from tengtune.mindformers.read import read
from tengtune.models.spec import from_config
from tengtune.recipe import Recipe, load
from tengtune.ui import language
from tengtune.ui.problems import Problem

QWEN1 = {
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
    "seq_length": 8192,
    "no_bias": True,
    "max_position_embeddings": 32768,
    "use_dynamic_ntk": True,
    "use_logn_attn": True,
}
QWEN2 = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 3584,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "intermediate_size": 18944,
    "vocab_size": 152064,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "max_position_embeddings": 32768,
    "eos_token_id": 151645,
    "tie_word_embeddings": False,
}
CONFIGS = {"qwen1": QWEN1, "qwen2": QWEN2}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with config.json of each family in it."""
    folder = tmp_path_factory.mktemp("models")
    for family, config in CONFIGS.items():
        (folder / family).mkdir()
        (folder / family / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def job(
    models: Path, family: str, form: Any = None, cards: str | None = None, out: str = "out", **groups: Any
) -> write.Job:
    run = models / "run.yaml"
    run.write_text(json.dumps({"model": family, "data": "a.json", **groups}), encoding="utf-8")
    recipe = load(run)
    chosen = hardware.parse(cards) if cards else hardware.of_run(recipe)
    return write.job(recipe, from_config(CONFIGS[family]), form, chosen, models / out)


def tuning(work: write.Job) -> dict[str, Any]:
    """The file to tune with, as PyYAML, mindformers' reader, has it."""
    loaded: dict[str, Any] = yaml.safe_load(write.dump(write.trees(work)[work.names[0]]))
    return loaded


def told(work: write.Job) -> set[str]:
    return {note.name for note in losses.notes(work)}


def test_the_reference_s_run_has_the_reference_s_values(models: Path) -> None:
    """examples/qwen7b-chat-8x910b.yaml is written for run_qwen_7b.yaml."""
    groups: dict[str, Any] = yaml.safe_load(
        Path("examples/qwen7b-chat-8x910b.yaml").read_text(encoding="utf-8")
    )
    del groups["model"], groups["output"]
    groups["train"].update(lr=1e-5, eps=1e-6)  # PyYAML takes 1e-5 for a text
    work = job(models, "qwen1", "r1.0", **{key: groups[key] for key in ("name", "data", "train", "parallel")})
    tree = tuning(work)
    theirs = yaml.safe_load(Path("tests/fixtures/mindformers/run_qwen_7b.yaml").read_text(encoding="utf-8"))
    alike = [
        "runner_config.epochs",
        "runner_config.batch_size",
        "optimizer.type",
        "optimizer.beta1",
        "optimizer.beta2",
        "optimizer.eps",
        "optimizer.weight_decay",
        "lr_schedule.type",
        "lr_schedule.learning_rate",
        "lr_schedule.warmup_ratio",
        "lr_schedule.total_steps",
        "runner_wrapper.scale_sense",
        "train_dataset.input_columns",
        "parallel_config.data_parallel",
        "parallel_config.model_parallel",
        "recompute_config.recompute",
        "model.model_config.type",
        "model.model_config.seq_length",
        "model.model_config.hidden_size",
        "model.model_config.num_layers",
        "model.model_config.num_heads",
        "model.model_config.vocab_size",
        "model.model_config.intermediate_size",
        "model.model_config.rms_norm_eps",
        "model.model_config.compute_dtype",
        "model.model_config.pad_token_id",
        "model.model_config.kv_channels",
        "model.arch",
        "processor.type",
        "context.max_device_memory",
        "parallel.enable_parallel_optimizer",
        "callbacks.CheckpointMointor.type",
    ]
    assert {key: table.value(tree, key) for key in alike} == {key: table.value(theirs, key) for key in alike}
    assert tree["lr_schedule"]["lr_end"] == 0
    assert "pet_config" not in tree["model"]["model_config"]
    # Where it differs on purpose: masters, a base that is read, an end that ends.
    model = tree["model"]["model_config"]
    assert (model["param_init_type"], model["theta"], model["eos_token_id"]) == ("float32", 10000, 151645)


def test_qwen2_has_the_newer_form(models: Path) -> None:
    work = job(models, "qwen2", None, "8x 910b", lora={"rank": 64, "targets": ["q_proj", "gate_proj"]})
    tree = tuning(work)
    model = tree["model"]["model_config"]
    assert tree["optimizer"]["type"] == "AdamW"
    assert tree["optimizer"]["betas"] == [0.9, 0.95]
    uncorrected = tuning(job(models, "qwen2", train={"optimizer": "mindformers"}))["optimizer"]
    assert uncorrected == {
        "type": "FP32StateAdamWeightDecay", "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.01,
    }  # fmt: skip
    assert tree["train_dataset"]["input_columns"] == ["input_ids", "target_ids", "attention_mask"]
    assert tree["train_dataset_task"]["dataset_config"] == tree["train_dataset"]
    assert (model["type"], model["n_kv_heads"], model["theta"]) == ("LlamaConfig", 4, 1000000)
    assert (model["compute_dtype"], model["param_init_type"]) == ("bfloat16", "bfloat16")
    assert model["pet_config"]["target_modules"] == ".*wq|.*w1"  # SiLU acts on w1
    assert model["pad_token_id"] == 151643  # never the end mark: padding is left out of the loss
    predicting = write.trees(work)["predict_qwen2.yaml"]
    assert predicting["run_mode"] == "predict"
    assert predicting["parallel_config"]["data_parallel"] == 1
    assert not {"optimizer", "train_dataset", "lr_schedule"} & predicting.keys()
    assert "pet_config" not in predicting["model"]["model_config"]


def test_qwen1_s_linears_cross(models: Path) -> None:
    work = job(models, "qwen1", lora={"targets": ["c_attn", "w2"]})
    assert tuning(work)["model"]["model_config"]["pet_config"]["target_modules"] == ".*wq|.*wk|.*wv|.*w3"
    assert work.names == ("run_qwen_lora.yaml", "run_qwen.yaml")


def test_every_key_that_is_written_stands_in_the_table_of_forms(models: Path) -> None:
    forms = table.known()["forms"]
    for family, form in (("qwen1", "r1.0"), ("qwen1", "new"), ("qwen2", "new")):
        work = job(models, family, form)
        for tree in write.trees(work).values():
            extra = {p for p, _, _ in table.leaves(tree)} - {
                p for p, _, _ in table.leaves(forms[work.skeleton])
            }
            assert extra <= set(table.known()["predict"]["put"][work.skeleton])


def test_every_row_of_the_table_has_a_place_in_some_form() -> None:
    trees = table.known()["forms"].values()
    for row in table.rows():
        assert all(any(table.way(tree, path) for tree in trees) for path in row.theirs), row


def numbers(low: float, high: float, digits: int) -> st.SearchStrategy[float]:
    return (
        st.floats(low, high)
        .map(lambda value: float(f"{value:.{digits}g}"))
        .filter(lambda v: low <= v <= high)
    )


SHARE = st.integers(0, 10_000).map(lambda value: value / 10_000)
TRAIN = {
    "epochs": st.integers(1, 100),
    "micro_batch": st.integers(1, 4),
    "lr": numbers(1e-7, 1e-2, 5),
    "lr_schedule": st.sampled_from(["cosine", "linear"]),
    "lr_min_ratio": SHARE.filter(lambda value: value < 0.99),
    "warmup_ratio": SHARE,
    "optimizer": st.sampled_from(["adamw", "mindformers"]),
    "weight_decay": SHARE,
    "beta1": numbers(0.1, 0.99, 4),
    "beta2": numbers(0.1, 0.999, 4),
    "eps": numbers(1e-9, 1e-5, 4),
    "clip_norm": numbers(0.0, 5.0, 3),
    "recompute": st.sampled_from(["none", "full"]),
    "log_every": st.integers(1, 100),
    "save_every": st.integers(1, 10000),
    "keep": st.integers(1, 10),
}
SAME = [f"train.{key}" for key in TRAIN] + [
    "train.global_batch",
    "train.method",
    "seed",
    "data.seq_len",
    "model.dtype",
    "parallel.ranks",
    "parallel.zero",
]
LORA = ["lora.rank", "lora.alpha", "lora.targets", "lora.train_embeddings"]


def of(recipe: Recipe, key: str) -> Any:
    found = reduce(getattr, key.split("."), recipe)  # type: ignore[arg-type]
    return set(found) if isinstance(found, list) else found  # type: ignore[arg-type]


@settings(max_examples=20, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(data=st.data())
def test_there_and_back_the_run_is_the_same(data: st.DataObject, models: Path) -> None:
    """In what both can say."""
    family, form = data.draw(st.sampled_from([("qwen1", "r1.0"), ("qwen1", "new"), ("qwen2", "new")]))
    train = {key: data.draw(strategy) for key, strategy in TRAIN.items()}
    if form == "r1.0":
        train["optimizer"] = "mindformers"  # it has no other
    method, ranks = data.draw(st.sampled_from(["lora", "full"])), data.draw(st.sampled_from([1, 2, 8]))
    train["global_batch"] = train["micro_batch"] * ranks * data.draw(st.integers(1, 4))
    targets = {"qwen1": [["c_attn"], ["c_proj", "w1", "w2"]], "qwen2": [["q_proj", "v_proj"], ["down_proj"]]}
    groups = {
        "seed": data.draw(st.integers(0, 2**32 - 1)),
        "model": {"path": family, "dtype": data.draw(st.sampled_from(["float16", "float32"]))},
        "data": {"files": "a.json", "seq_len": data.draw(st.integers(8, 32768))},
        "train": {**train, "method": method},
        "lora": {
            "rank": data.draw(st.integers(1, 256)),
            "alpha": data.draw(numbers(0.5, 512, 3)),
            "targets": data.draw(st.sampled_from(targets[family])),
            "train_embeddings": data.draw(st.booleans()),
        },
        "parallel": {"ranks": ranks, "zero": data.draw(st.integers(0, 1)) if ranks > 1 else 0},
    }
    work = job(models, family, form, **groups)
    theirs, back = models / "theirs.yaml", models / "back.yaml"
    theirs.write_text(write.dump(write.trees(work)[work.names[0]]), encoding="utf-8")
    reading = read(theirs)
    back.write_text(compose.run_file(reading, reading.notes, family, "a.json"), encoding="utf-8")
    own, made = work.recipe, load(back)
    keys = SAME + (LORA if method == "lora" else [])
    wanted = {key: of(own, key) for key in keys}
    if method == "lora" and family == "qwen1":
        parts = {
            "c_attn": ["q_proj", "k_proj", "v_proj"],
            "c_proj": ["o_proj", "down_proj"],
            "w1": ["up_proj"],
            "w2": ["gate_proj"],
        }
        wanted["lora.targets"] = {part for name in own.lora.targets for part in parts[name]}
    assert {key: of(made, key) for key in keys} == wanted


@pytest.mark.parametrize(
    ("schedule", "ratio", "kind", "end"),
    [
        ("cosine", 0.1, "CosineWithWarmUpLR", 1e-6),
        ("linear", 0.0, "LinearWithWarmUpLR", None),
        ("linear", 0.5, "PolynomialWithWarmUpLR", 5e-6),
        ("linear", 1.0, "ConstantWarmUpLR", None),
        ("constant", 0.1, "ConstantWarmUpLR", None),
    ],
)
def test_schedules(schedule: str, ratio: float, kind: str, end: float | None, models: Path) -> None:
    train = {"lr": 1e-5, "lr_schedule": schedule, "lr_min_ratio": ratio}
    tree = tuning(job(models, "qwen2", train=train))["lr_schedule"]
    assert (tree["type"], tree.get("lr_end")) == (kind, end)


def test_a_number_of_steps_only_where_something_stops_at_it(models: Path) -> None:
    """After total_steps mindformers' cosine rises again."""
    train = {"max_steps": 70}
    newer, older = job(models, "qwen2", train=train), job(models, "qwen1", train=train)
    assert tuning(newer)["runner_config"]["stop_step"] == tuning(newer)["lr_schedule"]["total_steps"] == 70
    assert tuning(older)["lr_schedule"]["total_steps"] == -1
    assert "stop_step" not in tuning(older)["runner_config"]
    assert "lose_max_steps" in told(older)
    assert "lose_stop_step" in told(newer)


@pytest.mark.parametrize(
    ("name", "groups"),
    [
        ("trap_labels_qwen1", {}),
        ("lose_pack", {}),
        ("lose_weights", {"data": {"files": "a", "weights": {"a": 2.0}}}),
        ("lose_epochs", {"train": {"epochs": 0.5}}),
        ("lose_scores", {"train": {"eval_every": 5}}),
        ("lose_embeddings", {}),
        ("trap_embeddings", {"lora": {"train_embeddings": True}}),
        ("lose_int8", {"lora": {"base": "int8"}}),
        ("lose_zero", {"parallel": {"ranks": 8, "zero": 3}}),
        ("lose_offload", {"parallel": {"ranks": 8, "zero": 3, "offload": "optimizer"}}),
        ("trap_beta", {"train": {"beta1": 0.0}}),
        ("trap_bias", {}),
        ("trap_one_card", {}),
        ("trap_theta", {}),
        ("trap_scaling", {}),
        ("trap_eos", {}),
        ("trap_int64", {}),
        ("trap_second_run", {}),
        ("trap_half_open", {"parallel": {"ranks": 8}}),
        ("trap_launcher", {"parallel": {"ranks": 8}}),
        ("trap_shared_disk", {"parallel": {"ranks": 8, "nodes": 2}}),
        ("trap_master", {"train": {"method": "full"}}),
        ("lose_stretch", {}),
    ],
)
def test_what_is_lost_and_what_to_beware_of_is_told(name: str, groups: dict[str, Any], models: Path) -> None:
    assert name in told(job(models, "qwen1", **groups))


def test_traps_are_told_where_they_apply_only(models: Path) -> None:
    newer = told(job(models, "qwen2", train={"global_batch": 1}))
    of_qwen1 = {
        "trap_bias",
        "trap_theta",
        "trap_eos",
        "trap_int64",
        "trap_half_open",
        "trap_launcher",
        "lose_stretch",
    }
    assert not newer & {*of_qwen1, "trap_one_card", "trap_master", "trap_910a", "trap_blanks"}
    assert "trap_blanks" in told(job(models, "qwen2", out="my out"))
    assert "trap_910a" in told(job(models, "qwen2", cards="8x 910a"))
    assert "trap_answering" in told(job(models, "qwen1", "new", "8x 910b"))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("8x 910b", (1, 8, "910b")),
        ("8×910B", (1, 8, "910b")),
        ("2x8x910a", (2, 8, "910a")),
        ("4 * 910", (1, 4, "910a")),
        ("8", (1, 8, "910b")),
        ("8x910B4", (1, 8, "910b-32g")),
        ("2 x 300T-A2", (1, 2, "910b-32g")),
        ("1x910b_32g", (1, 1, "910b-32g")),
    ],
)
def test_cards(text: str, found: tuple[int, int, str]) -> None:
    cards = hardware.parse(text)
    assert (cards.nodes, cards.cards, cards.kind) == found


@pytest.mark.parametrize(
    "text", ["", "x", "0x910b", "8x", "8xh100", "1x2x3x910b", "910b", "-1x910b", "八x910b", "99999"]
)
def test_what_are_no_cards(text: str) -> None:
    with pytest.raises(Problem, match="hardware"):
        hardware.parse(text)


@pytest.mark.parametrize(
    ("code", "family", "form", "cards", "groups"),
    [
        ("too_old", "qwen2", "r1.0", None, {}),
        ("old_bfloat16", "qwen1", "r1.0", None, {"model": {"path": "qwen1", "dtype": "bfloat16"}}),
        ("no_bfloat16", "qwen2", "new", "8x910a", {"model": {"path": "qwen2", "dtype": "bfloat16"}}),
        ("batch", "qwen1", None, "3x910b", {}),
    ],
)
def test_what_cannot_be_written(
    code: str, family: str, form: Any, cards: str | None, groups: dict[str, Any], models: Path
) -> None:
    with pytest.raises(Problem) as caught:
        job(models, family, form, cards, **groups)
    assert caught.value.code == f"mindformers.{code}"


@pytest.mark.parametrize("cards", ["1x 910b", "8x 910b", "8x 910a", "2x8x 910b"])
@pytest.mark.parametrize(("family", "form"), [("qwen1", "r1.0"), ("qwen1", "new"), ("qwen2", "new")])
@pytest.mark.parametrize("method", ["lora", "full"])
def test_the_commands_are_bash(cards: str, family: str, form: Any, method: str, models: Path) -> None:
    train = {"method": method, "global_batch": 16}
    prompts = {"prompts": ['What\'s "$HOME"? \\ `id`\nsecond line', "红灯亮了？"]}
    out = "it's out" if cards == "1x 910b" else "输出"
    work = job(models, family, form, cards, out=out, train=train, output=prompts)
    script = commands.script(work)
    done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    several = cards != "1x 910b"
    assert ("ranktable make" in script) == (several and form == "r1.0")
    assert ("msrun_launcher.sh" in script) == (several and form == "new")
    assert ("--lora-alpha 16" in script) == (method == "lora")
    assert "[0,8]" not in script
    # The question reaches mindformers as it was asked, in ChatML.
    last = script.rpartition("--predict_data ")[2]
    echo = subprocess.run(["bash", "-c", f"printf %s {last}"], capture_output=True, text=True, check=True)
    assert echo.stdout.endswith("<|im_start|>user\n红灯亮了？<|im_end|>\n<|im_start|>assistant\n")
    first = script.partition("--predict_data ")[2].partition("\npython")[0]
    echo = subprocess.run(["bash", "-c", f"printf %s {first}"], capture_output=True, text=True, check=True)
    assert 'user\nWhat\'s "$HOME"? \\ `id`\nsecond line<|im_end|>' in echo.stdout


ODD = ["two words", "it's", 'a"b', "$HOME", "$(id)", "`id`", "a;b", "a\\b", "a&b", "*", "line\nbreak"]


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize(("family", "form"), [("qwen1", "r1.0"), ("qwen2", "new")])
def test_what_a_launcher_would_take_apart_is_refused(name: str, family: str, form: Any, models: Path) -> None:
    """It is given the command as one text, which a shell reads once more."""
    train = {"global_batch": 16}
    for groups in ({"out": name}, {"data": f"{name}/x.mindrecord"}):
        with pytest.raises(Problem) as caught:
            commands.script(job(models, family, form, "8x 910b", train=train, **groups))
        assert caught.value.code == "mindformers.odd_path"
        assert str(caught.value.where).startswith(str(models / name))


@pytest.mark.parametrize("name", [*ODD, "训练 数据"])
def test_on_one_card_any_path_reaches_mindformers_as_it_is(name: str, models: Path, tmp_path: Path) -> None:
    work = job(models, "qwen2", "new", "1x 910b", out=name, data=f"{name}/x.mindrecord")
    script = commands.script(work).replace("/path/to/mindformers", str(tmp_path))
    python = tmp_path / "python"
    calls = tmp_path / "calls"
    python.write_text(f'#!/bin/bash\nprintf "%s\\0" "$@" >> {calls}\n')
    for stub in ("tengtune", "mkdir", "ln"):
        (tmp_path / stub).write_text("#!/bin/bash\n")
    for stub in ("python", "tengtune", "mkdir", "ln"):
        (tmp_path / stub).chmod(0o755)
    done = subprocess.run(
        ["bash", "-c", script],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    words = calls.read_text().split("\0")
    assert words[words.index("--train_dataset_dir") + 1] == str(models / name / "x.mindrecord")
    assert words[words.index("--config") + 1] == str(models / name / "finetune_qwen2.yaml")


def test_a_launcher_s_shell_reads_the_command_as_it_is_meant(models: Path) -> None:
    """With a launcher like theirs, which evaluates what it is given."""
    groups = {"out": "输出", "data": "数据/x.mindrecord", "train": {"global_batch": 16}}
    script = commands.script(job(models, "qwen2", "new", "8x 910b", **groups))
    call = script.partition("bash scripts/msrun_launcher.sh ")[2].partition("\n\n")[0]
    launcher = f"set -- {call}\neval printf '%s\\\\n' $1"
    done = subprocess.run(
        ["bash", "-c", f"HERE={models / '输出'}\n{launcher}"], capture_output=True, text=True, check=True
    )
    words = done.stdout.split("\n")
    assert words[words.index("--train_dataset_dir") + 1] == str(models / "数据" / "x.mindrecord")
    assert words[words.index("--config") + 1] == str(models / "输出" / "finetune_qwen2.yaml")


def test_the_records_are_made_as_the_run_file_says(models: Path) -> None:
    data = {
        "files": ["a b.json", "c.csv"],
        "policy": "qwen",
        "seq_len": 99,
        "too_long": "drop",
        "system": "It's me",
        "map": {"instruction": "问"},
        "format": "alpaca",
    }
    script = commands.script(job(models, "qwen1", data=data))
    line = script.partition("tengtune data convert")[2].partition("\n#")[0]
    words = shlex.split(line.replace("\\\n", " "), posix=True)
    assert words[:2] == [str(models / "a b.json"), str(models / "c.csv")]
    asked = dict(zip(words[2::2], words[3::2], strict=True))
    assert asked == {
        "--model": str(models / "qwen1"),
        "--seq-len": "99",
        "--policy": "qwen",
        "--too-long": "drop",
        "--map": "instruction=问",
        "--format": "alpaca",
        "--system": "It's me",
        "--to": "mindrecord",
        "--out": "$HERE/data.mindrecord",
    }


@pytest.mark.parametrize(("family", "form"), [("qwen1", "r1.0"), ("qwen2", "new")])
def test_a_mindrecord_is_taken_as_it_is(family: str, form: Any, models: Path) -> None:
    """It can be made of no text, and its names must stay."""
    work = job(models, family, form, data="the records/x.mindrecord")
    script, path = commands.script(work), models / "the records" / "x.mindrecord"
    assert "data convert" not in script
    assert f"{shlex.quote(str(path))}" in script
    assert str(path) in write.dump(write.trees(work)[work.names[0]])
    assert not {"trap_labels_new", "trap_labels_qwen1"} & told(work)
    with pytest.raises(Problem, match=r"mindformers\.records_and_more"):
        commands.script(job(models, family, form, data=["x.mindrecord", "a.json"]))


@pytest.mark.parametrize("label", ["labels", "target_ids"])
@pytest.mark.parametrize(("family", "form"), [("qwen1", "r1.0"), ("qwen1", "new"), ("qwen2", "new")])
def test_a_mindrecord_s_columns_and_length_are_the_yaml_s(
    family: str, form: Any, label: str, models: Path
) -> None:
    """mindformers looks for the columns by name, and trains [:-1] against [1:]: records of 40 are 39 long."""
    names = ("input_ids", label, "attention_mask")
    compose_records(models / "forty.mindrecord", [dict.fromkeys(names, [5] * 40)] * 2)
    work = job(models, family, form, data={"files": "forty.mindrecord", "seq_len": 512})
    tree = tuning(work)
    assert tree["train_dataset"]["input_columns"] == list(names)
    assert tree["train_dataset_task"]["dataset_config"]["input_columns"] == list(names)
    assert tree["model"]["model_config"]["seq_length"] == 39
    assert "lose_length" in told(work)
    assert "trap_unread" not in told(work)
    assert "trap_unread" in told(job(models, family, form, data="not-yet.mindrecord"))


def test_records_without_a_mask_or_of_several_lengths(models: Path) -> None:
    pair = ("input_ids", "labels")
    compose_records(models / "bare.mindrecord", [dict.fromkeys(pair, [5] * 9)])
    work = job(models, "qwen2", data="bare.mindrecord")
    assert tuning(work)["train_dataset"]["input_columns"] == list(pair)
    compose_records(models / "odd.mindrecord", [dict.fromkeys(pair, [5] * n) for n in (9, 7)])
    with pytest.raises(Problem, match=r"mindformers\.uneven_records"):
        job(models, "qwen2", data="odd.mindrecord")
    compose_records(models / "none.mindrecord", [dict.fromkeys(("input_ids", "attention_mask"), [5] * 9)])
    with pytest.raises(Problem, match=r"mindrecord\.no_column"):
        job(models, "qwen2", data="none.mindrecord")


def test_auto_is_a_type_the_run_s_back_end_has(models: Path) -> None:
    for backend, dtype in (("mindspore", "float16"), ("torch", "bfloat16")):
        assert job(models, "qwen2", cards="8x 910b", backend=backend).dtype == dtype


def test_each_machine_has_its_own_ranks(models: Path) -> None:
    work = job(models, "qwen1", "r1.0", "2x8x 910b", train={"global_batch": 16})
    line = next(line for line in commands.script(work).splitlines() if '"[$((NODE' in line)
    place = line.partition("rank_table.json ")[2]
    done = subprocess.run(["bash", "-c", f"NODE=1; echo {place}"], capture_output=True, text=True, check=True)
    assert done.stdout == "[8,16) 16\n"


def test_every_word_of_the_facts_has_its_text() -> None:
    texts = language.area_messages("mindformers")
    words = set(table.known()["unmapped"].values()) | {"unknown"}
    assert {f"mindformers.why_{word}" for word in words} == {code for code in texts if ".why_" in code}


def test_every_note_is_a_text_that_can_be_filled(monkeypatch: pytest.MonkeyPatch, models: Path) -> None:
    source = Path(write.__file__).parent
    texts = language.area_messages("mindformers")
    places = [*source.glob("*.py"), source.parent / "cli" / "import_.py"]
    used = "".join(path.read_text(encoding="utf-8") for path in places)
    for code in texts:
        name = code.partition(".")[2]
        if name.startswith(("lose_", "trap_", "read_")):
            assert f'"{name}"' in used, name
    for family in ("qwen1", "qwen2"):
        for note in losses.notes(
            job(models, family, train={"max_steps": 5, "epochs": 0.5}, parallel={"ranks": 8})
        ):
            for lang in language.LANGUAGES:
                monkeypatch.setenv("TENGTUNE_LANG", lang)
                assert note.text
                assert isinstance(note, Note)
