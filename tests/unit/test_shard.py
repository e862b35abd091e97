"""Rank folders: cut and joined again bit for bit, found under every name, refused with the reason."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.shards_lab import expected_part, random_bits, runs
from tests.tiny import tiny_model, tiny_tokenizer

from tengtune.steps.convert import convert, open_job
from tengtune.steps.merge import merge_shards
from tengtune.ui.console import Console
from tengtune.ui.problems import Problem
from tengtune.weights import ckpt_io, safetensors_io
from tengtune.weights import stream as streams
from tengtune.weights.found import open_found
from tengtune.weights.layout import Layout, repeated
from tengtune.weights.rank_files import parse
from tengtune.weights.shard import (
    Shards,
    merged_streams,
    open_shards,
    open_whole,
    sharded_strategy,
    split_streams,
    write_split,
    write_whole,
)
from tengtune.weights.strategy import Strategy, write_merged, write_strategy
from tengtune.weights.stream import stream


def bits(rows: Any) -> bytes:
    return np.asarray(rows[:] if rows.shape else rows).tobytes()


def save(path: Path, tensors: dict[str, np.ndarray]) -> Path:
    """One rank's file."""
    module = ckpt_io if path.suffix == ".ckpt" else safetensors_io
    module.write_file(path, [stream(name, array) for name, array in tensors.items()])
    return path


@settings(max_examples=60, deadline=None)
@given(runs(), st.sampled_from([".ckpt", ".safetensors"]), st.data())
def test_split_and_joined_again_are_the_same_bytes(
    tmp_path_factory: pytest.TempPathFactory,
    run: tuple[Strategy, dict[str, np.ndarray]],
    suffix: str,
    data: st.DataObject,
) -> None:
    strategy, model = run
    out = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)  # most of the time, otherwise
        write_split(split_streams(model, strategy), strategy, out / "ranks", suffix)
    for rank, parts in enumerate(split_streams(model, strategy)):
        layouts = strategy.stages[rank // strategy.devices]
        assert [part.name for part in parts] == list(layouts)
        for part in parts:
            wanted = expected_part(model[part.name], layouts[part.name], rank % strategy.devices)
            assert part.shape == wanted.shape
            assert b"".join(piece.tobytes() for piece in part.pieces()) == wanted.tobytes()
    shards = open_shards(out / "ranks")
    assert shards.strategy.stages == strategy.stages
    write_whole(merged_streams(shards), out / f"whole{suffix}")
    read = open_whole(out / f"whole{suffix}")
    assert read.keys() == model.keys()
    for name, array in model.items():
        assert (read[name].shape, read[name].dtype) == (array.shape, array.dtype)
        assert bits(read[name]) == array.tobytes()
        start, stop = sorted(data.draw(st.tuples(*[st.integers(0, len(array))] * 2)))
        assert shards.tensors[name][start:stop].tobytes() == array[start:stop].tobytes()


def test_joining_takes_small_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "PIECE_BYTES", 64)
    layout = Layout((2, 2), ((1,), (0,)))
    model = {"w": random_bits((32, 6), "<f4", 1)}
    strategy = Strategy(({"w": layout},), 4)
    write_split(split_streams(model, strategy), strategy, tmp_path / "ranks")
    sizes: list[int] = []
    write_whole(merged_streams(open_shards(tmp_path / "ranks")), tmp_path / "w.ckpt", advance=sizes.append)
    assert max(sizes) == 48  # two rows of 6 values
    assert bits(open_whole(tmp_path / "w.ckpt")["w"]) == model["w"].tobytes()


def test_a_number_of_ranks_is_enough_to_split(tmp_path: Path) -> None:
    model = {"w": random_bits((8, 3), "<f4", 1), "odd": random_bits((3,), "<f2", 2)}
    strategy = sharded_strategy(model, 4)
    write_split(split_streams(model, strategy), strategy, tmp_path / "ranks")
    rank = ckpt_io.open_file(tmp_path / "ranks/rank_2/checkpoint_2.ckpt")
    assert bits(rank["w"]) == model["w"][4:6].tobytes()
    assert bits(rank["odd"]) == model["odd"].tobytes()
    joined = open_shards(tmp_path / "ranks").tensors
    assert {name: bits(rows) for name, rows in joined.items()} == {n: a.tobytes() for n, a in model.items()}


