"""`tengtune weights verify`"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tengtune.cli.options import make_console
from tengtune.ui import language
from tengtune.ui.console import Console
from tengtune.ui.lists import first_few, size
from tengtune.ui.problems import Problem

if TYPE_CHECKING:
    from tengtune.hub.record import Record


@click.group("weights")
def command() -> None:
    """查看和核对权重 / Look at weights and check them."""


@command.command("verify")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("-q", "--quiet", is_flag=True, help="只输出结果 / results only")
@click.option("--json", "as_json", is_flag=True, help="JSON 行 / JSON lines")
def verify(folder: Path, quiet: bool, as_json: bool) -> None:
    """按下载记录核对目录中每个文件的 sha256 / Check every file against the sha256 of its download."""
    from tengtune.hub.record import read_record
    from tengtune.weights.source import read_folder

    console = make_console(quiet, as_json)
    record = read_record(folder)
    if record is not None:
        _hashes(folder, record, console)
        return
    tensors = len(read_folder(folder))  # Problem: a file is missing, cut or damaged in its header
    console.warn("download.no_record")
    console.result(language.say("download.headers_right", tensors=tensors), tensors=tensors, sha256=None)


def _hashes(folder: Path, record: Record, console: Console) -> None:
    """The whole contents of every recorded file; Problem where one differs or the download is not whole."""
    from tengtune.hub.meter import meter
    from tengtune.hub.record import damaged

    if not record.whole:
        raise Problem("download.not_whole", where=folder, model=record.model)
    with meter(console, record.bytes, "download.hashing") as advance:
        broken = damaged(folder, record, advance, full=True)
    if broken:
        raise Problem("download.not_intact", where=folder, files=first_few(broken))
    told = language.say(
        "download.intact",
        model=record.model,
        files=len(record.files),
        size=size(record.bytes),
        source=record.endpoint,
    )
    console.result(told, model=record.model, sha256={name: e.sha256 for name, e in record.files.items()})
