"""`tengtune convert`, `weights show` and `weights diff` as commands."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import load_file, save_file
from tests.qwen1 import to_qwen1
from tests.tiny import tiny_model

from tengtune.cli.convert import command as convert_command
from tengtune.cli.weights import command as weights_command
from tengtune.ui.problems import Problem
from tengtune.weights.adapter import write_adapter


def tengtune(*arguments: object, lang: str = "en") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tengtune", "--lang", lang, *map(str, arguments)],
        capture_output=True,
        text=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
        check=False,
    )


def in_process(command: object, *arguments: object) -> tuple[int, str]:
    """Exit code and output of a command in this process; its Problem is raised."""
    done = CliRunner().invoke(command, [str(a) for a in arguments])  # type: ignore[arg-type]
    if isinstance(done.exception, Problem):
        raise done.exception
    return done.exit_code, done.output


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny_model(tmp_path / "model")


def test_there_and_back_as_commands(tmp_path: Path, model: Path) -> None:
    done = tengtune("convert", model, tmp_path / "ms", "--to", "mindspore", "--layout", "qkv-concat")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{tmp_path / 'ms'}\n"  # results only
    assert "layout hf -> ckpt, layout qkv-concat; 27 tensors" in done.stderr
    done = tengtune("convert", tmp_path / "ms", tmp_path / "back", "--to", "hf", "--json")
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result["event"], result["folder"], result["layout"]) == ("result", str(tmp_path / "back"), "hf")
    assert (result["from_layout"], result["saturated"], result["tensors"]) == ("qkv-concat", [], 27)
    done = tengtune("weights", "diff", model, tmp_path / "back")
    assert (done.returncode, done.stdout) == (
        0,
        "27 tensors have the same values, 0 differ, 0 are in one only\n",
    )


def test_nothing_heavy_is_imported(tmp_path: Path, model: Path) -> None:
    """Neither torch nor MindSpore nor transformers, for any of the commands."""
    code = (
        "import sys\nfrom tengtune.cli.main import _guarded\n"
        "codes = [_guarded(line.split()) for line in sys.argv[1:]]\n"
        "heavy = {'torch', 'mindspore', 'transformers', 'safetensors', 'peft'} & set(sys.modules)\n"
        "print(codes, sorted(heavy))"
    )
    commands = [
        f"convert {model} {tmp_path}/ms --to mindspore -q",
        f"convert {tmp_path}/ms {tmp_path}/back --to hf -q --dtype fp16",
        f"weights show {tmp_path}/ms -q",
        f"weights diff {model} {tmp_path}/back -q",
    ]
    done = subprocess.run(
        [sys.executable, "-c", code, *commands], capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines()[-1] == "[0, 0, 0, 1] []", done.stderr


def test_a_dry_run_writes_nothing(tmp_path: Path, model: Path) -> None:
    _, said = in_process(
        convert_command, model, tmp_path / "out", "--to", "mindspore", "--dtype", "bf16", "--dry-run"
    )
    assert "bfloat16" in said
    assert f"would write 222,336 B to {tmp_path / 'out'}" in said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["{model}"], "convert.options"),
        (["{model}", "{out}"], "convert.no_to"),
        (["{model}", "{out}", "--dtype", "bf16"], "convert.no_to"),
        (["{model}", "{out}", "--to", "mindspore", "--shard-size", "1MB"], "convert.one_file"),
        (["{model}", "{out}", "--to", "mindspore", "--shard-size", "1MB", "--dry-run"], "convert.one_file"),
        (["{model}", "{out}", "--to", "hf", "--force"], "convert.options"),
        (["run.yaml", "--to", "hf"], "convert.options"),
        (["{model}", "{out}.ckpt", "--to", "mindspore"], "convert.out_is_file"),
        (["{model}", "{model}", "--to", "mindspore"], "convert.out_exists"),
        (["{model}", "{out}", "--to", "hf", "--shard-size", "huge"], "merge.bad_size"),
        (["{out}", "{out}2", "--to", "hf"], "io.not_found"),
    ],
)
def test_options_that_do_not_go_together(
    tmp_path: Path, model: Path, arguments: list[str], code: str
) -> None:
    filled = [a.format(model=model, out=tmp_path / "out") for a in arguments]
    with pytest.raises(Problem) as caught:
        in_process(convert_command, *filled)
    assert (caught.value.code, caught.value.exit_code) == (code, 2)
    assert not (tmp_path / "out").exists()


def test_what_it_shows(tmp_path: Path) -> None:
    base = to_qwen1(tiny_model(tmp_path / "s", num_key_value_heads=4, dtype="float16"), tmp_path / "base")
    in_process(convert_command, base, tmp_path / "ms", "--to", "mindspore")
    code, said = in_process(weights_command, "show", tmp_path / "ms", "--tensors")
    assert code == 0
    for text in ("qwen1", "mindformers", "model.ckpt", "float16", "2 / 64 / 384", "119,488", "its own"):
        assert text in said, text
    assert "transformer.layers.0.attention.wq.weight" in said
    _, said = in_process(weights_command, "show", base, "--json")
    told = json.loads(said.splitlines()[-1])
    assert told["parameters"] == sum(a.size for a in load_file(base / "model.safetensors").values())
    assert (told["layout"], told["layers"], told["hidden"], told["vocab"]) == ("hf", 2, 64, 384)
    assert (told["tied"], told["checksums"], told["dtypes"]) == ("own", "none", {"float16": 119488})


def test_tied_and_unknown_weights_are_shown_too(tmp_path: Path) -> None:
    tied = tiny_model(tmp_path / "tied", tie=True)
    assert json.loads(in_process(weights_command, "show", tied, "--json")[1])["tied"] == "none"
    weights = load_file(tied / "model.safetensors")
    before = json.loads(in_process(weights_command, "show", tied, "--json")[1])["parameters"]
    save_file({**weights, "lm_head.weight": weights["model.embed_tokens.weight"]}, tied / "model.safetensors")
    told = json.loads(in_process(weights_command, "show", tied, "--json")[1])
    assert (told["tied"], told["parameters"]) == ("copy", before)
    save_file({"bert.weight": np.ones(3, "f4")}, tmp_path / "other.safetensors")
    told = json.loads(in_process(weights_command, "show", tmp_path / "other.safetensors", "--json")[1])
    assert (told["family"], told["layout"], told["tied"]) == (None, None, "unknown")


def test_differences_are_counted(tmp_path: Path, model: Path) -> None:
    in_process(convert_command, model, tmp_path / "ms", "--to", "mindspore-safetensors", "--layout", "mcore")
    weights = load_file(model / "model.safetensors")
    changed = weights["model.layers.1.self_attn.v_proj.weight"]
    changed[3, 5] += 0.25
    changed[9, 1] -= 0.5
    gap = float(
        np.abs(
            changed[9, 1]
            - load_file(model / "model.safetensors")["model.layers.1.self_attn.v_proj.weight"][9, 1]
        )
    )
    weights["model.norm.weight"] = weights["model.norm.weight"].astype(np.float64)
    save_file(weights, model / "model.safetensors")
    code, said = in_process(weights_command, "diff", model, tmp_path / "ms", "--json")
    told = json.loads(said.splitlines()[-1])
    assert code == 1
    assert [(d["name"], d["count"]) for d in told["differ"]] == [
        ("model.layers.1.self_attn.v_proj.weight", 2)
    ]
    assert told["differ"][0]["gap"] == gap
    assert told["other_dtype"] == ["model.norm.weight"]
    assert (told["same"], told["only_first"], told["only_second"]) == (26, [], [])
    del weights["model.norm.weight"]
    save_file({**weights, "extra": np.ones(2, "f4")}, model / "model.safetensors")
    code, said = in_process(weights_command, "diff", tmp_path / "ms", model)
    assert code == 1
    assert "only in the first" in said
    assert "only in the second" in said


def test_other_dtypes_of_the_same_values_are_no_difference(tmp_path: Path) -> None:
    half = tiny_model(tmp_path / "half", dtype="float16")
    in_process(convert_command, half, tmp_path / "wide", "--to", "mindspore", "--dtype", "float32")
    code, said = in_process(weights_command, "diff", half, tmp_path / "wide")
    assert code == 0
    assert "same values, other dtype" in said


def test_a_checkpoint_without_config_is_compared_with_a_folder(tmp_path: Path, model: Path) -> None:
    in_process(convert_command, model, tmp_path / "ms", "--to", "mindspore")
    (tmp_path / "alone").mkdir()
    alone = (tmp_path / "ms/model.ckpt").rename(tmp_path / "alone/x.ckpt")
    assert in_process(weights_command, "diff", alone, model)[0] == 0
    assert in_process(weights_command, "diff", alone, alone)[0] == 0


def test_in_chinese(tmp_path: Path, model: Path) -> None:
    done = tengtune("convert", model, tmp_path / "ms", "--to", "mindspore", lang="zh")
    assert "转换完成，已回读比对" in done.stderr
    done = tengtune("weights", "show", tmp_path / "ms", lang="zh")
    assert "布局" in done.stdout


@pytest.mark.slow
def test_of_a_run_the_merged_model_is_converted(tmp_path: Path) -> None:
    from tests.tiny import tiny_tokenizer

    tiny_tokenizer(tiny_model(tmp_path / "m", max_position_embeddings=512))
    records = [{"instruction": f"say {i}", "output": f"it is {i}"} for i in range(8)]
    (tmp_path / "d.json").write_text(json.dumps(records))
    text = f"model: {tmp_path}/m\ndata:\n  files: {tmp_path}/d.json\n  seq_len: 64\ntrain: {{max_steps: 1}}\n"
    (tmp_path / "run.yaml").write_text(text + "backend: torch\n")
    assert tengtune("train", tmp_path / "run.yaml").returncode == 0
    done = tengtune("convert", tmp_path / "run.yaml")
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "runs/run"
    assert done.stdout.splitlines()[-1] == str(folder / "mindspore")
    assert tengtune("weights", "diff", folder / "merged", folder / "mindspore").returncode == 0
    assert json.loads((folder / "convert.json").read_text())["figures"]["layout"] == "mindformers"
    again = tengtune("convert", tmp_path / "run.yaml")
    assert "up to date" in again.stderr


@pytest.mark.parametrize("name", ["out.partial", "out.old.partial", "out.lock"])
@pytest.mark.parametrize("kind", ["model", "adapter", "config", "linked"])
def test_no_input_goes_where_the_output_is_made(tmp_path: Path, model: Path, name: str, kind: str) -> None:
    """The names that a conversion uses on its way may be those of its input, or lead to it."""
    place, given = tmp_path / name, [tmp_path / name]
    if kind == "adapter":
        linear = "model.layers.1.mlp.up_proj"
        shapes = {"A": (2, 64), "B": (96, 2)}
        tensors = {f"{linear}.lora_{n}.weight": np.ones(s, "f4") for n, s in shapes.items()}
        write_adapter(place, tensors, rank=2, alpha=1, targets=["up_proj"], base="x")
    else:
        shutil.copytree(model, place)
    if kind == "config":
        given = [model, "--config", place]
    if kind == "linked":
        given = [tmp_path / "hub"]
        given[0].mkdir()
        for file in place.iterdir():
            (given[0] / file.name).symlink_to(file)
    before = {file.name: file.read_bytes() for file in place.iterdir()}
    with pytest.raises(Problem) as caught:
        in_process(convert_command, given[0], tmp_path / "out", *given[1:], "--to", "mindspore", "-q")
    assert (caught.value.code, caught.value.where) == ("convert.out_is_input", str(place))
    assert {file.name: file.read_bytes() for file in place.iterdir()} == before
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("out", [".", "..", "new/..", "here"])
def test_the_folder_one_is_in_is_no_output(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch, out: str
) -> None:
    here = tmp_path / "around" / "here"
    here.mkdir(parents=True)
    monkeypatch.chdir(here)
    with pytest.raises(Problem) as caught:
        in_process(convert_command, model, here if out == "here" else out, "--to", "hf", "-q")
    assert caught.value.code == ("convert.out_exists" if out == ".." else "io.here")
    assert os.listdir(tmp_path / "around") == ["here"]
    assert os.listdir(here) == []


LONG = 2**53
APART = [
    ("int64", [LONG], [LONG + 1], "int64", 1.0),
    ("int64", [-(2**62)], [-(2**62) - 1], "int64", 1.0),
    ("uint64", [2**64 - 1], [2**64 - 2], "uint64", 1.0),
    ("int64", [2**63 - 1], [2**63], "uint64", 1.0),
    ("int64", [LONG + 1], [LONG], "float32", 1.0),
    ("float32", 1.5, 1.0, "float32", 0.5),  # single values, without an axis
    ("int64", LONG, LONG + 1, "int64", 1.0),
]


@pytest.mark.parametrize(("one", "first", "second", "other", "gap"), APART)
def test_values_that_differ_by_little_differ(
    tmp_path: Path, one: str, first: object, second: object, other: str, gap: float
) -> None:
    """Long integers are more than float64 can tell apart, and a tensor may have no axis."""
    for name, value, dtype in (("a", first, one), ("b", second, other)):
        save_file({"w": np.ones(2, "f4"), "x": np.array(value, dtype)}, tmp_path / f"{name}.safetensors")
    paths = [tmp_path / "a.safetensors", tmp_path / "b.safetensors"]
    code, said = in_process(weights_command, "diff", *paths, "--json")
    result = json.loads(said.splitlines()[-1])
    assert (code, [(e["name"], e["gap"], e["count"]) for e in result["differ"]]) == (1, [("x", gap, 1)])
    code, said = in_process(weights_command, "diff", paths[0], paths[0], "--json")
    assert (code, json.loads(said.splitlines()[-1])["same"]) == (0, 2)


def test_what_is_not_compared_is_told(tmp_path: Path) -> None:
    weights = {"w": np.ones(2, "f4")}
    save_file({**weights, "adam_m.w": np.ones(2, "f4")}, tmp_path / "a.safetensors")
    save_file({**weights, "odd": np.array(3, "f4")}, tmp_path / "b.safetensors")
    paths = [tmp_path / "a.safetensors", tmp_path / "b.safetensors"]
    code, said = in_process(weights_command, "diff", *paths)
    assert code == 0
    for path, name in zip(paths, ("adam_m.w", "odd"), strict=True):
        assert f"{path}: 1 optimizer states and counters are not compared ({name})" in said
