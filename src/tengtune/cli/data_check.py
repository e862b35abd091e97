"""`tengtune data check FILE...`, and what it has in common with `data convert`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from tengtune import lock
from tengtune.cli.command import Command
from tengtune.cli.options import FOLDER, make_console
from tengtune.files import PARTIAL
from tengtune.recipe import Data, DataFormat, LabelPolicy, TooLong
from tengtune.ui.console import Console
from tengtune.ui.lists import joined
from tengtune.ui.problems import WRONG_INPUT, Problem

if TYPE_CHECKING:
    from tengtune.data.fault import Fault
    from tengtune.data.judge import Judge
    from tengtune.data.read import Reader

LINES = (".jsonl", ".ndjson")
"""Names of files with a record a line."""
UNFITTING = ("too_long", "no_room", "no_label")
"""What makes a sound record useless for rows of a length."""
SEQ_LEN = int(Data.model_fields["seq_len"].default)


def reading(function: Callable[..., None]) -> Callable[..., None]:
    """FILE..., --format, --map, --quiet, --json; the function receives (reader, console, **its own)."""

    @click.argument("paths", nargs=-1, required=True, metavar="FILE...", type=FOLDER)
    @click.option(
        "--format", "form", type=click.Choice(get_args(DataFormat)), default="auto", help="cli.opt_format"
    )
    @click.option("--map", "pairs", multiple=True, metavar="OURS=THEIRS", help="cli.opt_map")
    @click.option("-q", "--quiet", is_flag=True, help="cli.opt_quiet")
    @click.option("--json", "as_json", is_flag=True, help="cli.opt_json")
    @wraps(function)
    def wrapper(
        paths: tuple[Path, ...], form: str, pairs: tuple[str, ...], quiet: bool, as_json: bool, **options: Any
    ) -> None:
        from tengtune.data.read import Reader

        mapping = dict(_pair(text) for text in pairs)
        reader = Reader({str(path): path for path in paths}, form, mapping, "--map")
        function(reader, make_console(quiet, as_json), **options)

    return wrapper


def _pair(text: str) -> tuple[str, str]:
    ours, _, theirs = text.partition("=")
    if not (ours and theirs):
        raise Problem("check.bad_map", text=text)
    return ours, theirs


@click.command("check", cls=Command, help="cli.data_check")
@reading
@click.option("--model", "folder", type=FOLDER, help="cli.opt_check_model")
@click.option("--seq-len", type=click.IntRange(8, 2**20), help="cli.opt_seq_len")
@click.option(
    "--policy", type=click.Choice(get_args(LabelPolicy)), default="assistant", help="cli.opt_policy"
)
@click.option("--too-long", type=click.Choice(get_args(TooLong)), help="cli.opt_too_long")
@click.option("--fix", "out", type=FOLDER, metavar="OUT", help="cli.opt_fix")
@click.option("--force", is_flag=True, help="cli.opt_overwrite")
def check(
    reader: Reader,
    console: Console,
    folder: Path | None,
    seq_len: int | None,
    policy: LabelPolicy,
    too_long: TooLong | None,
    out: Path | None,
    force: bool,
) -> None:
    """Read data files and tell everything that is wrong with them; with a row length also what a training
    with it would cut or leave out."""
    from tengtune.cli.data_account import show
    from tengtune.data.check import check as check_files
    from tengtune.data.fix import beside
    from tengtune.data.judge import Judge
    from tengtune.data.render import Renderer, style_of
    from tengtune.hub.meter import meter
    from tengtune.models.spec import from_folder
    from tengtune.text.tokenizer import ENDOFTEXT, IM_END, IM_START

    if seq_len and not folder:
        raise Problem("check.seq_len_without_model", where="--seq-len")
    if too_long and not seq_len:
        raise Problem("check.too_long_without_seq_len", where="--too-long")
    reader.lenient = True
    spec = from_folder(folder) if folder else None
    style = style_of(folder, spec, policy, None) if folder and spec else None
    control = style.tokenizer.control if style else (IM_START, IM_END, ENDOFTEXT)
    judge = Judge(policy, control, style.template.tools if style else True)
    renderer = Renderer(style, judge, seq_len, too_long or "cut") if style and seq_len else None
    unreadable: list[Problem] = []
    with reserved(reader, (out, *beside(out)) if out else (), LINES, force, console):
        with meter(console, size_of(reader), "check.progress") as advance:
            told = each_fault(console)
            account = check_files(reader, judge, style, told, unreadable.append, advance, renderer)
        for problem in unreadable:
            console.problem(problem)
        report = account.report
        measured = len(report.all_lengths()) > 0
        rows = account.rows(seq_len or SEQ_LEN, spec.max_positions) if spec and measured else []
        show(console, account, reader, rows, style is not None)
        if out and report.kept:
            _fix(reader, judge, out, console)
    faulty = bool(report.dropped) or report.broken
    unfitting = any(code in report.dropped for code in UNFITTING)  # which no --fix changes
    if unreadable or (faulty and not out) or unfitting or not report.kept:
        click.get_current_context().exit(WRONG_INPUT)


def _fix(reader: Reader, judge: Judge, out: Path, console: Console) -> None:
    """Write what can be used to `out`, and beside it what cannot and what was changed."""
    from tengtune.data.check import whatever_is_readable
    from tengtune.data.fix import beside, fixer

    left, changes = beside(out)
    with fixer(reader, judge, out) as fix:
        for item in whatever_is_readable(reader, lambda problem: None):
            fix.take(item)
    console.say("check.fixed", out=out, left=left, changes=changes, **fix.counts)
    console.result(str(out), out=str(out), rejected_file=str(left), changes_file=str(changes), **fix.counts)


def each_fault(console: Console) -> Callable[[Fault], None]:
    """Each fault as an event of --json."""

    def told(fault: Fault) -> None:
        if console.mode == "json":
            console.event("fault", **fault.as_json(), fix=fault.fix())

    return told


def size_of(reader: Reader) -> int:
    """The size of all files; those that are not there are told when they are read."""
    return sum(path.stat().st_size for path in reader.files.values() if path.is_file())


@contextmanager
def reserved(
    reader: Reader, outs: Sequence[Path], suffixes: Sequence[str], force: bool, console: Console
) -> Iterator[None]:
    """Hold `outs`, the output and what stands beside it, while the block runs.

    Problem: a file that is read would be overwritten, or (without `force`) any file; the output's name
    promises another form than `suffixes`; another command writes there.
    """
    not_onto_itself(reader, outs)
    for out in outs[:1]:
        if out.suffix.lower() not in suffixes:
            raise Problem("check.out_suffix", where=out, suffixes=joined(suffixes))
    with ExitStack() as stack:
        for out in outs:
            stack.enter_context(lock.held(lock.beside(out), console))
        for out in outs:
            if out.is_dir() or (out.exists() and not force):
                raise Problem("check.out_exists", where=out)
        yield


def not_onto_itself(reader: Reader, outs: Sequence[Path]) -> None:
    """Problem where an output, or what stands beside it while it is written, is a file that is read."""
    for out in outs:
        touched = (out, out.with_name(out.name + PARTIAL), lock.beside(out))
        if any(_is_same(path, read) for path in touched for read in reader.files.values()):
            raise Problem("check.onto_itself", where=out)


def _is_same(path: Path, other: Path) -> bool:
    return path.exists() and other.exists() and path.samefile(other)
