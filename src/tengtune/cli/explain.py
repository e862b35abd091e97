"""tengtune explain"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from tengtune.cli.command import Command
from tengtune.cli.options import make_console

UNKNOWN = 1
"""Exit code: read, and no cause to name, also where nothing looks like a failure: 0 is for a cause alone."""


@click.command("explain", cls=Command, help="cli.explain")
@click.argument("logs", nargs=-1, required=True, metavar="LOG|DIR|-...")
@click.option("--facts", type=click.Path(path_type=Path), multiple=True, metavar="FILE", help="cli.opt_facts")
@click.option("-q", "--quiet", is_flag=True, help="cli.opt_quiet")
@click.option("--json", "as_json", is_flag=True, help="cli.opt_json")
def command(logs: tuple[str, ...], facts: tuple[Path, ...], quiet: bool, as_json: bool) -> int:
    """Say what failed first, by logs alone."""
    from tengtune.explain import known, screen
    from tengtune.explain.logs import explain
    from tengtune.explain.streams import STDIN

    console = make_console(quiet, as_json)
    errors = known.load(facts)
    if STDIN in logs and sys.stdin is not None and sys.stdin.isatty():
        console.say("explain.paste")
    account = explain(logs, errors, console.warn)
    console.result(screen.text(account), **screen.data(account))
    return 0 if account.diagnosis.error else UNKNOWN
