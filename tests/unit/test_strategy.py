"""Strategy files: round trips through MindSpore's own protobuf classes, forms, faults."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from tests.mindspore_files import protobuf, strategy_map
from tests.shards_lab import runs

from tengtune.ui.problems import Problem
from tengtune.weights import wire
from tengtune.weights.layout import Layout, repeated
from tengtune.weights.strategy import Strategy, read_strategy, write_merged, write_strategy

LAYOUT = {
    "dev_matrix": [2, 4],
    "tensor_map": [0, -1],
    "field": 0,
    "opt_weight_shard_step": 4,
    "opt_weight_shard_size": 2,
}


def refused(path: Path) -> Problem:
    with pytest.raises(Problem) as caught:
        read_strategy(path)
    assert caught.value.exit_code == 2
    assert caught.value.texts()["fix"]
    return caught.value


def as_message(item: Any, name: str, layout: dict[str, Any]) -> None:
    """Fill a ParallelLayoutItem as MindSpore does: nested maps as several, an empty one after a single."""
    item.param_name = name
    out = item.parallel_layouts
    out.dev_matrix.add().dim.extend(layout["dev_matrix"])
    maps = layout["tensor_map"]
    maps = [maps] if all(type(dim) is int for dim in maps) else maps
    for dims in [*maps, *([[]] if len(maps) == 1 and maps is layout["tensor_map"] else [])]:
        out.tensor_map.add().dim.extend(dims)
    out.param_split_shape.add()
    out.indices_offset.add()
    out.field = layout["field"]
    out.opt_weight_shard_step = layout["opt_weight_shard_step"]
    out.opt_weight_shard_size = layout["opt_weight_shard_size"]


def strategy_bytes(layouts: dict[str, dict[str, Any]], stage: int = 0, node: bool = True) -> bytes:
    """A strategy file made with MindSpore's classes."""
    message = protobuf("node_strategy_pb2").ParallelStrategyMap(current_stage=stage)
    if node:
        item = message.parallel_strategy_item.add(node_name="MatMul-op0")
        item.parallel_strategys.stage = stage
        item.parallel_strategys.parallel_strategy.add().dim.extend([2, 4])
    for name, layout in layouts.items():
        as_message(message.parallel_layout_item.add(), name, layout)
    raw: bytes = message.SerializeToString()
    return raw


@settings(max_examples=40, deadline=None)
@given(runs())
def test_what_we_write_is_read_by_mindspore_s_classes_and_by_us(
    tmp_path_factory: pytest.TempPathFactory, run: tuple[Strategy, Any]
) -> None:
    strategy, _ = run
    folder = tmp_path_factory.mktemp("strategy")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)  # most of the time, otherwise
        write_strategy(strategy, folder)
    assert len(list(folder.iterdir())) == strategy.ranks
    for rank in range(strategy.ranks):
        message = strategy_map((folder / f"ckpt_strategy_rank_{rank}.ckpt").read_bytes())
        stage = rank // strategy.devices
        assert message.parallel_strategy_item[0].parallel_strategys.stage == stage
        expected = strategy.stages[stage]
        assert [item.param_name for item in message.parallel_layout_item] == list(expected)
        for item, layout in zip(message.parallel_layout_item, expected.values(), strict=True):
            found = item.parallel_layouts
            assert list(found.dev_matrix[0].dim) == list(layout.dev_matrix)
            maps = [list(entry.dim) for entry in found.tensor_map]
            if len(maps) > 1:
                assert [dims for dims in maps if dims] == [list(dims) or [-1] for dims in layout.tensor_map]
            else:
                assert maps == [[dims[0] if dims else -1 for dims in layout.tensor_map]]
            assert found.field == 0
            assert found.opt_weight_shard_step == layout.opt_step
            assert found.opt_weight_shard_size == layout.opt_size
    read = read_strategy(folder)
    assert (read.stages, read.devices, read.ranks) == (strategy.stages, strategy.devices, strategy.ranks)
    write_merged(strategy, folder / "all.ckpt")
    names = [
        item.param_name for item in strategy_map((folder / "all.ckpt").read_bytes()).parallel_layout_item
    ]
    assert names == [f"{s}-{name}" for s, stage in enumerate(strategy.stages) for name in stage]
    assert read_strategy(folder / "all.ckpt").stages == strategy.stages


def test_one_form_is_as_good_as_another(tmp_path: Path) -> None:
    forms = {"flat": LAYOUT, "nested": LAYOUT | {"tensor_map": [[0], [-1]], "opt_weight_shard_size": -1}}
    layouts = {**forms, "line": LAYOUT | {"tensor_map": [[0, 1]], "opt_weight_shard_size": 0}}
    expected = {
        "flat": Layout((2, 4), ((0,), ()), 4, 2),
        "nested": Layout((2, 4), ((0,), ()), 4, -1),
        "line": Layout((2, 4), ((0, 1),), 4, 0),
    }
    (tmp_path / "a.ckpt").write_bytes(strategy_bytes(layouts))
    content = {"current_stage": 0, "parallel_strategy_item": {}, "parallel_layout_item": layouts}
    (tmp_path / "a.json").write_text(json.dumps(content))
    assert read_strategy(tmp_path / "a.ckpt").stages == (expected,)
    assert read_strategy(tmp_path / "a.json").stages == (expected,)
    assert read_strategy(tmp_path).stages == (expected,)  # both forms beside each other agree


