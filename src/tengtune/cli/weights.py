"""`tengtune weights show`, `diff` and `verify`"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tengtune.cli.command import Command, Group
from tengtune.cli.options import FOLDER, make_console
from tengtune.ui import language
from tengtune.ui.console import Console
from tengtune.ui.lists import first_few, listed, size
from tengtune.ui.problems import Problem

if TYPE_CHECKING:
    from tengtune.hub.record import Record
    from tengtune.weights.compare import Difference
    from tengtune.weights.found import Found

LISTED = 30
"""Rows of a comparison that are shown; --json has all."""


@click.group("weights", cls=Group, help="cli.weights")
def command() -> None:
    """Look at weights and check them."""


@command.command("show", cls=Command, help="cli.weights_show")
@click.argument("path", type=FOLDER)
@click.option("--tensors", is_flag=True, help="cli.opt_tensors")
@click.option("--trust", is_flag=True, help="cli.opt_trust")
@click.option("-q", "--quiet", is_flag=True, help="cli.opt_quiet")
@click.option("--json", "as_json", is_flag=True, help="cli.opt_json")
def show(path: Path, tensors: bool, trust: bool, quiet: bool, as_json: bool) -> None:
    """What weights a folder or file holds."""
    from tengtune.weights.found import open_found
    from tengtune.weights.look import describe

    console, found = make_console(quiet, as_json), open_found(path, trust)
    told = describe(found)
    rows = [[language.say(f"look.{key}"), value] for key, value in told.rows]
    console.table(language.say("look.columns").split("|"), rows)
    entries = (
        {name: [str(list(r.shape)), r.dtype.name] for name, r in found.tensors.items()} if tensors else {}
    )
    if entries:
        console.table(language.say("look.tensor_columns").split("|"), [[n, *e] for n, e in entries.items()])
    console.event("result", **told.data, **({"tensors_found": entries} if entries else {}))


@command.command("diff", cls=Command, help="cli.weights_diff")
@click.argument("one", type=FOLDER)
@click.argument("other", type=FOLDER)
@click.option("--config", type=FOLDER, help="cli.opt_config")
@click.option("--trust", is_flag=True, help="cli.opt_trust")
@click.option("-q", "--quiet", is_flag=True, help="cli.opt_quiet")
@click.option("--json", "as_json", is_flag=True, help="cli.opt_json")
@click.pass_context
def diff(
    ctx: click.Context, one: Path, other: Path, config: Path | None, trust: bool, quiet: bool, as_json: bool
) -> None:
    """Compare two sets of weights tensor by tensor, across layouts."""
    from tengtune.hub.meter import meter
    from tengtune.weights.compare import compare
    from tengtune.weights.found import open_found
    from tengtune.weights.look import comparable, spec_for

    console, sides = make_console(quiet, as_json), [open_found(path, trust) for path in (one, other)]
    adapters = [side.path for side in sides if side.lora and not side.lora_and_model]
    if len(adapters) == 1:
        raise Problem("compare.model_and_adapter", where=adapters[0])
    spec = spec_for(sides, config)
    first, second = (comparable(side, spec) for side in sides)
    shared = sides[0].scalars.keys() & sides[1].scalars.keys()
    for side, tensors in zip(sides, (first, second), strict=True):
        tensors |= {name: side.scalars[name] for name in sorted(shared)}
        if left := [name for name in side.left_out if name not in shared]:
            shown = listed(left)
            console.say("compare.left_out", path=side.path, count=len(left), names=shown)
    with meter(
        console, sum(r.nbytes for n, r in first.items() if n in second), "compare.progress"
    ) as advance:
        found = compare(first, second, advance)
    apart = _scales_apart(sides, console) if adapters else {}
    _report(console, first.keys() - second.keys(), second.keys() - first.keys(), found, len(first), apart)
    if apart or first.keys() != second.keys() or not all(difference.same_values for difference in found):
        ctx.exit(1)


def _scales_apart(sides: list[Found], console: Console) -> dict[str, tuple[float, float]]:
    """The linears of two adapters whose scales differ; a warning where one of them does not tell its own."""
    from tengtune.weights.scales import other_scales, scales

    one, other = (scales(side) for side in sides)
    if one is not None and other is not None:
        return other_scales(one, other)
    if one is not other:
        console.warn("compare.scale_unknown", path=sides[0 if one is None else 1].path)
    return {}


def _report(
    console: Console,
    only_one: set[str],
    only_other: set[str],
    found: list[Difference],
    total: int,
    scales: dict[str, tuple[float, float]],
) -> None:
    """What differs, in a table, and a line that sums it up."""
    rows = [[n, language.say("compare.only_first"), "", ""] for n in sorted(only_one)]
    rows += [[n, language.say("compare.only_second"), "", ""] for n in sorted(only_other)]
    for each in found:
        kinds = each.dtypes[0] if each.dtypes[0] == each.dtypes[1] else " / ".join(each.dtypes)
        shapes = " / ".join(str(list(s)) for s in dict.fromkeys(each.shapes))
        gap = language.say("compare.other_shape") if each.gap is None else f"{each.gap:.3g} ({each.count:,})"
        rows.append(
            [each.name, language.say("compare.same_values") if each.same_values else gap, kinds, shapes]
        )
    if rows:
        console.table(language.say("compare.columns").split("|"), rows[:LISTED])
    if len(rows) > LISTED:
        console.say("ui.and_more", count=len(rows) - LISTED)
    values = [each for each in found if not each.same_values]
    same = total - len(only_one) - len(values)
    told = language.say("compare.sum", same=same, differ=len(values), missing=len(only_one) + len(only_other))
    if scales:
        pairs = listed([f"{a:g} / {b:g}" for a, b in sorted(set(scales.values()))])
        told += "\n" + language.say("compare.scale", count=len(scales), pairs=pairs)
    console.result(
        told,
        same=same,
        other_scale=scales,
        differ=[{"name": e.name, "gap": e.gap, "count": e.count, "dtypes": e.dtypes} for e in values],
        other_dtype=[each.name for each in found if each.same_values],
        only_first=sorted(only_one),
        only_second=sorted(only_other),
    )


@command.command("verify", cls=Command, help="cli.weights_verify")
@click.argument("folder", type=FOLDER)
@click.option("-q", "--quiet", is_flag=True, help="cli.opt_quiet")
@click.option("--json", "as_json", is_flag=True, help="cli.opt_json")
def verify(folder: Path, quiet: bool, as_json: bool) -> None:
    """Check every file of a folder against the sha256 of its download."""
    from tengtune.hub.record import read_record
    from tengtune.weights.found import open_found
    from tengtune.weights.rank_part import rank_part

    console = make_console(quiet, as_json)
    record = read_record(folder)
    if record is not None:
        _hashes(folder, record, console)
        return
    found = open_found(folder)  # Problem: a file is missing, cut or damaged in its header
    _refuse_odd(found)
    console.warn("download.no_record")
    part = rank_part(found.files[0], found.tensors)
    if part is not None:
        code = "shard.is_part" if part.certain else "shard.may_be_part"
        holder = shlex.quote(str(part.folder))
        console.warn(code, rank=part.rank, ranks=part.ranks, folder=holder)
    _values(found, console)
    sound = "download.headers_right" if part is None else "download.part_right"
    told = language.say(sound, tensors=len(found.tensors))
    console.result(told, tensors=len(found.tensors), sha256=None, **({} if part is None else {"whole": None}))


def _refuse_odd(found: Found) -> None:
    """Problem where there is no tensor at all, or files of another model beside those that are read."""
    from tengtune.weights.source import other_weights

    if not found.tensors:
        raise Problem("weights.empty", where=found.path)
    if found.path.is_dir() and found.kind in ("safetensors", "torch") and not found.lora:
        suffix, known = found.files[0].suffix, [path.name for path in found.files]
        others = [name for name in other_weights(found.path, known) if name.endswith(suffix)]
        if others:
            files = listed(known)
            raise Problem("weights.others", where=found.path, others=first_few(others), read=files)


def _values(found: Found, console: Console) -> None:
    """Problem where a tensor holds values that are not finite."""
    from tengtune.hub.meter import meter
    from tengtune.weights.stream import non_finite

    faults = []
    with meter(console, found.nbytes, "weights.progress") as advance:
        for name, rows in found.tensors.items():
            if count := non_finite(rows):
                faults.append(language.say("merge.fault_values", name=name, count=count))
            advance(rows.nbytes)
    if faults:
        raise Problem("weights.not_finite", where=found.path, faults=first_few(faults))


def _hashes(folder: Path, record: Record, console: Console) -> None:
    """The whole contents of every recorded file; Problem where one differs or the download is not whole."""
    from tengtune.hub.meter import meter
    from tengtune.hub.record import damaged
    from tengtune.weights.found import open_found
    from tengtune.weights.source import other_weights

    if not record.whole:
        raise Problem("download.not_whole", where=folder, model=record.model)
    with meter(console, record.bytes, "download.hashing") as advance:
        broken = damaged(folder, record, advance, full=True)
    if broken:
        raise Problem("download.not_intact", where=folder, files=first_few(broken))
    if others := other_weights(folder, record.files):
        raise Problem("download.other_weights", where=folder, others=first_few(others))
    if not record.checked:  # the source may have been cut or mixed itself
        _refuse_odd(open_found(folder))
    told = language.say(
        "download.intact",
        model=record.model,
        files=len(record.files),
        size=size(record.bytes),
        source=record.endpoint,
    )
    console.result(told, model=record.model, sha256={name: e.sha256 for name, e in record.files.items()})
