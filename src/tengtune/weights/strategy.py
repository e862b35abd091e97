"""MindSpore's strategy files: which layout every parameter of a distributed run had.

The format (node_strategy.proto of MindSpore): ParallelStrategyMap{1: current_stage, 2: node items,
3: ParallelLayoutItem{1: name, 2: ParallelLayouts{1: dev_matrix, 2: tensor_map, 3: param_split_shape,
4: indices_offset, 5: field, 6: opt_weight_shard_step, 7: opt_weight_shard_size}}}, lists as {1: dim}.
One file a rank, alike within a pipeline stage; or all stages in one, names with "<stage>-" before them;
or the same as JSON.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

from tengtune import files
from tengtune.json_file import MAX_BYTES, read_object
from tengtune.ui import language
from tengtune.ui.lists import first_few, listed
from tengtune.ui.problems import Problem, os_errors
from tengtune.weights import wire
from tengtune.weights.layout import MAX_DEVICES, Layout, LayoutFault, Shape

NODE = "tengtune"
"""The one node item we write: MindSpore reads the stage from the first and refuses a file without."""

_STAGED = re.compile(r"(\d{1,4})-(.+)", re.ASCII | re.DOTALL)
_MAX_ITEMS, _MAX_DIMS = 200_000, 16

_layout = lru_cache(maxsize=4096)(Layout)

_Fields = dict[int, list[tuple[int, int, int]]]
_Items = tuple[int, dict[str, Layout]]


@dataclass(frozen=True)
class Strategy:
    """The layouts of a run. stages: by pipeline stage, by parameter; files: what they were read from.

    Stage s has the ranks s x devices to (s + 1) x devices - 1.
    """

    stages: tuple[Mapping[str, Layout], ...]
    devices: int
    files: tuple[Path, ...] = ()

    @property
    def ranks(self) -> int:
        return self.devices * len(self.stages)

    @property
    def cuts(self) -> bool:
        """Whether any rank holds less than the whole of a parameter."""
        return any(max(layout.counts, default=1) > 1 for stage in self.stages for layout in stage.values())

    def describe(self) -> str:
        """The layout on one line."""
        layouts = [layout for stage in self.stages for layout in stage.values()]
        grids = sorted({str(list(layout.dev_matrix)) for layout in layouts})
        cut = sum(any(layout.tensor_map) for layout in layouts)
        sharded = sum(layout.opt_pieces > 1 for layout in layouts)
        whole = sum(max(layout.counts, default=1) == 1 for layout in layouts)
        return language.say(
            "strategy.layout",
            ranks=self.ranks,
            stages=len(self.stages),
            grid=first_few(grids, " "),
            cut=cut,
            sharded=sharded,
            whole=whole,
        )


@dataclass
class _File:
    """One file's layouts by stage and name; merged: it holds those of all stages."""

    path: Path
    merged: bool = False
    stages: dict[int, dict[str, Layout]] = field(default_factory=lambda: defaultdict(dict))


def read_strategy(path: Path) -> Strategy:
    """Read a strategy file, or a folder of them (files of one stage must agree). Raises Problem."""
    known: dict[bytes, _Items] = {}
    if not path.is_dir():
        read = [_read_file(path, known)]
    else:
        with os_errors(path):
            found = sorted(p for p in path.iterdir() if p.suffix in (".ckpt", ".json") and p.is_file())
        if not found:
            raise Problem("strategy.none", where=path)
        read = [_read_file(file, known) for file in found]
        # Merging tools leave the sum beside its parts, and it may be older than they are.
        read = [file for file in read if not file.merged] or read
    stages: dict[int, dict[str, Layout]] = {}
    for file in read:
        for stage, layouts in file.stages.items():
            if stages.setdefault(stage, layouts) != layouts:
                raise _disagreement(path, read, stage)
    absent = sorted(set(range(max(stages) + 1)) - stages.keys())
    if absent:
        raise Problem("strategy.stages_missing", where=path, found=sorted(stages), missing=absent)
    sizes = {layout.devices for layouts in stages.values() for layout in layouts.values()}
    if len(sizes) > 1:
        raise Problem("strategy.sizes_differ", where=path, sizes=sorted(sizes))
    devices = sizes.pop()
    if devices * len(stages) > MAX_DEVICES:
        raise Problem("strategy.too_many", where=path, stages=len(stages), devices=devices, most=MAX_DEVICES)
    ordered = tuple(stages[stage] for stage in sorted(stages))
    return Strategy(ordered, devices, tuple(file.path for file in read))


def _disagreement(path: Path, read: list[_File], stage: int) -> Problem:
    """Which files of the stage are alike, and one parameter about which the groups differ."""
    having = [file for file in read if stage in file.stages]
    first = having[0].stages[stage]
    alike = [file.path.name for file in having if file.stages[stage] == first]
    other = next(file for file in having if file.stages[stage] != first)
    second = other.stages[stage]
    others = [file.path.name for file in having if file.stages[stage] == second]
    name = next(n for n in [*first, *second] if first.get(n) != second.get(n))
    layouts = [_brief(layouts.get(name)) for layouts in (first, second)]
    return Problem(
        "strategy.disagree",
        where=path,
        stage=stage,
        first=listed(alike),
        second=listed(others),
        tensor=name[:200],
        one=layouts[0],
        two=layouts[1],
    )


