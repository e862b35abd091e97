"""Merging: what travels along, what is refused before anything is written, and the step in a run."""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.tiny import tiny_model, tiny_tokenizer

from tengtune import engine, files
from tengtune import recipe as recipes
from tengtune.models.spec import from_folder
from tengtune.pipeline import step
from tengtune.recipe import Recipe
from tengtune.steps.merge import merge_adapter
from tengtune.ui.console import Console
from tengtune.ui.problems import Problem
from tengtune.weights import stream as streams
from tengtune.weights.adapter import write_adapter
from tengtune.weights.merge import open_merge, place_full, write_merge
from tengtune.weights.source import open_source

Q = "model.layers.0.self_attn.q_proj"


@pytest.fixture
def base(tmp_path: Path) -> Path:
    folder = tiny_tokenizer(tiny_model(tmp_path / "base"))
    (folder / "generation_config.json").write_text('{"eos_token_id": 381}')
    return folder


def make_adapter(folder: Path, a: float = 0.0, b: float = 0.0, linear: str = Q, out: int = 64) -> Path:
    """A rank-1 adapter that adds 2 x a x b to every weight of one linear."""
    tensors = {
        f"{linear}.lora_A.weight": np.full((1, 64), a, np.float32),
        f"{linear}.lora_B.weight": np.full((out, 1), b, np.float32),
    }
    write_adapter(folder, tensors, rank=1, alpha=2.0, targets=[linear], base="the/base")
    return folder


def merge(base: Path, adapter: Path, out: Path, **options: Any) -> Problem | None:
    try:
        write_merge(open_merge(base, adapter), out, **options)
    except Problem as problem:
        return problem
    return None


def set_weight(folder: Path, name: str, value: float, dtype: str = "float32") -> None:
    """Fill one tensor of a one-file folder."""
    weights = load_file(folder / "model.safetensors")
    weights[name] = np.full(weights[name].shape, value, dtype)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def test_the_one_linear_changes_and_nothing_else(tmp_path: Path, base: Path) -> None:
    assert merge(base, make_adapter(tmp_path / "a", 0.5, 0.25), tmp_path / "out") is None
    before, after = load_file(base / "model.safetensors"), load_file(tmp_path / "out" / "model.safetensors")
    for name, array in before.items():
        expected = array + np.float32(0.25) if name == f"{Q}.weight" else array
        assert np.array_equal(after[name], expected), name