def test_a_whole_model_may_be_a_folder(tmp_path: Path) -> None:
    model = {"w": random_bits((8, 3), "<f4", 1), "v": random_bits((4,), "<f4", 2)}
    write_whole([stream(n, a) for n, a in model.items()], tmp_path / "whole", shard_bytes=60)
    assert (tmp_path / "whole" / "model.safetensors.index.json").exists()
    assert {n: bits(rows) for n, rows in open_whole(tmp_path / "whole").items()} == {
        n: a.tobytes() for n, a in model.items()
    }


NAMES = [
    ("checkpoint_3.ckpt", 3, 0, 0, 0, "checkpoint_N.ckpt"),
    ("qwen_rank_7-network.ckpt", 7, 0, 0, 0, "qwen_rank_N-network.ckpt"),
    ("qwen_rank_7_12-network.ckpt", 7, 12, 0, 0, "qwen_rank_N_12-network.ckpt"),
    ("qwen_rank_10-3_250.ckpt", 10, 0, 3, 250, "qwen_rank_N-3_250.ckpt"),
    ("qwen_14b_rank_0_2-3_250.safetensors", 0, 2, 3, 250, "qwen_14b_rank_N_2-3_250.safetensors"),
    ("qwen_rank_0-3_250_breakpoint.ckpt", 0, 0, 3, 250, "qwen_rank_N-3_250_breakpoint.ckpt"),
    ("CKP_1-3_250.ckpt", None, 1, 3, 250, "CKP_1-3_250.ckpt"),
    ("model.safetensors", None, 0, 0, 0, "model.safetensors"),
]


@pytest.mark.parametrize(("file", "rank", "run", "epoch", "step", "label"), NAMES)
def test_names(file: str, rank: int | None, run: int, epoch: int, step: int, label: str) -> None:
    name = parse(file)
    assert (name.rank, name.run, name.epoch, name.step) == (rank, run, epoch, step)
    assert name.label == label


TWO = Strategy(({"w": Layout((2,), ((0,), ()))},), 2)


def run_of_two(folder: Path, files: dict[str, float], strategy: Strategy = TWO) -> Path:
    """A run of 2 ranks of which each file (a path below `folder`) holds one half, filled with its value."""
    for file, value in files.items():
        save(folder / file, {"w": np.full((2, 3), value, "<f4")})
    write_strategy(strategy, folder / "strategy")
    return folder


def halves(shards: Shards) -> list[float]:
    """What the two halves are filled with."""
    return [float(value) for value in shards.tensors["w"][:][::2, 0]]


PLACES = [
    {"rank_0/checkpoint_0.ckpt": 1, "rank_1/checkpoint_1.ckpt": 2},
    {"rank_0/qwen_rank_0-network.ckpt": 1, "rank_1/qwen_rank_1-network.ckpt": 2},
    {"rank_0/any.safetensors": 1, "rank_1/any.safetensors": 2},
    {"checkpoint_0.ckpt": 1, "checkpoint_1.ckpt": 2},
    {"qwen_rank_0-1_5.ckpt": 1, "qwen_rank_1-1_5.ckpt": 2},
    {"checkpoint/rank_0/a.ckpt": 1, "checkpoint/rank_1/a.ckpt": 2},
    {f"checkpoint{kind}/rank_{rank}/a.ckpt": rank + 1 for kind in ("_network", "") for rank in (0, 1)},
]


@pytest.mark.parametrize("files", PLACES, ids=lambda files: next(iter(files)))
def test_every_place_a_run_leaves_its_files_in(tmp_path: Path, files: dict[str, float]) -> None:
    shards = open_shards(run_of_two(tmp_path, files))
    assert halves(shards) == [1, 2]
    assert shards.notes == []