def test_fields_of_a_newer_mindspore_are_skipped(tmp_path: Path) -> None:
    raw = strategy_bytes({"w": LAYOUT})
    (tmp_path / "a.ckpt").write_bytes(raw + wire.number(15, 7) + wire.message(99, b"news"))
    assert read_strategy(tmp_path / "a.ckpt").stages[0].keys() == {"w"}


def test_packed_dims_are_read(tmp_path: Path) -> None:
    raw = strategy_bytes({"w": LAYOUT})
    packed = raw.replace(b"\x0a\x04\x08\x02\x08\x04", b"\x0a\x04\x0a\x02\x02\x04")
    assert packed != raw
    (tmp_path / "a.ckpt").write_bytes(packed)
    assert read_strategy(tmp_path / "a.ckpt").stages == ({"w": Layout((2, 4), ((0,), ()), 4, 2)},)


def test_the_stage_is_the_first_node_s_else_the_file_s(tmp_path: Path) -> None:
    for rank, (stage, node) in enumerate(((0, True), (1, False))):
        (tmp_path / f"{rank}.ckpt").write_bytes(strategy_bytes({f"w{rank}": LAYOUT}, stage, node))
    assert [list(stage) for stage in read_strategy(tmp_path).stages] == [["w0"], ["w1"]]


def test_a_merged_file_beside_its_parts_may_be_stale(tmp_path: Path) -> None:
    write_merged(Strategy(({"w": repeated(2, 4)},), 4), tmp_path / "merged_ckpt_strategy.ckpt")
    assert read_strategy(tmp_path).devices == 4
    write_strategy(Strategy(({"w": repeated(2, 2)},), 2), tmp_path)
    assert read_strategy(tmp_path).devices == 2


BAD_LAYOUTS: list[tuple[str, dict[str, Any]]] = [
    ("devices", {"dev_matrix": []}),
    ("devices", {"dev_matrix": [0, 4]}),
    ("devices", {"dev_matrix": [2**31, 2**31]}),
    ("dimension", {"tensor_map": [2, -1]}),
    ("dimension", {"tensor_map": [0, 0]}),
    ("dimension", {"tensor_map": [-2, -1]}),
    ("opt_weight_shard_size", {"opt_weight_shard_size": 3}),
    ("opt_weight_shard_step", {"opt_weight_shard_step": 1}),
    ("field", {"field": 2}),
]


@pytest.mark.parametrize("form", ["protobuf", "json"])
@pytest.mark.parametrize(("words", "change"), BAD_LAYOUTS)
def test_a_bad_layout_names_its_parameter(
    tmp_path: Path, form: str, words: str, change: dict[str, Any]
) -> None:
    layouts = {"good": LAYOUT, "bad": LAYOUT | change}
    path = tmp_path / ("a.json" if form == "json" else "a.ckpt")
    if form == "json":
        path.write_text(json.dumps({"parallel_layout_item": layouts}))
    else:
        path.write_bytes(strategy_bytes(layouts))
    problem = refused(path)
    assert problem.code == "strategy.bad_layout"
    assert problem.values["tensor"] == "bad"
    assert words in str(problem)


@pytest.mark.parametrize(
    "item",
    [
        [],
        {"tensor_map": [0, -1]},
        LAYOUT | {"dev_matrix": [2.0, 4]},
        LAYOUT | {"dev_matrix": [True, 4]},
        LAYOUT | {"dev_matrix": [1] * 17},
        LAYOUT | {"tensor_map": "01"},
        LAYOUT | {"tensor_map": [[[0]], [-1]]},
        LAYOUT | {"tensor_map": [[]] * 17},
        LAYOUT | {"opt_weight_shard_size": None},
        LAYOUT | {"field": None},
    ],
)
def test_json_of_other_types_is_refused(tmp_path: Path, item: object) -> None:
    (tmp_path / "a.json").write_text(json.dumps({"parallel_layout_item": {"bad": item}}))
    assert refused(tmp_path / "a.json").code == "strategy.bad_layout"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("{", "strategy.bad_json"),
        ("[]", "strategy.bad_json"),
        ("{}", "strategy.bad_json"),
        ('{"parallel_layout_item": [1]}', "strategy.bad_json"),
        ('{"parallel_layout_item": {}, "current_stage": -1}', "strategy.bad_json"),
        ('{"parallel_layout_item": {}, "current_stage": "0"}', "strategy.bad_json"),
        ('{"parallel_layout_item": {}}', "strategy.empty"),
    ],
)
def test_json_that_holds_no_layouts(tmp_path: Path, text: str, code: str) -> None:
    (tmp_path / "a.json").write_text(text)
    assert refused(tmp_path / "a.json").code == code


