"""tengtune download"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tengtune.cli.options import make_console
from tengtune.ui import language
from tengtune.ui.console import Console
from tengtune.ui.lists import size

if TYPE_CHECKING:
    from tengtune.hub.plan import Plan


@click.command("download")
@click.argument("model")
@click.option(
    "--to", "folder", type=click.Path(path_type=Path), help="目标目录，默认 models/模型名 / target folder"
)
@click.option(
    "--from",
    "source",
    metavar="modelscope|huggingface|DIR",
    help="来源，默认 modelscope；也可以是本地目录 / a hub, or a folder on this machine",
)
@click.option("--revision", metavar="NAME", help="分支、标签或提交号 / branch, tag or commit")
@click.option("--dry-run", is_flag=True, help="只列出将要下载的文件 / only list what would be fetched")
@click.option("-q", "--quiet", is_flag=True, help="只输出结果 / results only")
@click.option("--json", "as_json", is_flag=True, help="JSON 行 / JSON lines")
def command(
    model: str,
    folder: Path | None,
    source: str | None,
    revision: str | None,
    dry_run: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """下载模型 MODEL（如 Qwen/Qwen2.5-7B-Instruct）并校验 / Bring a model from a hub, verified.

    已经完整时不产生任何网络流量；中断后重新执行即可续传。
    A model that is whole causes no traffic; what was interrupted goes on.
    """
    from tengtune.hub import download, plan

    console = make_console(quiet, as_json)
    wish = plan.wish_for(model, folder, source, revision)
    if not dry_run:
        console.result(str(wish.folder), **download.bring(wish, console))
    elif (record := plan.whole_record(wish, console)) is not None:
        said = language.say("download.whole", model=record.model, folder=wish.folder)
        console.result(said, fetch=[], need=0)
    else:
        _list(plan.make_plan(wish, console), wish.folder, console)


def _list(plan: Plan, folder: Path, console: Console) -> None:
    """The table of files, and the sum; the files to fetch under --json."""
    from tengtune.hub.transfer import kept_bytes

    rows = []
    for file in plan.choice.needed:
        there = kept_bytes(folder, file)
        state = "have" if file.name in plan.have else "resume" if there else "fetch"
        rows.append([file.name, size(file.size), language.say(f"download.state_{state}", there=size(there))])
    for file, reason in plan.choice.skipped:
        rows.append([file.name, size(file.size), language.say("download.state_skip", reason=reason)])
    console.table(language.say("download.columns").split("|"), rows)
    told = language.say(
        "download.plan",
        count=len(plan.missing),
        files=len(plan.choice.needed),
        size=size(plan.need),
        total=size(plan.choice.bytes),
        free=size(plan.free),
    )
    console.result(
        told,
        fetch=[{"file": file.name, "size": file.size, "sha256": file.sha256} for file in plan.missing],
        skipped=[file.name for file, _ in plan.choice.skipped],
        need=plan.need,
        free=plan.free,
    )