def test_of_reruns_the_newest_by_number_is_taken(tmp_path: Path) -> None:
    files = {}
    for value, run in ((1, ""), (2, "_2"), (3, "_10"), (4, "_9")):
        files |= {f"rank_{rank}/qwen_rank_{rank}{run}-network.ckpt": value for rank in (0, 1)}
    shards = open_shards(run_of_two(tmp_path, files))
    assert halves(shards) == [3, 3]
    assert shards.save.label == "qwen_rank_N_10-network.ckpt"
    ((code, values),) = shards.notes
    assert code == "shard.older"
    assert (
        values["older"] == "qwen_rank_N_9-network.ckpt, qwen_rank_N_2-network.ckpt, qwen_rank_N-network.ckpt"
    )


def test_of_steps_the_newest_complete_is_taken(tmp_path: Path) -> None:
    files = {
        f"rank_{r}/qwen_rank_{r}-{tail}.ckpt": v for r in (0, 1) for v, tail in ((1, "2_9"), (2, "10_1"))
    }
    files["rank_0/qwen_rank_0_1-1_3.ckpt"] = 3  # a later run that was killed while it saved
    shards = open_shards(run_of_two(tmp_path, files))
    assert halves(shards) == [2, 2]
    assert [code for code, _ in shards.notes] == ["shard.incomplete", "shard.older"]
    assert shards.notes[0][1] == {"save": "qwen_rank_N_1-1_3.ckpt", "ranks": "1"}


def refused(folder: Path, strategy: Path | None = None) -> Problem:
    with pytest.raises(Problem) as caught:
        for tensor in open_shards(folder, strategy).tensors.values():
            tensor[:]
    assert caught.value.exit_code == 2
    assert caught.value.texts()["fix"]
    return caught.value


REFUSED: list[tuple[str, dict[str, float], str, dict[str, object]]] = [
    ("nothing", {"rank_0/readme.txt": 0}, "shard.none", {}),
    ("a rank is missing", {"rank_0/a.ckpt": 1}, "shard.missing_rank", {"missing": "1", "found": "0"}),
    (
        "ranks of different steps",
        {"rank_0/q_rank_0-1_5.ckpt": 1, "rank_1/q_rank_1-1_4.ckpt": 2},
        "shard.different_steps",
        {
            "groups": "\n".join(
                f"q_rank_N-1_{s}.ckpt: rank_{r}/q_rank_{r}-1_{s}.ckpt" for r, s in ((0, 5), (1, 4))
            )
        },
    ),
    (
        "ranks of different runs",
        {"rank_0/q_rank_0_1-network.ckpt": 1, "rank_1/q_rank_1-network.ckpt": 2},
        "shard.different_steps",
        {},
    ),
    (
        "a file in another rank's folder",
        {"rank_0/q_rank_0-1_5.ckpt": 1, "rank_1/q_rank_0-1_5.ckpt": 2},
        "shard.wrong_folder",
        {"file": 0, "folder": 1},
    ),
    (
        "more ranks than the strategy",
        {"rank_0/a.ckpt": 1, "rank_1/a.ckpt": 2, "rank_2/a.ckpt": 3},
        "shard.other_ranks",
        {"beyond": "2"},
    ),
    (
        "two kinds of files",
        {f"rank_{rank}/{name}": 1 for rank in (0, 1) for name in ("a.ckpt", "a.safetensors")},
        "shard.several_kinds",
        {"kinds": "a.ckpt\na.safetensors"},
    ),
    (
        "two folders of one rank",
        {"rank_0/a.ckpt": 1, "rank_00/a.ckpt": 3, "rank_1/a.ckpt": 2},
        "shard.same_rank",
        {"rank": 0, "files": "rank_0/a.ckpt\nrank_00/a.ckpt"},
    ),
    *(
        (
            f"two files of one rank in a folder, {twin}",
            {"rank_0/q_rank_0-1_1.ckpt": 1, f"rank_0/{twin}.ckpt": 3, "rank_1/q_rank_1-1_1.ckpt": 2},
            "shard.same_rank",
            {"rank": 0},
        )
        for twin in ("q_rank_0-01_1", "q_rank_00-1_1", "q_rank_0-1_01", "q_rank_0_0-1_1")
    ),
    (
        "two files of one rank side by side",
        {"q_rank_0-1_1.ckpt": 1, "q_rank_00-1_1.ckpt": 3, "q_rank_1-1_1.ckpt": 2},
        "shard.same_rank",
        {"rank": 0},
    ),
]


