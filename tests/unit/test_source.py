"""Model folders: one file or shards, what is missing, mixed or misshapen, and what is tolerated."""

from __future__ import annotations

import json
import os
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from safetensors.torch import load_file as load_torch
from safetensors.torch import save_file as save_torch
from tests.tiny import tiny_config, tiny_model, tiny_weights

from tengtune.models.spec import from_config, from_folder
from tengtune.ui.problems import Problem
from tengtune.weights.source import open_source

INDEX = "model.safetensors.index.json"
ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
Weights = dict[str, np.ndarray]


def shard(folder: Path) -> dict[str, str]:
    """Cut a one-file folder in two shards, by the safetensors library; the index's map."""
    weights = load_torch(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    weight_map = {name: (ONE, TWO)[i % 2] for i, name in enumerate(weights)}
    for file in (ONE, TWO):
        save_torch({n: t for n, t in weights.items() if weight_map[n] == file}, folder / file)
    write_index(folder, weight_map)
    return weight_map


def write_index(folder: Path, weight_map: object) -> None:
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def rewrite(folder: Path, **changes: np.ndarray | None) -> None:
    """Replace (or with None drop) tensors of a one-file folder."""
    weights: Weights = load_file(folder / "model.safetensors") | {
        n: a for n, a in changes.items() if a is not None
    }
    for name in [n for n, a in changes.items() if a is None]:
        del weights[name]
    save_file(weights, folder / "model.safetensors")


def problem(folder: Path) -> Problem:
    with pytest.raises(Problem) as caught:
        open_source(folder, from_folder(folder))
    assert caught.value.exit_code == 2
    return caught.value


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("sharded", [False, True])
def test_every_tensor_arrives_with_its_bits(tmp_path: Path, dtype: str, sharded: bool) -> None:
    folder = tiny_model(tmp_path / "m", dtype=dtype, seed=7)
    if sharded:
        shard(folder)
    spec = from_config(tiny_config())
    source = open_source(folder, spec)
    expected = tiny_weights(spec, seed=7)
    assert list(source) == [name for name, _ in spec.tensors()]
    for name, values in expected.items():
        kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
        assert source[name].dtype == kind
        assert np.array_equal(source[name], values.astype(kind)), name


def test_links_as_a_download_cache_makes_them_are_followed(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path / "m")
    (tmp_path / "blobs").mkdir()
    os.rename(folder / "model.safetensors", tmp_path / "blobs" / "abc")
    (folder / "model.safetensors").symlink_to("../blobs/abc")
    assert len(open_source(folder, from_folder(folder))) == 27


def test_one_file_counts_before_an_index(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path / "m")
    write_index(folder, {"model.norm.weight": "gone.safetensors"})
    assert len(open_source(folder, from_folder(folder))) == 27


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path / "m")
    shard(folder)
    (folder / TWO).unlink()
    fault = problem(folder)
    assert fault.code == "weights.missing_shards"
    assert (fault.values["count"], fault.values["total"], fault.values["missing"]) == (1, 2, TWO)


@pytest.mark.parametrize(
    "name",
    ["../other.safetensors", "/etc/passwd", "sub/x.safetensors", "..", "model.bin", "x\x00.safetensors", 5],
)
def test_an_index_reaches_nothing_but_the_folders_own_files(tmp_path: Path, name: object) -> None:
    folder = tiny_model(tmp_path / "m")
    os.rename(folder / "model.safetensors", tmp_path / "other.safetensors")
    write_index(folder, {"model.norm.weight": name})
    assert problem(folder).code == "weights.bad_index"


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"weight_map": {}}', '{"weight_map": [1]}', "{"])
def test_an_index_that_says_nothing_is_a_problem(tmp_path: Path, content: str) -> None:
    folder = tiny_model(tmp_path / "m")
    (folder / "model.safetensors").unlink()
    (folder / INDEX).write_text(content)
    assert problem(folder).code == "weights.bad_index"


def test_a_tensor_in_another_shard_than_the_index_says(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path / "m")
    weight_map = shard(folder)
    old = weight_map["model.norm.weight"]
    new = TWO if old == ONE else ONE
    write_index(folder, {**weight_map, "model.norm.weight": new})
    fault = problem(folder)
    assert fault.code == "weights.wrong_shard"
    assert fault.values["tensors"] == f"model.norm.weight: {new} -> {old}"


def test_a_tensor_the_index_does_not_know(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path / "m")
    weight_map = shard(folder)
    where = weight_map.pop("lm_head.weight")
    write_index(folder, weight_map)
    assert problem(folder).values["tensors"] == f"lm_head.weight: - -> {where}"


