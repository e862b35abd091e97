"""tengtune doctor"""

from __future__ import annotations

from pathlib import Path

import click

from tengtune.cli.command import Command
from tengtune.cli.options import FOLDER, Number, make_console, settings_option
from tengtune.ui.problems import UNFIT_MACHINE, Problem


@click.command("doctor", cls=Command, help="cli.doctor")
@click.argument("run", required=False, type=FOLDER)
@settings_option
@click.option("--from", "root", type=FOLDER, metavar="DIR|BUNDLE", help="cli.opt_host_from")
@click.option("--collect", "out", type=FOLDER, metavar="BUNDLE", help="cli.opt_collect")
@click.option("--force", is_flag=True, help="cli.opt_overwrite_bundle")
@click.option("--timeout", type=Number(0, 600, min_open=True), default=10.0, help="cli.opt_host_timeout")
@click.option("--probe", "probed", is_flag=True, help="cli.opt_probe")
@click.option(
    "--probe-timeout",
    type=Number(0, 86400, min_open=True),
    default=300.0,
    help="cli.opt_probe_timeout",
)
@click.option("-q", "--quiet", is_flag=True, help="cli.opt_quiet")
@click.option("--json", "as_json", is_flag=True, help="cli.opt_json")
def command(
    run: Path | None,
    overrides: tuple[str, ...],
    root: Path | None,
    out: Path | None,
    force: bool,
    timeout: float,
    probed: bool,
    probe_timeout: float,
    quiet: bool,
    as_json: bool,
) -> int:
    """Judge this host, or a saved one, and a run on it."""
    from tengtune.doctor import saved, screen

    console = make_console(quiet, as_json)
    if root is not None and probed:
        raise Problem("doctor.probe_saved", where=f"--probe --from {root}")
    load: saved.Load | None = None
    if run is not None or overrides:
        from tengtune import recipe as recipes

        def load(cards: int | None) -> recipes.Recipe:
            return recipes.load(run or Path("run.yaml"), overrides, cards)

    with saved.source(root, timeout) as source:
        case, findings = saved.judge(source, load)
        if probed:
            from tengtune.doctor import probe

            findings += probe.check(case, console, probe_timeout)
        if out is not None:
            saved.collect(out, source, case, findings, console, force)
    colour = console.colour and console.out.isatty()
    console.result(screen.text(case, findings, colour, quiet), **screen.data(case, findings))
    return UNFIT_MACHINE if any(finding.level == "block" for finding in findings) else 0
