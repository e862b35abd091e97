"""The run file: what is accepted, and how a fault is told."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tengtune import recipe as recipes
from tengtune.run_yaml import parse_scalar, read_yaml
from tengtune.ui.problems import Problem

SMALLEST = "model: /m\ndata: a.json\n"


def write(folder: Path, text: str | bytes, name: str = "run.yaml") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def problem(folder: Path, text: str | bytes, *overrides: str) -> Problem:
    with pytest.raises(Problem) as caught:
        recipes.load(write(folder, text), overrides)
    assert caught.value.exit_code == 2
    return caught.value


def test_the_smallest_run_file(tmp_path: Path) -> None:
    recipe = recipes.load(write(tmp_path, SMALLEST))
    assert (recipe.model.path, recipe.data.files, recipe.name) == ("/m", ["a.json"], "run")
    assert recipe.folder == tmp_path / "runs" / "run"
    assert recipe.resolve("a.json") == tmp_path / "a.json"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-4", 1e-4),
        ("3E5", 3e5),
        ("1_000", 1000),
        ("-.5", -0.5),
        ("no", "no"),
        ("yes", "yes"),
        ("off", "off"),
        ("12:30:00", "12:30:00"),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("0x10", "0x10"),
        ("1.2.3", "1.2.3"),
        ("nan", "nan"),
        ("9" * 100, 10**100 - 1),
        pytest.param("9" * 101, "9" * 101, id="101 digits"),
        pytest.param("-" + "9" * 5000, "-" + "9" * 5000, id="more digits than Python reads"),
    ],
)
def test_plain_scalars_mean_what_people_mean(text: str, value: object) -> None:
    parsed = parse_scalar(text)
    assert parsed == value
    assert type(parsed) is type(value)


def test_quoted_numbers_stay_texts(tmp_path: Path) -> None:
    values, lines = read_yaml(write(tmp_path, "a: '1'\nb:\n  c: 2\n  d: [x, 1e3]\n"))
    assert values == {"a": "1", "b": {"c": 2, "d": ["x", 1000.0]}}
    assert (lines[("b", "d")], lines[("b", "d", 1)]) == (4, 4)


@pytest.mark.parametrize(
    ("text", "code", "line", "told"),
    [
        (SMALLEST + "train:\n  epoch: 3\n", "recipe.unknown_key", 4, "train.epochs"),
        (SMALLEST + "trian: {}\n", "recipe.unknown_key", 3, "train"),
        (SMALLEST + "seq_len: 5\n", "recipe.unknown_key", 3, "data.seq_len"),
        (SMALLEST + "file: x\n", "recipe.unknown_key", 3, "file"),
        (SMALLEST + "train:\n  epochs: three\n", "recipe.bad_value", 4, "three"),
        (SMALLEST + "train:\n  lr: -1\n", "recipe.bad_value", 4, "greater than 0"),
        (SMALLEST + "train:\n  method: lroa\n", "recipe.bad_value", 4, "lroa"),
        (SMALLEST + "train:\n  lr: 1,0e-4\n", "recipe.bad_value", 4, "a point, not a comma: 1.0e-4"),
        (SMALLEST + "train:\n  epochs: -,5\n", "recipe.bad_value", 4, "a point, not a comma: -.5"),
        (SMALLEST + "train: 5\n", "recipe.bad_value", 3, "train"),
        (SMALLEST + "model: b\n", "recipe.key_twice", 3, "model"),
        (SMALLEST + "name: a/b\n", "recipe.bad_value", 3, "slashes"),
        (SMALLEST + "seed: true\n", "recipe.bad_value", 3, "A whole number is wanted"),
        (SMALLEST + "seed: '5'\n", "recipe.bad_value", 3, "A whole number is wanted"),
        (SMALLEST + "seed: 5.5\n", "recipe.bad_value", 3, "A whole number is wanted"),
        (SMALLEST + "train:\n  epochs: true\n", "recipe.bad_value", 4, "A number is wanted"),
        (SMALLEST + "train:\n  eval_every: no\n", "recipe.bad_value", 4, "A whole number is wanted"),
        (SMALLEST + "train:\n  warmup_ratio: 2\n", "recipe.bad_value", 4, "at most 1"),
        (SMALLEST + "train:\n  beta1: 1\n", "recipe.bad_value", 4, "less than 1"),
        (SMALLEST + "train:\n  global_batch: 0\n", "recipe.bad_value", 4, "at least 1"),
        (SMALLEST + "output:\n  samples: 1\n", "recipe.bad_value", 4, "true or false is wanted"),
        (SMALLEST + "output:\n  samples: yes\n", "recipe.bad_value", 4, "true or false is wanted"),
        (SMALLEST + "output:\n  prompts: why?\n", "recipe.bad_value", 4, "A list is wanted"),
        (SMALLEST + "output:\n  prompts: [1]\n", "recipe.bad_value", 4, "A text is wanted"),
        (SMALLEST + "lora:\n  train_embeddings: 1\n", "recipe.bad_value", 4, "auto, true, false"),
        (SMALLEST + "backend: jax\n", "recipe.bad_value", 3, "auto, torch, mindspore"),
        (SMALLEST + "lora:\n  base: int4\n", "recipe.bad_value", 4, "compute, int8"),
        (SMALLEST + "parallel:\n  zero: true\n", "recipe.bad_value", 4, "A whole number is wanted"),
        (SMALLEST + "parallel:\n  zero: 4\n", "recipe.bad_value", 4, "at most 3"),
        (SMALLEST + "parallel:\n  offload: all\n", "recipe.bad_value", 4, "none, optimizer"),
        ("model: [a]\ndata: a.json\n", "recipe.bad_value", 1, "Keys with values are wanted"),
        ("model: m\ndata:\n  files: a\n  weights: {a: true}\n", "recipe.bad_value", 4, "A number"),
        ("model: m\ndata: []\n", "recipe.bad_value", 2, "At least one entry"),
        (SMALLEST + "overrides: []\n", "recipe.unknown_key", 3, "overrides"),
        (SMALLEST + "train:\n\tepochs: 1\n", "recipe.not_yaml", 4, "A tab"),
        (SMALLEST + "name: a: b\n", "recipe.not_yaml", 3, "A colon"),
        (SMALLEST + "name: 'a\n", "recipe.not_yaml", 4, "A quote"),
        ("data: a.json\n", "recipe.missing", 1, "model"),
        ("modle: /m\ndata: a.json\n", "recipe.unknown_key", 1, "model"),
        ("model:\n  dtype: auto\ndata: a.json\n", "recipe.missing", 1, "model.path"),
        (SMALLEST + "train: {micro_batch: 3}\n", "recipe.batch", 3, "6 / 9"),
        (SMALLEST + "x: !!python/object/apply:os.system [ls]\n", "recipe.tag", 3, "python"),
        ("a: [1\n", "recipe.not_yaml", 2, "A bracket"),
        ("? [a]\n: b\n", "recipe.key_not_text", 1, ""),
    ],
)
def test_faults_name_line_and_remedy(tmp_path: Path, text: str, code: str, line: int, told: str) -> None:
    fault = problem(tmp_path, text)
    assert fault.code == code
    assert fault.where is not None
    assert fault.where.split("run.yaml:")[1].split(":")[0] == str(line)
    assert told in str(fault)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "recipe.not_mapping"),
        ("- a\n", "recipe.not_mapping"),
        ("模型: x".encode("gbk"), "recipe.not_utf8"),
        (b"#" * 1_000_001, "recipe.too_large"),
        (
            "a: &a [1,1,1,1]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\n"
            "d: &d [*c,*c,*c,*c,*c,*c,*c,*c]\ne: [*d,*d,*d,*d,*d,*d,*d,*d,*d]\n",
            "recipe.too_large",
        ),
        ("[" * 5000, "recipe.too_large"),
    ],
)
def test_files_that_are_no_run_file(tmp_path: Path, text: str | bytes, code: str) -> None:
    assert problem(tmp_path, text).code == code


def test_a_run_file_that_never_ends_is_refused(tmp_path: Path) -> None:
    """A pipe nobody writes to, and a device."""
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(Problem) as caught:
            read_yaml(path)
        assert caught.value.code == "io.not_plain"


def test_whole_numbers_may_have_exponents(tmp_path: Path) -> None:
    recipe = recipes.load(write(tmp_path, SMALLEST + "train: {max_steps: 1e3, epochs: 2}\n"))
    assert (recipe.train.max_steps, type(recipe.train.max_steps)) == (1000, int)
    assert (recipe.train.epochs, type(recipe.train.epochs)) == (2.0, float)


@pytest.mark.parametrize("value", ["true", "false", "auto"])
def test_train_embeddings_is_a_boolean_or_auto(tmp_path: Path, value: str) -> None:
    recipe = recipes.load(write(tmp_path, SMALLEST + f"lora: {{train_embeddings: {value}}}\n"))
    assert recipe.lora.train_embeddings == {"true": True, "false": False, "auto": "auto"}[value]


@pytest.mark.parametrize("lang", ["zh", "en"])
def test_no_word_of_the_validators_reaches_the_user(
    tmp_path: Path, lang: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENGTUNE_LANG", lang)
    for key in list(recipes.keys()):
        group, _, name = key.rpartition(".")
        for value in ("[[]]", "{a: {b: c}}", "true", "-7", "1e300", "x y", '""', "null", "[]"):
            text = f"{group}: {{{name}: {value}}}\n" if group else f"{name}: {value}\n"
            rest = {"model": "model: m\n", "data": "data: d\n"}
            text += "".join(line for each, line in rest.items() if each not in (group, name))
            try:
                recipes.load(write(tmp_path, text))
            except Problem as fault:
                said = " ".join(fault.texts().values())
                assert "Input" not in said, (key, value)
                assert "should be" not in said, (key, value)
                assert "Another kind" not in said, (key, value)
                assert "其他类型" not in said, (key, value)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("my.json", '[{"instruction": "a", "output": "b"}]'),
        ("my.jsonl", '{"a": 1}\n{"a": 2}\n'),
        ("my.csv", "instruction,output\na: b,c: d\n"),
        ("my data.json", "[1]" + " " * 1_000_000),
    ],
)
def test_a_data_file_is_no_run_file(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(Problem) as caught:
        recipes.load(tmp_path / name)
    assert caught.value.code == "recipe.is_data"
    assert "tengtune init" in str(caught.value)


def test_texts_given_with_s_stay_texts(tmp_path: Path) -> None:
    settings = ["name=2026", "model=1", "output.dir=true", "data.files=1,2", "output.prompts=3"]
    recipe = recipes.load(write(tmp_path, SMALLEST), settings)
    assert (recipe.name, recipe.model.path, recipe.output.dir) == ("2026", "1", "true")
    assert (recipe.data.files, recipe.output.prompts) == (["1", "2"], ["3"])
    assert recipes.load(write(tmp_path, SMALLEST), ["model.path=7"]).model.path == "7"


def test_what_names_a_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = recipes.load(write(tmp_path, SMALLEST), ["name=x", "output.prompts=a b,it's"])
    settings = """-s name=x -s 'output.prompts=a b,it'"'"'s'"""
    assert recipe.called() == f"{tmp_path}/run.yaml {settings}"
    assert recipe.called(Path("my run.yaml")) == f"'my run.yaml' {settings}"
    monkeypatch.chdir(tmp_path)
    assert recipe.called() == f"run.yaml {settings}"


def test_a_missing_run_file(tmp_path: Path) -> None:
    with pytest.raises(Problem) as caught:
        recipes.load(tmp_path / "none.yaml")
    assert caught.value.code == "io.not_found"


def test_overrides(tmp_path: Path) -> None:
    path = write(tmp_path, SMALLEST)
    recipe = recipes.load(
        path,
        [
            "train.epochs=1",
            "train.lr=1e-4",
            "data.seq_len=64",
            "model.dtype=float16",
            "lora.targets=q_proj,v_proj",
        ],
    )
    assert (recipe.train.epochs, recipe.train.lr, recipe.data.seq_len) == (1, 1e-4, 64)
    assert (recipe.model.path, recipe.model.dtype, recipe.data.files) == ("/m", "float16", ["a.json"])
    assert recipe.lora.targets == ["q_proj", "v_proj"]


@pytest.mark.parametrize("override", ["train.epochs", "=1", "train..epochs=1"])
def test_overrides_without_a_key(tmp_path: Path, override: str) -> None:
    assert problem(tmp_path, SMALLEST, override).code == "recipe.bad_override"


def test_an_unknown_override_names_itself(tmp_path: Path) -> None:
    fault = problem(tmp_path, SMALLEST, "train.epoch=1")
    assert (fault.code, fault.where) == ("recipe.unknown_key", "--set train.epoch")


def test_about_forty_keys_in_six_groups() -> None:
    names = list(recipes.keys())
    assert len(names) <= 53
    assert {name.split(".")[0] for name in names if "." in name} == {
        "model",
        "data",
        "train",
        "lora",
        "parallel",
        "output",
    }


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda c: st.lists(c) | st.dictionaries(st.text(), c),
        max_leaves=8,
    )
)
def test_any_yaml_is_a_recipe_or_a_problem(tmp_path_factory: pytest.TempPathFactory, value: object) -> None:
    folder = tmp_path_factory.mktemp("yaml")
    path = write(folder, yaml.safe_dump({"model": value, "data": value, "train": value}, allow_unicode=True))
    try:
        recipe = recipes.load(path)
    except Problem as fault:
        assert fault.code.startswith("recipe.")
        assert str(fault)
    else:
        assert isinstance(value, str)
        assert recipe.model.path == value


@pytest.mark.parametrize(
    ("train", "steps", "expected"),
    [
        ("{}", 1000, 50),
        ("{}", 41, 5),
        ("{}", 1, 1),
        ("{method: full}", 100_000, 500),
        ("{method: full}", 100, 10),
        ("{save_every: 7}", 100_000, 7),
    ],
)
def test_how_often_a_run_saves(tmp_path: Path, train: str, steps: int, expected: int) -> None:
    recipe = recipes.load(write(tmp_path, f"{SMALLEST}train: {train}\n"))
    assert recipe.train.save_interval(steps) == expected


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("train: {early_stop: 2}\n", "train.eval_every"),
        ("train:\n  eval_every: 5\n  early_stop: 2\n", "data.heldout"),
    ],
)
def test_early_stopping_needs_something_to_look_at(tmp_path: Path, text: str, key: str) -> None:
    data = "data: {files: a.json, heldout: 0}\n"
    fault = problem(tmp_path, f"model: /m\n{data}{text}")
    assert (fault.code, fault.values["key"]) == ("recipe.early_stop", key)
    assert fault.where is not None
    assert fault.where.endswith(("run.yaml:3", "run.yaml:5"))


def test_changeable_keys_exist() -> None:
    assert set(recipes.CHANGEABLE) <= set(recipes.keys())