def _brief(layout: Layout | None) -> str:
    if layout is None:
        return "-"
    shard = f", opt_weight_shard_size {layout.opt_size}" if layout.opt_size else ""
    return f"dev_matrix {list(layout.dev_matrix)}, tensor_map {_maps(layout)}{shard}"


def _maps(layout: Layout) -> list[Any]:
    """tensor_map as MindSpore writes it: a number for each axis, or a list of them where one is cut twice."""
    if all(len(dims) < 2 for dims in layout.tensor_map):
        return [dims[0] if dims else -1 for dims in layout.tensor_map]
    return [list(dims) or [-1] for dims in layout.tensor_map]


def _read_file(path: Path, known: dict[bytes, _Items]) -> _File:
    """Read one file; `known`: what files of the same bytes held (the ranks of a stage write the same)."""
    file = _File(path)
    if path.suffix == ".json":
        stage, layouts = _read_json(path)
    else:
        data = _read_bytes(path)
        if data not in known:
            known[data] = _parse(path, data)
        stage, layouts = known[data]
    if not layouts:
        raise Problem("strategy.empty", where=path)
    staged = {name: match for name in layouts if (match := _STAGED.fullmatch(name))}
    if len(staged) == len(layouts):
        file.merged = True
        for name, match in staged.items():
            file.stages[int(match[1])][match[2]] = layouts[name]
    else:
        file.stages[stage] = layouts
    return file


