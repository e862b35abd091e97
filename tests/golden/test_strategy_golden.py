"""Checkpoints and strategy files that mindspore.transform_checkpoints merged and cut (see index.json)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.mindspore_files import strategy_map

from tengtune.ui.problems import Problem
from tengtune.weights.shard import (
    Shards,
    merged_streams,
    open_file,
    open_shards,
    open_whole,
    split_streams,
    write_split,
    write_whole,
)
from tengtune.weights.strategy import Strategy, read_strategy, write_merged, write_strategy

HERE = Path(__file__).parent / "strategy"
LAYOUTS: dict[str, Any] = json.loads((HERE / "index.json").read_text(encoding="utf-8"))["layouts"]
TRAPS = HERE / "traps"
KINDS = ["ckpt", "safetensors"]


@pytest.fixture(scope="module")
def full() -> dict[str, np.ndarray]:
    with np.load(HERE / "full.npz") as archive:
        return dict(archive)


def strategy_file(name: str) -> Path:
    return HERE / name / LAYOUTS[name]["strategy_for_merge"]


def refused(shards: Path, strategy: Path | None) -> Problem:
    """The Problem that opening the shards and reading every tensor ends in."""
    with pytest.raises(Problem) as caught:
        for tensor in open_shards(shards, strategy).tensors.values():
            tensor[:]
    assert caught.value.exit_code == 2
    assert caught.value.texts()["why"]
    return caught.value


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", LAYOUTS)
def test_merged_is_the_full_model(tmp_path: Path, full: dict[str, np.ndarray], name: str, kind: str) -> None:
    shards = open_shards(HERE / name / f"shards_{kind}", strategy_file(name))
    assert sorted(shards.save.files) == list(range(LAYOUTS[name]["ranks"]))
    assert shards.notes == []
    write_whole(merged_streams(shards), tmp_path / f"whole.{kind}")
    read, golden = open_whole(tmp_path / f"whole.{kind}"), HERE / name / f"full_{kind}/rank_0/full.{kind}"
    assert read.keys() == full.keys()
    for tensor, values in full.items():
        assert np.array_equal(read[tensor][:], values.astype(LAYOUTS[name]["dtype"])), tensor
        assert read[tensor].dtype == LAYOUTS[name]["dtype"]
    if kind == "ckpt" and LAYOUTS[name]["pipeline_stages"] == 1:  # MindSpore puts the last stage first
        assert (tmp_path / "whole.ckpt").read_bytes() == golden.read_bytes()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", LAYOUTS)
def test_split_are_the_shards(tmp_path: Path, name: str, kind: str) -> None:
    strategy = read_strategy(strategy_file(name))
    source = open_whole(HERE / name / f"full_{kind}/rank_0/full.{kind}")
    write_split(split_streams(source, strategy), strategy, tmp_path / "out", f".{kind}")
    for rank in range(LAYOUTS[name]["ranks"]):
        ours = open_file(tmp_path / f"out/rank_{rank}/checkpoint_{rank}.{kind}")
        theirs = open_file(HERE / name / f"shards_{kind}/rank_{rank}/checkpoint_{rank}.{kind}")
        assert ours.keys() == theirs.keys()
        assert all(np.array_equal(ours[tensor][:], theirs[tensor][:]) for tensor in theirs)
    again = open_shards(tmp_path / "out")  # by the strategy files written beside the ranks
    assert all(np.array_equal(again.tensors[tensor][:], source[tensor][:]) for tensor in source)


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_are_read_as_they_were_written(name: str) -> None:
    strategy = read_strategy(HERE / name / "strategy")
    info = LAYOUTS[name]
    assert (strategy.ranks, len(strategy.stages)) == (info["ranks"], info["pipeline_stages"])
    for tensor, wanted in info["layouts"].items():
        layout = strategy.stages[wanted["stage"]][tensor]
        assert list(layout.dev_matrix) == wanted["dev_matrix"]
        assert [dims[0] if dims else -1 for dims in layout.tensor_map] == wanted["tensor_map"]
        assert layout.opt_step == wanted["opt_weight_shard_step"]
        assert layout.opt_size == wanted["opt_weight_shard_size"]
        assert layout.local_shape(tuple(wanted["full_shape"])) == tuple(wanted["local_shape"])


def test_all_forms_of_a_strategy_are_one() -> None:
    parts, merged = read_strategy(HERE / "pp2_tp2/strategy"), read_strategy(HERE / "pp2_tp2/merged")
    assert parts.stages == merged.stages
    protobuf, as_json = (
        read_strategy(HERE / "dp2_opt/strategy"),
        read_strategy(HERE / "dp2_opt/strategy_json"),
    )
    assert protobuf.stages == as_json.stages


@pytest.mark.parametrize("name", LAYOUTS)
def test_written_strategies_say_the_same_to_mindspore_s_classes(tmp_path: Path, name: str) -> None:
    strategy = read_strategy(HERE / name / "strategy")
    write_strategy(strategy, tmp_path)
    for path in sorted((HERE / name / "strategy").iterdir()):
        ours, theirs = (strategy_map((folder / path.name).read_bytes()) for folder in (tmp_path, path.parent))
        assert list(ours.parallel_layout_item) == list(theirs.parallel_layout_item)
        assert ours.current_stage == theirs.current_stage
        stages = [m.parallel_strategy_item[0].parallel_strategys.stage for m in (ours, theirs)]
        assert stages[0] == stages[1]
    write_merged(strategy, tmp_path / "merged.ckpt")
    assert read_strategy(tmp_path / "merged.ckpt").stages == strategy.stages
    if name == "pp2_tp2":
        ours = strategy_map((tmp_path / "merged.ckpt").read_bytes())
        theirs = strategy_map((HERE / name / "merged/merged_ckpt_strategy.ckpt").read_bytes())
        by_name = [{item.param_name: item for item in m.parallel_layout_item} for m in (ours, theirs)]
        assert by_name[0] == by_name[1]


def test_trap_the_strategy_of_another_run_of_as_many_cards() -> None:
    strategy = TRAPS / "stale_strategy_same_cards/strategy"
    problem = refused(HERE / "dp2_opt/shards_ckpt", strategy)
    assert problem.code == "shard.does_not_fit"
    assert "layers.0.attention.wo.weight: put together it would be [4, 16]" in problem.texts()["why"]


def test_trap_strategies_of_two_runs_in_one_folder() -> None:
    problem = refused(HERE / "dp2_opt/shards_ckpt", TRAPS / "stale_strategy_mixed/strategy")
    assert problem.code == "strategy.disagree"
    assert problem.values["first"] == "ckpt_strategy_rank_0.ckpt, ckpt_strategy_rank_1.ckpt"
    assert "ckpt_strategy_rank_2.ckpt" in str(problem.values["second"])


def test_trap_a_missing_rank_whose_parts_another_holds(full: dict[str, np.ndarray]) -> None:
    shards: Shards = open_shards(TRAPS / "missing_rank/shards_ckpt", HERE / "tp2_dp2/strategy")
    assert [code for code, _ in shards.notes] == ["shard.replaced"]
    assert shards.notes[0][1]["ranks"] == "1"
    assert all(np.array_equal(shards.tensors[name][:], values) for name, values in full.items())


def test_trap_a_missing_rank_whose_parts_are_gone() -> None:
    problem = refused(TRAPS / "missing_rank_opt/shards_ckpt", HERE / "dp2_opt/strategy")
    assert problem.code == "shard.missing_rank"
    assert problem.values["missing"] == "1"


def test_trap_reruns_are_told_apart_by_number(full: dict[str, np.ndarray]) -> None:
    shards = open_shards(TRAPS / "stale_shard_same_folder/shards_ckpt", HERE / "dp2_opt/strategy")
    assert shards.save.label == "qwen_rank_N_10-network.ckpt"
    assert shards.notes == [
        (
            "shard.older",
            {"save": "qwen_rank_N_10-network.ckpt", "older": "qwen_rank_N_2-network.ckpt"},
        )
    ]
    assert all(np.array_equal(shards.tensors[name][:], values) for name, values in full.items())


def test_trap_no_strategy() -> None:
    assert refused(TRAPS / "missing_rank_opt/shards_ckpt", HERE / "ckpt").code == "io.not_found"
    assert refused(TRAPS / "missing_rank/shards_ckpt", None).code == "shard.no_strategy"


@pytest.mark.parametrize(
    ("file", "code"),
    [
        ("ckpt_strategy_rank_0.ckpt", "shard.other_ranks"),
        ("ckpt_strategy_rank_3.ckpt", "strategy.stages_missing"),
    ],
)
def test_trap_the_strategy_of_one_stage(file: str, code: str) -> None:
    # MindSpore merges 14 of the 28 parameters without a word.
    assert refused(HERE / "pp2_tp2/shards_ckpt", HERE / "pp2_tp2/strategy" / file).code == code


@pytest.mark.parametrize("strategy", LAYOUTS)
@pytest.mark.parametrize("shards", LAYOUTS)
def test_any_strategy_with_any_shards_is_refused_or_right(
    full: dict[str, np.ndarray], shards: str, strategy: str
) -> None:
    plan: Strategy = read_strategy(HERE / strategy / "strategy")
    try:
        opened = open_shards(HERE / shards / "shards_ckpt", HERE / strategy / "strategy")
        read = {name: tensor[:] for name, tensor in opened.tensors.items()}
    except Problem as problem:
        assert shards != strategy
        assert problem.texts()["fix"]
    else:
        assert plan.ranks == LAYOUTS[shards]["ranks"]
        dtype = LAYOUTS[shards]["dtype"]
        assert all(np.array_equal(read[name], values.astype(dtype)) for name, values in full.items())