@pytest.mark.parametrize(("files", "code", "values"), [r[1:] for r in REFUSED], ids=[r[0] for r in REFUSED])
def test_what_cannot_be_joined_is_refused(
    tmp_path: Path, files: dict[str, float], code: str, values: dict[str, object]
) -> None:
    problem = refused(run_of_two(tmp_path, files))
    assert problem.code == code
    assert values.items() <= problem.values.items()


def test_books_of_the_last_save_must_agree(tmp_path: Path) -> None:
    run_of_two(tmp_path, {f"rank_{rank}/q_rank_{rank}-network.ckpt": 1 for rank in (0, 1)})
    for rank, step in enumerate((100, 100)):
        book = {"last_epoch": 1, "last_step": step, "last_ckpt_file": "x"}
        (tmp_path / f"rank_{rank}/meta.json").write_text(json.dumps(book))
    open_shards(tmp_path)
    (tmp_path / "rank_1/meta.json").write_text(json.dumps(book | {"last_step": 90}))
    problem = refused(tmp_path)
    assert problem.code == "shard.different_steps"
    assert "last_epoch 1, last_step 90: rank_1/q_rank_1-network.ckpt" in str(problem.values["groups"])
    (tmp_path / "rank_1/meta.json").write_text("{")
    assert refused(tmp_path).code == "shard.bad_meta"


@pytest.mark.parametrize("counter", ["epoch_num", "step_num", "global_step"])
def test_counters_in_the_files_must_agree(tmp_path: Path, counter: str) -> None:
    for rank, step in ((0, 7), (1, 8)):
        tensors = {"w": np.ones((2, 3), "<f4"), counter: np.array([step], "<i4")}
        save(tmp_path / f"rank_{rank}/a.ckpt", tensors)
    write_strategy(TWO, tmp_path / "strategy")
    problem = refused(tmp_path)
    assert problem.code == "shard.different_steps"
    assert f"{counter} 7: rank_0/a.ckpt" in str(problem.values["groups"])


def test_states_and_counters_are_left_out(tmp_path: Path) -> None:
    states = [
        "adam_m.w",
        "adam_v.w",
        "moment1.w",
        "accu_grads.w",
        "loss_scale",
        "epoch_num",
        "step_num",
        "learning_rate",
    ]
    for rank in (0, 1):
        tensors = {
            "w": np.full((2, 3), rank, "<f4"),
            **{name: np.full(2, rank * 0, "<f4") for name in states},
        }
        scalars = {"some_scalar": np.array(rank, "<f4"), "comment": np.array("hi")}
        save(tmp_path / f"rank_{rank}/a.ckpt", tensors | scalars)
    layouts = {"w": TWO.stages[0]["w"], "adam_m.w": Layout((2,), ((0,),)), "adam_v.w": Layout((2,), ((0,),))}
    write_strategy(Strategy((layouts,), 2), tmp_path / "strategy")
    shards = open_shards(tmp_path)
    assert list(shards.tensors) == ["w"]
    assert sorted(shards.left_out) == sorted([*states, "some_scalar", "comment"])
    assert shards.notes == []
    for rank in (0, 1):
        save(tmp_path / f"rank_{rank}/a.ckpt", {"adam_m.w": np.ones(2, "<f4")})
    assert refused(tmp_path).code == "shard.no_weights"