def test_the_same_tensor_in_two_shards(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path / "m")
    shard(folder)
    both = load_file(folder / ONE) | load_file(folder / TWO)
    save_file({**load_file(folder / TWO), "lm_head.weight": both["lm_head.weight"]}, folder / TWO)
    save_file({**load_file(folder / ONE), "lm_head.weight": both["lm_head.weight"]}, folder / ONE)
    fault = problem(folder)
    assert fault.code == "weights.twice"
    assert fault.values["tensor"] == "lm_head.weight"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"model.norm.weight": None}, ["model.norm.weight: missing"]),
        ({"model.norm.weight": np.zeros(63, "f4")}, ["model.norm.weight: shape [63], wanted [64]"]),
        ({"model.norm.weight": np.zeros((64, 1), "f4")}, ["model.norm.weight: shape [64, 1], wanted [64]"]),
        ({"model.norm.weight": np.zeros(64, "i1")}, ["model.norm.weight: dtype int8"]),
        (
            {"model.layers.2.mlp.up_proj.weight": np.zeros((96, 64), "f4")},
            ["layers.2.mlp.up_proj.weight: unknown"],
        ),
        (
            {"score.weight": np.zeros(2, "f4"), "lm_head.weight": None},
            ["lm_head.weight: missing", "score.weight: unk"],
        ),
    ],
)
def test_weights_that_do_not_fit_the_config(
    tmp_path: Path, changes: dict[str, np.ndarray | None], expected: list[str]
) -> None:
    folder = tiny_model(tmp_path / "m")
    rewrite(folder, **changes)
    fault = problem(folder)
    assert fault.code == "weights.mismatch"
    assert all(text in str(fault.values["faults"]) for text in expected)


def test_a_head_that_is_nowhere_is_told_with_the_way_out(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path / "m")
    rewrite(folder, **{"lm_head.weight": None})
    fault = problem(folder)
    assert (fault.code, fault.values["name"]) == ("weights.no_head", "lm_head.weight")


def test_long_lists_are_cut_and_counted(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path / "m", num_hidden_layers=3)
    config = tiny_config(num_hidden_layers=1)
    (folder / "config.json").write_text(json.dumps(config))
    lines = str(problem(folder).values["faults"]).splitlines()
    assert len(lines) == 6
    assert lines[-1] == "... and 19 more"  # 12 tensors a layer, two layers too many


def test_rope_frequencies_of_older_files_are_passed_over(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path / "m")
    rewrite(folder, **{"model.layers.0.self_attn.rotary_emb.inv_freq": np.zeros(8, "f4")})
    assert len(open_source(folder, from_folder(folder))) == 27


def test_a_tied_head_may_be_stored_if_it_is_the_embedding(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path / "m", tie=True)
    embedding = load_file(folder / "model.safetensors")["model.embed_tokens.weight"]
    rewrite(folder, **{"lm_head.weight": embedding.copy()})
    assert "lm_head.weight" not in open_source(folder, from_folder(folder))
    embedding[-1, -1] += 1
    rewrite(folder, **{"lm_head.weight": embedding})
    assert problem(folder).code == "weights.tied_head"


@pytest.mark.parametrize(
    ("files", "code"),
    [
        ([], "weights.none"),
        (["consolidated.00.pth"], "weights.other_names"),
        (["pytorch_model-00001-of-00002.bin"], "weights.other_names"),
    ],
)
def test_a_folder_without_weights(tmp_path: Path, files: list[str], code: str) -> None:
    folder = tiny_model(tmp_path / "m")
    (folder / "model.safetensors").unlink()
    for name in files:
        (folder / name).write_bytes(b"x")
    fault = problem(folder)
    assert fault.code == code
    assert (files or ["config.json"])[0] in str(fault.values["found"])


# PyTorch's .bin files


def to_torch(folder: Path, shards: int = 1) -> Path:
    """Keep a folder's weights in .bin files instead of safetensors."""
    weights = load_torch(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    files = [f"pytorch_model-{i + 1:05}-of-{shards:05}.bin" for i in range(shards)]
    if shards == 1:
        files = ["pytorch_model.bin"]
    else:
        weight_map = {name: files[i % shards] for i, name in enumerate(weights)}
        (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}))
    for i, file in enumerate(files):
        torch.save({name: weights[name] for name in list(weights)[i::shards]}, folder / file)
    return folder


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_same_tensors_from_bin_files(tmp_path: Path, shards: int, dtype: str) -> None:
    expected = open_source(tiny_model(tmp_path / "a", dtype=dtype), from_config(tiny_config()))
    folder = to_torch(tiny_model(tmp_path / "b", dtype=dtype), shards)
    found = open_source(folder, from_folder(folder))
    assert list(found) == list(expected)
    for name, array in expected.items():
        assert found[name].dtype == array.dtype
        assert np.array_equal(found[name], array), name


def test_safetensors_count_before_bin(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path / "m")
    (folder / "pytorch_model.bin").write_bytes(b"never opened")
    assert len(open_source(folder, from_folder(folder))) == 27


def test_a_bin_shard_that_is_missing_or_elsewhere(tmp_path: Path) -> None:
    folder = to_torch(tiny_model(tmp_path / "m"), 2)
    two = folder / "pytorch_model-00002-of-00002.bin"
    two.rename(folder / "other.bin")
    assert problem(folder).values["missing"] == two.name
    index = folder / "pytorch_model.bin.index.json"
    for name in ("../other.bin", "model.safetensors"):
        index.write_text(json.dumps({"weight_map": {"model.norm.weight": name}}))
        assert problem(folder).code == "weights.bad_index"


def test_a_head_tied_in_a_bin_file_is_one_storage(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path / "m", tie=True)
    weights = load_torch(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    torch.save(weights, folder / "pytorch_model.bin")
    assert "lm_head.weight" not in open_source(folder, from_folder(folder))


def test_a_bin_file_that_would_run_something(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path / "m")
    (folder / "model.safetensors").unlink()
    torch.save({"w": np.random.default_rng}, folder / "pytorch_model.bin")
    fault = problem(folder)
    assert (fault.code, fault.where) == ("weights.torch_code", str(folder / "pytorch_model.bin"))
