"""`tengtune data convert FILE... --to FORM --out OUT`"""

from __future__ import annotations

import errno
import importlib.util
import os
from collections.abc import Iterator
from dataclasses import astuple, dataclass, fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import click

from tengtune import lock
from tengtune.cli.command import Command
from tengtune.cli.data_check import LINES, SEQ_LEN, each_fault, not_onto_itself, reading, reserved, size_of
from tengtune.cli.options import FOLDER
from tengtune.recipe import LabelPolicy, TooLong
from tengtune.ui.console import Console
from tengtune.ui.problems import UNFIT_MACHINE, Problem

if TYPE_CHECKING:
    from tengtune.data.convert import Form
    from tengtune.data.read import Reader
    from tengtune.data.record_rows import RowMaker, Rows
    from tengtune.data.report import Report


@dataclass(frozen=True)
class Asked:
    """The options of `--to mindrecord`; None where one was not given."""

    model: Path | None
    seq_len: int | None
    policy: LabelPolicy | None
    too_long: TooLong | None
    system: str | None
    shards: int | None
    columns: str | None


def mindrecord_options(function: Any) -> Any:
    """The options of Asked; the function receives them as `asked`."""

    @click.option("--model", type=FOLDER, help="cli.opt_rows_model")
    @click.option("--seq-len", type=click.IntRange(8, 2**20), help="cli.opt_rows_seq_len")
    @click.option("--policy", type=click.Choice(get_args(LabelPolicy)), help="cli.opt_rows_policy")
    @click.option("--too-long", type=click.Choice(get_args(TooLong)), help="cli.opt_rows_too_long")
    @click.option("--system", metavar="TEXT", help="cli.opt_rows_system")
    @click.option("--shards", type=click.IntRange(1, 1000), help="cli.opt_rows_shards")
    @click.option("--columns", type=click.Choice(["labels", "target_ids"]), help="cli.opt_rows_columns")
    @wraps(function)
    def wrapper(*arguments: Any, **options: Any) -> None:
        asked = Asked(*(options.pop(field.name) for field in fields(Asked)))
        function(*arguments, asked=asked, **options)

    return wrapper


@click.command("convert", cls=Command, help="cli.data_convert")
@reading
@click.option(
    "--to",
    "to",
    type=click.Choice(["conversation", "messages", "alpaca", "mindrecord"]),
    required=True,
    help="cli.opt_data_to",
)
@click.option("--out", type=FOLDER, required=True, metavar="OUT", help="cli.opt_data_out")
@click.option("--force", is_flag=True, help="cli.opt_overwrite")
@mindrecord_options
def convert(
    reader: Reader, console: Console, to: Form | Literal["mindrecord"], out: Path, force: bool, asked: Asked
) -> None:
    """Write the conversations of data files in another form, or their ids as a MindRecord."""
    from tengtune.data.mindrecord import first_shard
    from tengtune.data.report import Report

    report = Report(each_fault(console))
    if to == "mindrecord":
        written = _as_mindrecord(reader, report, console, out, force, asked)
        out = first_shard(out)
    elif any(value is not None for value in astuple(asked)):
        given = next(f.name for f in fields(asked) if getattr(asked, f.name) is not None)
        raise Problem("check.rows_only", where=f"--{given.replace('_', '-')}", to=to)
    else:
        written = _as_text(reader, report, console, to, out, force)
    report.show(console)
    console.say("check.converted", out=out, written=written)
    console.result(str(out), out=str(out), written=written, records=reader.records)


def _as_text(reader: Reader, report: Report, console: Console, to: Form, out: Path, force: bool) -> int:
    """Write JSON or JSON Lines; the number of records that were written."""
    from tengtune import files
    from tengtune.data.convert import convert as convert_items
    from tengtune.hub.meter import meter

    with (
        reserved(reader, (out,), (".json", *LINES), force, console),
        meter(console, size_of(reader), "check.progress") as advance,
        files.atomic_file(out, "w") as stream,
    ):
        for fault in convert_items(reader.read(advance), to, stream, out.suffix.lower() not in LINES):
            report.fault(fault)
        written = reader.records - report.dropped.total()
        if not written:
            raise _nothing_written(reader, report)
    return written


def _as_mindrecord(
    reader: Reader, report: Report, console: Console, out: Path, force: bool, asked: Asked
) -> int:
    """Write a MindRecord; the number of its rows."""
    from tengtune.data.mindrecord import check_name, family
    from tengtune.hub.meter import meter

    check_name(out)
    if asked.model is None:
        raise Problem("check.rows_need_model", where="--model")
    not_onto_itself(reader, (out, *family(out)))
    _no_folder_among(family(out))
    maker = _maker(asked.model, asked, console)
    if not importlib.util.find_spec("mindspore"):
        raise Problem("mindrecord.no_mindspore", exit_code=UNFIT_MACHINE)
    with lock.held(lock.beside(out), console):
        there = family(out)
        if there and not force:
            raise Problem("check.out_exists", where=there[0])
        from tengtune.backends.loading import uninterrupted

        with uninterrupted():
            from tengtune.backends.mindspore.mindrecord import write

        with meter(console, size_of(reader), "check.progress") as advance:
            rows = ((each.ids, each.labels) for each in _rows(reader, report, maker, advance))
            return write(out, rows, maker.form, asked.shards or 1)


def _no_folder_among(there: list[Path]) -> None:
    """Problem for a folder under one of the names that would be replaced."""
    for path in there:
        if path.is_dir():
            raise Problem("io.is_folder", where=path, reason=os.strerror(errno.EISDIR))


def _maker(folder: Path, asked: Asked, console: Console) -> RowMaker:
    """What makes rows for this model."""
    from tengtune.data.judge import Judge
    from tengtune.data.record_rows import Form, RowMaker
    from tengtune.data.render import Renderer, style_of
    from tengtune.models.spec import from_folder
    from tengtune.text.tokenizer import ENDOFTEXT

    policy = asked.policy or "assistant"
    style = style_of(folder, from_folder(folder), policy, asked.system)
    tokenizer = style.tokenizer
    if ENDOFTEXT not in tokenizer.control:
        raise Problem("mindrecord.no_pad", where=tokenizer.file, token=ENDOFTEXT)
    form = Form((asked.seq_len or SEQ_LEN) + 1, tokenizer.endoftext, asked.columns or "labels")
    judge = Judge(policy, tokenizer.control, style.template.tools)
    return RowMaker(Renderer(style, judge, form.length, asked.too_long or "cut"), form)


def _rows(reader: Reader, report: Report, maker: RowMaker, advance: Any) -> Iterator[Rows]:
    """The rows of all files; Problem at their end when there is none."""
    from tengtune.data.ordered import ordered
    from tengtune.data.render import batches

    for made in ordered(maker, batches(reader.read(advance), report.fault)):
        for fault in made.faults:
            report.fault(fault)
        report.lengths(made.tokens)
        report.kept += len(set(made.records.tolist()))
        yield made
    if not report.kept:
        raise _nothing_written(reader, report)


def _nothing_written(reader: Reader, report: Report) -> Problem:
    """There is no record to write: none at all, or reasons against all."""
    where = ", ".join(reader.files)
    if not reader.records:
        return Problem("data.no_records", where=where)
    reasons = "\n".join(report.reasons())
    return Problem("check.nothing_written", where=where, records=reader.records, reasons=reasons)