def test_a_name_that_the_strategy_cuts_is_no_counter(tmp_path: Path) -> None:
    """A rank that has a single value for it is damaged; the weight is not to be left out for that."""
    whole = {"w": np.ones((2, 3), "<f4")}
    save(tmp_path / "rank_0/a.ckpt", whole | {"b": np.array(1, "<f4")})
    save(tmp_path / "rank_1/a.ckpt", whole | {"b": np.ones((2, 4), "<f4")})
    cut = Layout((2,), ((0,), ()))
    write_strategy(Strategy(({"w": cut, "b": cut},), 2), tmp_path / "strategy")
    problem = refused(tmp_path)
    assert problem.code == "shard.does_not_fit"
    assert "b: shape or type differs between ranks: rank 0 [] float32, rank 1 [2, 4]" in str(problem)
    save(tmp_path / "rank_1/a.ckpt", whole | {"b": np.array(1, "<f4")})
    assert "b: shape [], but the strategy is for 2 axes" in str(refused(tmp_path))


def test_a_scalar_on_one_rank_that_is_none_on_another_is_no_counter(tmp_path: Path) -> None:
    for rank, values in enumerate((np.array(1, "<f4"), np.ones((2, 4), "<f4"))):
        save(tmp_path / f"rank_{rank}/a.ckpt", {"w": np.ones((2, 3), "<f4"), "b": values})
    write_strategy(TWO, tmp_path / "strategy")
    assert "b: shape or type differs between ranks" in str(refused(tmp_path))


def four(tmp_path: Path, tensors: list[dict[str, np.ndarray]], layouts: dict[str, Layout]) -> Path:
    """A run of as many ranks as there are dicts, in one stage."""
    for rank, held in enumerate(tensors):
        save(tmp_path / f"rank_{rank}/a.safetensors", held)
    write_strategy(Strategy((layouts,), len(tensors)), tmp_path / "strategy")
    return tmp_path


def test_copies_must_agree_in_every_bit(tmp_path: Path) -> None:
    layouts = {"w": Layout((2, 2), ((0,), ()))}  # ranks 0 and 2, and 1 and 3, hold the same
    parts = [{"w": np.full((2, 3), rank % 2, "<f4")} for rank in range(4)]
    parts[0]["w"][0, 0] = parts[2]["w"][0, 0] = np.nan
    folder = four(tmp_path, parts, layouts)
    assert np.isnan(open_shards(folder).tensors["w"][:]).sum() == 1
    parts[3]["w"][1, 2] = 1.25
    problem = refused(four(tmp_path, parts, layouts))
    assert problem.code == "shard.copies_differ"
    assert problem.values == {"tensor": "w", "ranks": "1 / 3", "count": 1, "size": 6, "gap": "0.25"}
    whole = open_shards(folder, compare=False).tensors["w"][:]
    assert whole[3, 2] == 1.0  # the first rank's


@pytest.mark.parametrize("copy", [(0, 1), (1, 0), (2, 1)])
def test_a_copy_of_another_rank_s_file_is_told(tmp_path: Path, copy: tuple[int, int]) -> None:
    """Ranks 0 and 2, and 1 and 3, hold the same by right; b is all zeros, as an adapter's is at first."""
    layouts = {"w": Layout((2, 2), ((0,), ())), "b": Layout((2, 2), ((0,), ()))}
    zeros = np.zeros((2, 2), "<f4")
    parts = [{"w": random_bits((2, 3), "<i4", rank % 2), "b": zeros} for rank in range(4)]
    assert open_shards(four(tmp_path, parts, layouts)).tensors["w"].shape == (4, 3)
    there, here = copy
    parts[here] = parts[there]
    problem = refused(four(tmp_path, parts, layouts))
    assert problem.code == "shard.copied"
    assert problem.values["ranks"] == "0 / 1"
    files = [problem.values[name] for name in ("one", "other")]
    assert files == [str(tmp_path / f"rank_{rank}" / "a.safetensors") for rank in (0, 1)]


def test_parts_of_one_value_are_no_copies(tmp_path: Path) -> None:
    parts = [{"w": np.zeros((2, 3), "<f4")}, {"w": np.zeros((2, 3), "<f4")}]
    assert open_shards(four(tmp_path, parts, {"w": Layout((2,), ((0,), ()))})).tensors["w"].shape == (4, 3)


