"""tengtune init"""

from __future__ import annotations

import errno
import json
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tengtune import files
from tengtune.cli.command import Command
from tengtune.cli.options import FOLDER
from tengtune.ui import language
from tengtune.ui.console import Console
from tengtune.ui.near import did_you_mean
from tengtune.ui.problems import Problem, os_errors

if TYPE_CHECKING:
    from tengtune.data.proportions import Proportions

TEMPLATE = """# tengtune run {run}
model: {model}
data:
  files: {data}
  seq_len: {seq_len:<13} # {about_seq_len}
  heldout: {heldout:<13} # {about_heldout}
train:
  method: lora           # lora | full
  epochs: {epochs:<14} # {about_epochs}
  global_batch: {global_batch:<8} # {about_batch}
output:
  prompts: []            # {about_prompts}
# {rule}
"""


@click.command("init", cls=Command, help="cli.init")
@click.argument("model", type=FOLDER)
@click.argument("data", type=FOLDER, nargs=-1, required=True)
@click.option("-o", "--out", default="run.yaml", type=FOLDER, help="cli.opt_out_file")
def command(model: Path, data: tuple[Path, ...], out: Path) -> None:
    """Write a run file for a model folder and data files."""
    from tengtune.models import spec as specs

    check_names(model, *data, out)
    spec = specs.from_folder(model)
    for path in data:
        check_data(path)
    check_out(out)
    from tengtune.data.proportions import look, suit
    from tengtune.data.render import style_of
    from tengtune.report.verdict import ENOUGH_TOKENS

    sample = look({str(path): path for path in data}, style_of(model, spec, "assistant", None))
    chosen = suit(sample, spec.max_positions)
    write(out, _text(model, data, out, chosen))
    console = Console()
    if chosen.records:
        console.say("run.sized", **_figures(chosen))
        enough = chosen.held_labels >= ENOUGH_TOKENS
        values = {
            "percent": f"{chosen.heldout:.0%}",
            "held": chosen.held_records,
            "labels": chosen.held_labels,
        }
        (console.say if enough else console.warn)("run.held" if enough else "run.held_little", **values)
    else:
        console.warn("run.no_records", files=shlex.join(map(str, data)))
    name = shlex.quote(str(out))
    console.result(f"{out}\ntengtune run {name}")


def write(out: Path, text: str) -> None:
    try:
        files.write_text(out, text)
    except Problem as problem:
        if problem.code != "io.not_found":
            raise
        raise Problem("run.out_unfit", where=out, reason=problem.values["reason"]) from problem


def _text(model: Path, data: tuple[Path, ...], out: Path, chosen: Proportions) -> str:
    """The run file."""
    names = [_quoted(written(path, out.parent)) for path in data]
    rule = [language.say("run.sized", **_figures(chosen))] if chosen.records else []
    rule += language.say("run.rule").splitlines()
    return TEMPLATE.format(
        run=files.as_text(out.name),
        model=_quoted(written(model, out.parent)),
        data=names[0] if len(names) == 1 else f"[{', '.join(names)}]",
        seq_len=chosen.seq_len,
        heldout=chosen.heldout,
        epochs=chosen.epochs,
        global_batch=chosen.global_batch,
        rule="\n# ".join(rule),
        **{
            f"about_{key}": language.say(f"run.{key}")
            for key in ("seq_len", "heldout", "epochs", "batch", "prompts")
        },
    )


def _figures(chosen: Proportions) -> dict[str, int]:
    """What is told of the proportions."""
    names = ("records", "rows", "seq_len", "global_batch", "epochs", "steps")
    return {name: getattr(chosen, name) for name in names}


def written(path: Path, folder: Path) -> str:
    """A path as the run file in `folder` has it: absolute as it is, relative from there on."""
    text = str(path)
    if not path.is_absolute():
        text = os.path.relpath(path, folder)
        # `~` at the beginning and `..` behind a link mean something else there.
        if (folder / Path(text).expanduser()).resolve() != path.resolve():
            text = str(path.absolute())
    return files.as_text(text)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def check_names(*paths: Path) -> None:
    """A run file is UTF-8; a name that is not cannot be in it."""
    for path in paths:
        try:
            os.fsencode(path).decode("utf-8")
        except UnicodeError as error:
            raise Problem("run.name_not_utf8", where=str(path).encode("utf-8", "replace").decode()) from error


def check_data(path: Path) -> None:
    """Problem unless `path` is a file."""
    with os_errors(path):
        if path.is_file():
            return
        if path.is_dir():
            raise Problem("run.data_is_folder", where=path)
        if path.exists():
            raise Problem("io.not_plain", where=path)
    raise Problem("run.no_data", where=path, suggestion=did_you_mean(path.absolute()), here=Path.cwd())


def check_out(out: Path) -> None:
    """Problem if something is there already."""
    with os_errors(out):
        if out.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if os.path.lexists(out):
            raise Problem("run.exists", where=out)
