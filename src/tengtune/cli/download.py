"""tengtune download"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tengtune.cli.command import Command
from tengtune.cli.options import make_console
from tengtune.ui import language
from tengtune.ui.console import Console
from tengtune.ui.lists import size

if TYPE_CHECKING:
    from tengtune.hub.plan import Plan


@click.command("download", cls=Command, help="cli.download")
@click.argument("model")
@click.option("--to", "folder", type=click.Path(path_type=Path), help="cli.opt_to_folder")
@click.option(
    "--from",
    "source",
    metavar="modelscope|huggingface|DIR",
    help="cli.opt_from",
)
@click.option("--revision", metavar="NAME", help="cli.opt_revision")
@click.option("--dry-run", is_flag=True, help="cli.opt_list_only")
@click.option("-q", "--quiet", is_flag=True, help="cli.opt_quiet")
@click.option("--json", "as_json", is_flag=True, help="cli.opt_json")
def command(
    model: str,
    folder: Path | None,
    source: str | None,
    revision: str | None,
    dry_run: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Bring a model, say Qwen/Qwen2.5-7B-Instruct, from a hub, and verify it."""
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
        state = _state(plan, file.name, there > 0)
        rows.append([file.name, size(file.size), language.say(f"download.state_{state}", there=size(there))])
    for file, reason in plan.choice.skipped:
        rows.append([file.name, size(file.size), language.say("download.state_skip", reason=reason)])
    console.table(language.say("download.columns").split("|"), rows)
    told = language.say(
        "download.plan_linked" if plan.linked else "download.plan",
        count=len(plan.missing) - len(plan.linked),
        linked=len(plan.linked),
        files=len(plan.choice.needed),
        size=size(plan.need),
        total=size(plan.choice.bytes),
        free=size(plan.free),
        source=plan.hub.endpoint,
        folder=folder,
    )
    console.result(
        told,
        fetch=[{"file": file.name, "size": file.size, "sha256": file.sha256} for file in plan.missing],
        skipped=[file.name for file, _ in plan.choice.skipped],
        linked=sorted(plan.linked),
        need=plan.need,
        free=plan.free,
        source=plan.hub.endpoint,
        folder=str(folder),
    )


def _state(plan: Plan, name: str, begun: bool) -> str:
    """What is to be done for a needed file: the end of a text's code."""
    if name in plan.have:
        return "have"
    if name in plan.linked:
        return "link"
    return "resume" if begun else "fetch"