def test_one_rank_s_own_folder_is_told_as_such(tmp_path: Path) -> None:
    """It was read as a model of one rank, half as wide."""
    run = tmp_path / "my run"
    run_of_two(run, {"checkpoint/rank_0/a.ckpt": 1, "checkpoint/rank_1/a.ckpt": 2})
    assert refused(run / "checkpoint" / "rank_0").code == "shard.none"
    for rank in (0, 1):
        save(run / f"checkpoint/rank_{rank}/qwen_rank_{rank}-network.ckpt", {"w": np.ones((2, 3), "<f4")})
        (run / f"checkpoint/rank_{rank}/a.ckpt").unlink()
        problem = refused(run / "checkpoint" / f"rank_{rank}")
        assert problem.code == "shard.rank_part"
        assert f"--shards {shlex.quote(str(run / 'checkpoint'))} --out" in problem.texts("en")["fix"]
    assert halves(open_shards(run / "checkpoint")) == [1, 1]


def test_a_tensor_the_strategy_does_not_know_must_be_alike_everywhere(tmp_path: Path) -> None:
    layouts = {"w": Layout((2,), ((0,),))}
    parts = [{"w": np.ones(2, "<f4"), "rope.freqs": np.arange(3, dtype="<f4")} for _ in range(2)]
    folder = four(tmp_path, parts, layouts)
    assert open_shards(folder).tensors["rope.freqs"][:].tolist() == [0, 1, 2]
    parts[1]["rope.freqs"][0] = 5
    four(tmp_path, parts, layouts)
    assert refused(folder).code == "shard.copies_differ"
    with pytest.raises(Problem):  # there is no telling whether it is cut, so it is compared in any case
        open_shards(folder, compare=False).tensors["rope.freqs"][:]


def test_a_tensor_of_two_stages_is_compared_across_them(tmp_path: Path) -> None:
    layout = Layout((2,), ((0,), ()))
    model = {"tied": random_bits((4, 3), "<f4", 1)}
    strategy = Strategy(({"tied": layout}, {"tied": layout}), 2)
    write_split(split_streams(model, strategy), strategy, tmp_path / "ranks")
    assert bits(open_shards(tmp_path / "ranks").tensors["tied"]) == model["tied"].tobytes()
    path = tmp_path / "ranks/rank_3/checkpoint_3.ckpt"
    save(path, {"tied": model["tied"][2:] * 2})
    problem = refused(tmp_path / "ranks")
    assert (problem.code, problem.values["ranks"]) == ("shard.copies_differ", "0, 1 / 2, 3")


def test_files_without_what_others_hold_are_fine(tmp_path: Path) -> None:
    """MindSpore's remove_redundancy keeps each part on one rank only."""
    layouts = {"w": Layout((2, 2), ((0,),)), "norm": repeated(1, 4)}
    held = [("w", 2), ("norm", 3), ("other", 1), ("w", 2)]
    parts = [{name: np.full(count, rank, "<f4")} for rank, (name, count) in enumerate(held)]
    tensors = open_shards(four(tmp_path, parts, layouts)).tensors
    assert tensors["w"][:].tolist() == [0, 0, 3, 3]
    assert tensors["norm"][:].tolist() == [1, 1, 1]