def test_blocks_of_rows_give_the_same_as_one(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = make_adapter(tmp_path / "a", 0.5, 0.3)
    merge(base, adapter, tmp_path / "whole")
    monkeypatch.setattr(streams, "PIECE_BYTES", 1000)  # 3 rows of 64
    sizes: list[int] = []
    merge(base, adapter, tmp_path / "blocks", advance=sizes.append)
    assert max(sizes) == 1000
    assert (tmp_path / "blocks" / "model.safetensors").read_bytes() == (
        tmp_path / "whole" / "model.safetensors"
    ).read_bytes()


def test_config_and_tokenizer_travel_as_files_and_nothing_else_does(tmp_path: Path, base: Path) -> None:
    (base / "train.json").write_text("private")
    (base / "pytorch_model.bin").write_bytes(b"pickle")
    (base / "tokenizer.json").rename(tmp_path / "elsewhere.json")
    (base / "tokenizer.json").symlink_to(tmp_path / "elsewhere.json")
    os.mkfifo(base / "merges.txt")
    merge(base, make_adapter(tmp_path / "a"), tmp_path / "out")
    out = tmp_path / "out"
    names = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json"}
    assert {f.name for f in out.iterdir()} == names
    assert not any(f.is_symlink() for f in out.iterdir())
    for name in names - {"model.safetensors"}:
        assert (out / name).read_bytes() == (base / name).read_bytes()


def test_a_tied_head_is_not_written_twice(tmp_path: Path) -> None:
    base = tiny_model(tmp_path / "base", tie=True)
    merge(base, make_adapter(tmp_path / "a", 1, 1), tmp_path / "out")
    assert "lm_head.weight" not in load_file(tmp_path / "out" / "model.safetensors")


@pytest.mark.parametrize(
    ("tie", "linear", "out", "message"),
    [
        (
            False,
            "model.layers.2.self_attn.q_proj",
            64,
            "model.layers.2.self_attn.q_proj.weight: the base model has no",
        ),
        (False, Q, 32, f"{Q}.weight: the adapter is made for [32, 64], the base model has [64, 64]"),
        (False, "model.layers.0.mlp.down_proj", 64, "made for [64, 64], the base model has [64, 96]"),
        (
            False,
            "model.norm",
            64,
            "model.norm.weight: the adapter is made for [64, 64], the base model has [64]",
        ),
        (True, "lm_head", 384, "lm_head.weight: the base model's head is tied"),
    ],
)
def test_an_adapter_of_another_model_is_refused(
    tmp_path: Path, tie: bool, linear: str, out: int, message: str
) -> None:
    base = tiny_model(tmp_path / "base", tie=tie)
    fault = merge(base, make_adapter(tmp_path / "a", linear=linear, out=out), tmp_path / "out")
    assert fault is not None
    assert fault.code == "merge.does_not_fit"
    assert message in str(fault.values["faults"])
    assert fault.values["base"] == "the/base"
    assert not (tmp_path / "out").exists()


def test_too_little_space_is_said_before_anything_is_written(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = make_adapter(tmp_path / "a")
    weights = (base / "model.safetensors").stat().st_size
    monkeypatch.setattr(files, "free_bytes", lambda path: weights)
    monkeypatch.setattr(files, "atomic_folder", lambda path: pytest.fail("something was written"))
    fault = merge(base, adapter, tmp_path / "out")
    assert fault is not None
    assert (fault.code, fault.exit_code) == ("merge.no_space", 3)


def test_what_a_killed_merge_left_does_not_count_as_used_space(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = tmp_path / "out.partial"
    left.mkdir()
    monkeypatch.setattr(files, "free_bytes", lambda path: 0 if left.exists() else 10**9)
    assert merge(base, make_adapter(tmp_path / "a"), tmp_path / "out") is None


def test_float16_saturates_and_names_the_tensor(tmp_path: Path) -> None:
    base = tiny_model(tmp_path / "base", dtype="float16")
    set_weight(base, f"{Q}.weight", -60000, "float16")
    job = open_merge(base, make_adapter(tmp_path / "a", 100, -50))
    write_merge(job, tmp_path / "out")
    assert job.saturated == [f"{Q}.weight"]
    merged = load_file(tmp_path / "out" / "model.safetensors")[f"{Q}.weight"]
    assert merged.dtype == np.float16
    assert np.all(merged == -65504)


def test_a_tensor_trained_as_a_whole_saturates_too(tmp_path: Path) -> None:
    base = tiny_model(tmp_path / "base", dtype="float16")
    norm = "model.layers.1.post_attention_layernorm.weight"
    other = norm.replace(".1.", ".0.")
    whole = {norm: np.full(64, 1e5, "f4"), other: np.ones(64, "f4")}
    write_adapter(tmp_path / "a", whole, rank=1, alpha=1, targets=["x"], base="x")
    job = open_merge(base, tmp_path / "a")
    write_merge(job, tmp_path / "out")
    assert job.saturated == [norm]
    assert np.all(load_file(tmp_path / "out" / "model.safetensors")[norm] == 65504)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_that_are_not_finite_leave_no_model(tmp_path: Path, dtype: str, value: float) -> None:
    base = tiny_model(tmp_path / "base", dtype=dtype)
    set_weight(base, f"{Q}.weight", value, dtype)
    fault = merge(base, make_adapter(tmp_path / "a", 1, 1), tmp_path / "out")
    assert fault is not None
    assert (fault.code, fault.exit_code) == ("merge.not_finite", 4)
    assert fault.values["faults"] == f"{Q}.weight: 4096 values"
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_values_of_the_base_that_are_not_finite_are_named(tmp_path: Path, dtype: str) -> None:
    base = tiny_model(tmp_path / "base", dtype=dtype)
    weights = load_file(base / "model.safetensors")
    weights["model.norm.weight"][5] = np.nan
    weights["lm_head.weight"][2, 2] = -np.inf
    save_file(weights, base / "model.safetensors", metadata={"format": "pt"})
    err = io.StringIO()
    figures = merge_adapter(
        base, make_adapter(tmp_path / "a", 1, 1), tmp_path / "out", Console("quiet", err=err)
    )
    assert sorted(figures["not_finite"]) == ["lm_head.weight", "model.norm.weight"]
    assert "the base model itself holds NaN" in err.getvalue()
    assert "model.norm.weight" in err.getvalue()


@pytest.mark.parametrize("where", ["base", "a", "."])
def test_the_output_may_not_be_an_input(tmp_path: Path, base: Path, where: str) -> None:
    adapter = make_adapter(tmp_path / "a")
    fault = merge(base, adapter, tmp_path / where)
    assert fault is not None
    assert fault.code == "merge.out_is_input"
    assert (base / "model.safetensors").exists()
    assert (adapter / "adapter_model.safetensors").exists()


@pytest.fixture
def full(tmp_path: Path) -> Path:
    """Fully tuned weights in two shards, without config.json, as the train step leaves them."""
    folder = tiny_model(tmp_path / "full", seed=9)
    weights = load_file(folder / "model.safetensors")
    shutil.rmtree(folder)
    folder.mkdir()
    weight_map = {name: f"model-0000{i % 2 + 1}-of-00002.safetensors" for i, name in enumerate(weights)}
    for file in set(weight_map.values()):
        save_file({n: a for n, a in weights.items() if weight_map[n] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder


def test_fully_tuned_weights_are_linked_not_copied(tmp_path: Path, base: Path, full: Path) -> None:
    (full / "notes.txt").write_text("private")
    assert place_full(base, full, tmp_path / "out")
    out = tmp_path / "out"
    for file in full.glob("model*"):
        assert (out / file.name).stat().st_ino == file.stat().st_ino
    assert {f.name for f in out.iterdir()} - {f.name for f in full.glob("model*")} == {
        "config.json",
        "generation_config.json",
        "tokenizer.json",
    }
    merged, tuned = open_source(out, from_folder(out)), tiny_model(tmp_path / "again", seed=9)
    for name, array in load_file(tuned / "model.safetensors").items():
        assert np.array_equal(merged[name], array)


def test_without_hard_links_they_are_copied(
    tmp_path: Path, base: Path, full: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr(os, "link", refuse)
    assert not place_full(base, full, tmp_path / "out")
    for file in full.iterdir():
        assert (tmp_path / "out" / file.name).read_bytes() == file.read_bytes()


def test_fully_tuned_weights_with_nan_are_refused(tmp_path: Path, base: Path) -> None:
    full = tiny_model(tmp_path / "full")
    set_weight(full, "model.norm.weight", np.nan)
    with pytest.raises(Problem) as caught:
        place_full(base, full, tmp_path / "out")
    assert caught.value.code == "merge.not_finite"
    assert not (tmp_path / "out").exists()


@pytest.fixture
def run(tmp_path: Path, base: Path) -> Callable[..., Recipe]:
    """A recipe in tmp_path whose run folder is tmp_path/runs/run."""

    def make(method: str = "lora") -> Recipe:
        text = f"model: {base}\ndata: a.json\ntrain: {{method: {method}}}\n"
        (tmp_path / "run.yaml").write_text(text)
        recipe = recipes.load(tmp_path / "run.yaml")
        engine.prepare(recipe, fresh=True)
        return recipe

    return make


def execute(recipe: Recipe, mode: str = "json") -> tuple[dict[str, Any], str]:
    """Run the merge step; its figures and everything it said."""
    out = io.StringIO()
    figures = engine.execute(step("merge"), recipe, Console(mode, out, out))  # type: ignore[arg-type]
    return figures, out.getvalue()


def test_the_step_merges_once_and_again_after_a_new_adapter(run: Callable[..., Recipe]) -> None:
    recipe = run()
    make_adapter(recipe.folder / "adapter", 0.5, 0.25)
    figures, said = execute(recipe)
    assert (figures["adapted"], figures["tensors"], figures["scale"]) == (1, 27, 2.0)
    assert "engine.skipped" not in said
    first = load_file(recipe.folder / "merged" / "model.safetensors")[f"{Q}.weight"]
    assert "engine.skipped" in execute(recipe)[1]
    make_adapter(recipe.folder / "adapter", 0.5, 0.75)
    execute(recipe)
    second = load_file(recipe.folder / "merged" / "model.safetensors")[f"{Q}.weight"]
    assert np.allclose(second - first, 0.5, atol=1e-6)


def test_the_step_says_where_float16_was_too_small(run: Callable[..., Recipe], base: Path) -> None:
    recipe = run()
    tiny_model(base, dtype="float16")
    make_adapter(recipe.folder / "adapter", 1000, 1000)
    figures, said = execute(recipe, "quiet")
    assert figures["saturated"] == [f"{Q}.weight"]
    assert "warning: float16 holds at most 65504" in said
    assert f"{Q}.weight" in said


def test_the_step_places_fully_tuned_weights(run: Callable[..., Recipe], full: Path) -> None:
    recipe = run("full")
    full.rename(recipe.folder / "full")
    figures, _ = execute(recipe)
    assert figures == {"linked": True}
    assert (recipe.folder / "merged" / "config.json").exists()
    assert "engine.skipped" in execute(recipe)[1]