ITEM = strategy_bytes({"w": LAYOUT}, node=False)[2:]
LONG = wire.message(1, wire.message(1, wire.repeated(1, [1] * 17)))
BAD_FILES: list[tuple[str, bytes]] = [
    ("empty", b""),
    ("a checkpoint", bytes.fromhex("0a0d 0a0161 1208 0801 1207")),
    ("text", b"<!DOCTYPE html><html></html>"),
    ("cut", strategy_bytes({"w": LAYOUT})[:-3]),
    ("the same parameter twice", ITEM + ITEM),
    ("an item without a name", wire.message(3, wire.message(2, b""))),
    ("an item without layouts", wire.message(3, wire.message(1, b"w"))),
    ("a number for an item", wire.number(3, 5)),
    ("a name that is no UTF-8", wire.message(3, wire.message(1, b"\xff"), wire.message(2, b""))),
    ("17 dimensions", wire.message(3, wire.message(1, b"w"), wire.message(2, LONG))),
    ("a number for a grid", wire.message(3, wire.message(1, b"w"), wire.message(2, wire.number(1, 4)))),
    ("a stage below zero", wire.number(1, -1) + ITEM),
    ("a stage that is a text", wire.message(1, b"0") + ITEM),
]


@pytest.mark.parametrize("raw", [b[1] for b in BAD_FILES], ids=[b[0] for b in BAD_FILES])
def test_what_is_no_strategy_file(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "a.ckpt").write_bytes(raw)
    assert refused(tmp_path / "a.ckpt").code == "strategy.not_strategy"


def test_a_file_without_layouts_and_a_folder_without_files(tmp_path: Path) -> None:
    assert refused(tmp_path).code == "strategy.none"
    (tmp_path / "a.ckpt").write_bytes(strategy_bytes({}))
    assert refused(tmp_path).code == "strategy.empty"


def test_what_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.ckpt")
    assert refused(tmp_path / "pipe.ckpt").code == "strategy.not_strategy"
    assert refused(tmp_path / "none.ckpt").code == "io.not_found"


def test_files_of_two_runs(tmp_path: Path) -> None:
    write_strategy(Strategy(({"w": repeated(2, 4), "v": repeated(1, 4)},), 4), tmp_path)
    other = Strategy(({"w": repeated(2, 4), "v": Layout((4,), ((0,),))},), 4)
    write_merged(other, tmp_path / "x" / "all.ckpt")
    (tmp_path / "x" / "all.ckpt").rename(tmp_path / "a.ckpt")
    assert read_strategy(tmp_path).stages[0]["v"] == repeated(1, 4)  # a merged file does not count
    write_strategy(other, tmp_path / "x")
    (tmp_path / "x" / "ckpt_strategy_rank_2.ckpt").replace(tmp_path / "ckpt_strategy_rank_2.ckpt")
    problem = refused(tmp_path)
    assert problem.code == "strategy.disagree"
    assert problem.values["second"] == "ckpt_strategy_rank_2.ckpt"
    assert problem.values["tensor"] == "v"


def test_grids_of_different_sizes(tmp_path: Path) -> None:
    (tmp_path / "a.ckpt").write_bytes(
        strategy_bytes({"w": LAYOUT, "v": LAYOUT | {"dev_matrix": [1, 4], "opt_weight_shard_size": 0}})
    )
    assert refused(tmp_path / "a.ckpt").code == "strategy.sizes_differ"


def test_stages_of_more_devices_than_there_can_be(tmp_path: Path) -> None:
    grid = {"dev_matrix": [65536], "tensor_map": [0], "opt_weight_shard_size": 0}
    (tmp_path / "a.ckpt").write_bytes(strategy_bytes({"0-w": LAYOUT | grid, "1-w": LAYOUT | grid}))
    assert refused(tmp_path / "a.ckpt").code == "strategy.too_many"


def test_a_name_mindspore_would_cut_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(Problem) as caught:
        write_strategy(Strategy(({"a-b": repeated(1, 2)},), 2), tmp_path)
    assert caught.value.code == "strategy.dash"
    assert list(tmp_path.iterdir()) == []


def test_files_of_equal_bytes_are_parsed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tengtune.weights import strategy as module

    parsed: list[Path] = []
    parse = module._parse
    monkeypatch.setattr(module, "_parse", lambda path, data: parsed.append(path) or parse(path, data))
    write_strategy(Strategy(({"w": repeated(2, 64)},), 64), tmp_path)
    assert read_strategy(tmp_path).ranks == 64
    assert len(parsed) == 1