MISFITS: list[tuple[str, list[dict[str, np.ndarray]], dict[str, Layout], str]] = [
    (
        "shapes of ranks differ",
        [{"w": np.ones(2, "<f4")}, {"w": np.ones(3, "<f4")}],
        {"w": Layout((2,), ((0,),))},
        "w: shape or type differs between ranks: rank 0 [2] float32, rank 1 [3] float32",
    ),
    (
        "types of ranks differ",
        [{"w": np.ones(2, "<f4")}, {"w": np.ones(2, "<f2")}],
        {"w": Layout((2,), ((0,),))},
        "rank 1 [2] float16",
    ),
    (
        "another number of axes",
        [{"w": np.ones((2, 2), "<f4")}] * 2,
        {"w": Layout((2,), ((0,),))},
        "w: shape [2, 2], but the strategy is for 1 axes",
    ),
    (
        "a part is in no file",
        [{"w": np.ones(2, "<f4")}, {"v": np.ones(2, "<f4")}],
        {"w": Layout((2,), ((0,),))},
        "w: 1 part is in no file, the first at (1,)",
    ),
    (
        "the strategy of another model",
        [{"w": np.ones(2, "<f4")}] * 2,
        {"v": Layout((2,), ((0,),))},
        "none of the tensors (w, ...) is in the strategy",
    ),
    (
        "a matrix without the hidden size",
        [{"embed.weight": np.ones((9, 8), "<f4"), "o.weight": np.ones((4, 8), "<f4")}] * 2,
        {"embed.weight": repeated(2, 2), "o.weight": Layout((2,), ((), (0,)))},
        "o.weight: put together it would be [4, 16], without an axis of 8 (embed.weight)",
    ),
    (
        "widths that differ",
        [{"embed.weight": np.ones((9, 8), "<f4"), "norm.weight": np.ones(8, "<f4")}] * 2,
        {"embed.weight": Layout((2,), ((), (0,))), "norm.weight": repeated(1, 2)},
        "of different widths: ",
    ),
]


@pytest.mark.parametrize(("parts", "layouts", "words"), [m[1:] for m in MISFITS], ids=[m[0] for m in MISFITS])
def test_a_strategy_that_does_not_fit_is_refused(
    tmp_path: Path, parts: list[dict[str, np.ndarray]], layouts: dict[str, Layout], words: str
) -> None:
    problem = refused(four(tmp_path, parts, layouts))
    assert problem.code == "shard.does_not_fit"
    assert words in problem.texts()["why"]
    assert "2 ranks" in problem.texts()["why"]