def _read_bytes(path: Path) -> bytes:
    with os_errors(path):
        if path.exists() and not path.is_file():
            raise Problem("strategy.not_strategy", where=path, offset=0)
        with open(path, "rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    if not data or len(data) > MAX_BYTES:
        raise Problem("strategy.not_strategy", where=path, offset=0)
    return data


def _parse(path: Path, data: bytes) -> _Items:
    """(stage, layouts by parameter). Fields we do not know are skipped, as protobuf wants it."""
    try:
        top = _fields(data, 0, len(data))
        stage = _number(top, 1)
        if 2 in top:
            node = _fields(data, *_span({2: top[2][:1]}, 2))
            stage = _number(_fields(data, *_span(node, 2)), 1)
        if not 0 <= stage < 10_000:
            raise wire.WireError(0, "key")
        layouts: dict[str, Layout] = {}
        for offset, begin, end in top.get(3, []):
            item = _fields(data, begin, end)
            name_begin, name_end = _span(item, 1)
            name = data[name_begin:name_end].decode()
            if name in layouts:
                raise wire.WireError(offset, "key")
            fields = _fields(data, *_span(item, 2))
            grids, maps = ([_dims(data, *span[1:]) for span in fields.get(key, [])] for key in (1, 2))
            # More than one tensor map: one for each axis, and an empty one after that of a single axis.
            axes: Any = maps[0] if len(maps) == 1 else [dims for dims in maps if dims] if maps else None
            size, step = _number(fields, 7), _number(fields, 6)
            layouts[name] = _checked(path, name, grids[0] if grids else (), axes, step, size)
            _refuse_field(path, name, _number(fields, 5))
        return stage, layouts
    except UnicodeDecodeError as error:
        raise Problem("strategy.not_strategy", where=path, offset=begin) from error
    except wire.WireError as error:
        raise Problem("strategy.not_strategy", where=path, offset=error.offset) from error


def _fields(data: bytes, begin: int, end: int) -> _Fields:
    """A message's fields by number: (offset, value, -1) for a varint, (offset, begin, end) for bytes."""
    found: _Fields = defaultdict(list)
    for count, (offset, key, start, stop) in enumerate(wire.fields(data, begin, end)):
        if count == _MAX_ITEMS:
            raise wire.WireError(offset, "key")
        if key & 7 in (wire.VARINT, wire.BYTES):
            found[key >> 3].append((offset, start, -1 if key & 7 == wire.VARINT else stop))
    return found


def _number(fields: _Fields, key: int) -> int:
    """A field of a number; 0 where it is missing. As in protobuf, the last one counts."""
    offset, value, end = fields[key][-1] if key in fields else (0, 0, -1)
    if end != -1:
        raise wire.WireError(offset, "key")
    return wire.signed(value)


def _span(fields: _Fields, key: int) -> tuple[int, int]:
    """Begin and end of a field that must be there, once, as bytes."""
    places = fields.get(key, [])
    if len(places) != 1 or places[0][2] == -1:
        raise wire.WireError(places[0][0] if places else 0, "key")
    return places[0][1], places[0][2]


def _dims(data: bytes, begin: int, end: int) -> Shape:
    """The message {1: repeated dim}, packed or not."""
    if end == -1:
        raise wire.WireError(begin, "key")
    dims: list[int] = []
    for offset, key, start, stop in wire.fields(data, begin, end):
        if key >> 3 == 1:
            values = [start] if key & 7 == wire.VARINT else wire.packed(data, start, stop)
            dims += map(wire.signed, islice(values, _MAX_DIMS + 1))
        if len(dims) > _MAX_DIMS:
            raise wire.WireError(offset, "length")
    return tuple(dims)


def _read_json(path: Path) -> _Items:
    content = read_object(path, "strategy.bad_json")
    items, nodes = content.get("parallel_layout_item"), content.get("parallel_strategy_item")
    stage = content.get("current_stage", 0)
    if isinstance(nodes, dict) and nodes and isinstance(node := next(iter(nodes.values())), dict):
        stage = node.get("stage", stage)
    if not isinstance(items, dict) or type(stage) is not int or not 0 <= stage < 10_000:
        raise Problem("strategy.bad_json", where=path, reason=language.say("strategy.no_items"))
    layouts = {}
    for name, item in items.items():
        if not isinstance(item, dict):
            raise _fault(path, name, "map")
        step, size = (item.get(f"opt_weight_shard_{key}", 0) for key in ("step", "size"))
        layouts[name] = _checked(path, name, item.get("dev_matrix"), item.get("tensor_map"), step, size)
        _refuse_field(path, name, item.get("field", 0))
    return stage, layouts


def _checked(path: Path, name: str, grid: Any, axes: Any, step: Any, size: Any) -> Layout:
    """A layout from what a file gave; Problem where it cannot be."""
    if not _numbers(grid):
        raise _fault(path, name, "devices")
    if not isinstance(axes, (list, tuple)) or len(axes) > _MAX_DIMS:
        raise _fault(path, name, "map")
    nested = [axis if isinstance(axis, (list, tuple)) else [axis] for axis in axes]
    if not all(map(_numbers, nested)):
        raise _fault(path, name, "map")
    if not _numbers([step, size]):
        raise _fault(path, name, "size")
    try:
        maps = tuple(tuple(dim for dim in axis if dim != -1) for axis in nested)
        return _layout(tuple(grid), maps, step, size)
    except LayoutFault as fault:
        raise _fault(path, name, fault.reason) from fault


def _numbers(value: object) -> bool:
    return isinstance(value, (list, tuple)) and len(value) <= _MAX_DIMS and all(type(n) is int for n in value)


def _refuse_field(path: Path, name: str, value: object) -> None:
    """`field` cuts an embedding's columns in another way, for recommendation models."""
    if value != 0:
        raise _fault(path, name, "field")


def _fault(path: Path, name: str, reason: str) -> Problem:
    text = language.say(f"strategy.fault_{reason}")
    return Problem("strategy.bad_layout", where=path, tensor=name[:200], reason=text)


def write_strategy(strategy: Strategy, folder: Path) -> None:
    """Write `folder`/ckpt_strategy_rank_N.ckpt for every rank, as a run leaves them. Raises Problem."""
    for rank in range(strategy.ranks):
        stage = rank // strategy.devices
        with files.atomic_file(folder / f"ckpt_strategy_rank_{rank}.ckpt") as stream:
            stream.write(_node(stage, stage) + _encoded(folder, strategy.stages[stage]))


def write_merged(strategy: Strategy, path: Path) -> None:
    """Write all stages into one file, as mindspore.merge_pipeline_strategys does. Raises Problem."""
    parts = [_node(1, 0)]
    for number, stage in enumerate(strategy.stages):
        parts.append(_encoded(path, stage, f"{number}-"))
    with files.atomic_file(path) as stream:
        stream.write(b"".join(parts))


def _node(current: int, stage: int) -> bytes:
    strategy = wire.number(1, stage) + wire.message(2, wire.repeated(1, [1]))
    return wire.number(1, current) + wire.message(
        2, wire.message(1, NODE.encode()), wire.message(2, strategy)
    )


def _encoded(where: Path, layouts: Mapping[str, Layout], prefix: str = "") -> bytes:
    items = []
    for name, layout in layouts.items():
        if "-" in name:  # MindSpore cuts names at it, and fails
            raise Problem("strategy.dash", where=where, tensor=name[:200])
        maps = _maps(layout)
        if not maps or type(maps[0]) is int:
            maps = [maps]
        elif len(maps) == 1:  # an empty one marks a tensor of a single axis
            maps.append([])
        parts = [wire.message(1, wire.repeated(1, layout.dev_matrix))]
        parts += [wire.message(2, wire.repeated(1, dims)) for dims in maps]
        parts += [wire.message(3), wire.message(4), wire.number(5, 0)]
        parts += [wire.number(6, layout.opt_step), wire.number(7, layout.opt_size)]
        items.append(wire.message(3, wire.message(1, (prefix + name).encode()), wire.message(2, *parts)))
    return b"".join(items)