def test_of_a_rank_alone_the_place_of_no_other_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One file of 65,536: what is missing is found without a look at every rank, once for each layout."""
    layouts = {
        str(dim): Layout((2,) * 16, ((dim,), tuple(d for d in range(16) if d != dim))) for dim in range(9)
    }
    asked = []
    place = Layout.place
    monkeypatch.setattr(Layout, "place", lambda self, rank: asked.append(rank) or place(self, rank))
    save(tmp_path / "rank_0" / "checkpoint_0.ckpt", {"0": np.ones((1, 1), "<f4")})
    write_merged(Strategy((layouts,), 2**16), tmp_path / "strategy" / "all.ckpt")
    problem = refused(tmp_path)
    assert problem.code == "shard.missing_rank"
    assert str(problem.values["missing"]).startswith("1, 2, 3, ")
    assert len(asked) < 100


def test_an_adapter_s_matrices_need_no_hidden_size(tmp_path: Path) -> None:
    layouts = {"norm.weight": repeated(1, 2), "wq.mindpet_delta_lora_b": Layout((2,), ((0,), ()))}
    parts = [{"norm.weight": np.ones(8, "<f4"), "wq.mindpet_delta_lora_b": np.ones((3, 2), "<f4")}] * 2
    assert open_shards(four(tmp_path, parts, layouts)).tensors["wq.mindpet_delta_lora_b"].shape == (6, 2)


@pytest.mark.parametrize("adapter", [True, False])
def test_an_adapter_in_the_joined_file_is_told_with_what_merges_it(tmp_path: Path, adapter: bool) -> None:
    """The lines bring what they say: the model and the adapter as files of their own, and both in one."""
    model = tiny_tokenizer(tiny_model(tmp_path / "model", num_hidden_layers=1))
    convert(open_job(model, "mindspore"), tmp_path / "ms", Console("quiet"))
    held = {name: rows[:] for name, rows in open_found(tmp_path / "ms").tensors.items()}
    linear = "model.layers.0.attention.wo"
    size = held[f"{linear}.weight"].shape[0]
    if adapter:
        held[f"{linear}.mindpet_delta_lora_a"] = np.full((2, size), 0.5, "<f4")
        held[f"{linear}.mindpet_delta_lora_b"] = np.full((size, 2), 0.25, "<f4")
    four(tmp_path / "run", [held] * 2, {name: repeated(array.ndim, 2) for name, array in held.items()})
    err = io.StringIO()
    figures = merge_shards(
        tmp_path / "run", tmp_path / "run/strategy", tmp_path / "a b.ckpt", Console(err=err)
    )
    lines = re.findall("`(tengtune [^`]*)`", err.getvalue())
    assert (figures["adapter_tensors"], len(lines)) == ((2, 3) if adapter else (0, 0))
    if not adapter:
        return
    for line in lines:
        words = [{"MODEL": "model", "ALPHA": "4"}.get(word, word) for word in shlex.split(line)[1:]]
        command = [sys.executable, "-m", "tengtune", *words]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    name = "model.layers.0.self_attn.o_proj.weight"
    before, after = (open_found(tmp_path / where).tensors[name][:] for where in ("model", "tuned"))
    change = np.asarray(after, "<f4") - np.asarray(before, "<f4")
    np.testing.assert_allclose(change, np.full((size, size), 2 * 0.5 * 0.25 * 4 / 2), atol=0.01)


def test_parameters_that_were_not_saved_are_told(tmp_path: Path) -> None:
    layouts = {"w": Layout((2,), ((0,),)), "frozen": repeated(1, 2), "adam_m.w": Layout((2,), ((0,),))}
    shards = open_shards(four(tmp_path, [{"w": np.ones(2, "<f4")}] * 2, layouts))
    assert shards.notes == [("shard.absent", {"count": 1, "names": "frozen"})]


def test_one_rank_needs_no_strategy(tmp_path: Path) -> None:
    save(tmp_path / "rank_0/a.ckpt", {"w": np.ones((2, 2), "<f4")})
    assert open_shards(tmp_path).tensors["w"][:].tolist() == [[1, 1], [1, 1]]
    save(tmp_path / "rank_1/a.ckpt", {"w": np.ones((2, 2), "<f4")})
    assert refused(tmp_path).code == "shard.no_strategy"


def test_a_damaged_rank_is_named(tmp_path: Path) -> None:
    folder = run_of_two(tmp_path, {f"rank_{rank}/a.ckpt": 1 for rank in (0, 1)})
    path = tmp_path / "rank_1/a.ckpt"
    path.write_bytes(path.read_bytes()[:-1])
    assert refused(folder).where == str(path)


CANNOT = [
    ({"w": repeated(1, 2)}, {"w": (4,), "v": (4,)}, "v: the strategy does not say where it goes"),
    ({"w": repeated(1, 2), "v": repeated(1, 2)}, {"w": (4,)}, "v: in the strategy, not in the model"),
    ({"w": Layout((2,), ((0,),))}, {"w": (5,)}, "w: [5] cannot be cut into [2] even pieces"),
    ({"w": Layout((2,), ((0,),))}, {"w": (4, 4)}, "w: [4, 4] cannot be cut into [2] even pieces"),
]


@pytest.mark.parametrize(("layouts", "shapes", "words"), CANNOT)
def test_a_model_that_does_not_fit_is_not_cut(
    layouts: dict[str, Layout], shapes: dict[str, tuple[int, ...]], words: str
) -> None:
    model = {name: np.ones(shape, "<f4") for name, shape in shapes.items()}
    with pytest.raises(Problem) as caught:
        split_streams(model, Strategy((layouts,), 2))
    assert caught.value.code == "shard.cannot_split"
    assert words in caught.value.texts()["why"]


def test_a_strategy_s_optimizer_states_are_no_part_of_the_model() -> None:
    layouts = {"w": repeated(1, 2), "adam_m.w": repeated(1, 2)}
    parts = split_streams({"w": np.ones(4, "<f4")}, Strategy((layouts,), 2))
    assert [[part.name for part in rank] for rank in parts] == [["w"], ["w"]]
