"""tengtune doctor"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from tengtune.cli.command import Command
from tengtune.cli.options import FOLDER, make_console, settings_option
from tengtune.ui.problems import UNFIT_MACHINE, Problem


@click.command("doctor", cls=Command, help="cli.doctor")
@click.argument("run", required=False, type=FOLDER)
@settings_option
@click.option("--from", "root", type=FOLDER, metavar="DIR", help="cli.opt_host_from")
@click.option(
    "--timeout", type=click.FloatRange(0, 600, min_open=True), default=10.0, help="cli.opt_host_timeout"
)
@click.option("--probe", "probed", is_flag=True, help="cli.opt_probe")
@click.option(
    "--probe-timeout",
    type=click.FloatRange(0, 86400, min_open=True),
    default=300.0,
    help="cli.opt_probe_timeout",
)
@click.option("-q", "--quiet", is_flag=True, help="cli.opt_quiet")
@click.option("--json", "as_json", is_flag=True, help="cli.opt_json")
def command(
    run: Path | None,
    overrides: tuple[str, ...],
    root: Path | None,
    timeout: float,
    probed: bool,
    probe_timeout: float,
    quiet: bool,
    as_json: bool,
) -> int:
    """Judge this host, or a saved one, and a run on it."""
    from tengtune.doctor import choice, screen
    from tengtune.doctor.examine import examine
    from tengtune.doctor.finding import Case
    from tengtune.host.place import Place
    from tengtune.host.survey import survey

    console = make_console(quiet, as_json)
    if root is not None and not root.is_dir():
        raise Problem("doctor.no_root", where=root)
    if root is not None and probed:
        raise Problem("doctor.probe_saved", where=f"--probe --from {root}")
    recipe = None
    if run is not None or overrides:
        from tengtune import recipe as recipes

        recipe = recipes.load(run or Path("run.yaml"), overrides)
    folder = recipe.resolve(recipe.output.dir) if recipe else Path.cwd()
    there = next((each for each in (folder, *folder.parents) if each.exists()), Path("/"))
    case = Case(survey(Place(root, timeout), there), recipe, timeout)
    if root is not None and recipe is not None:  # ranks follow that host's cards, not this one's
        recipe = recipes.load(run or Path("run.yaml"), overrides, choice.usable(case))
        case = replace(case, recipe=recipe)
    findings = examine(case)
    if probed:
        from tengtune.doctor import probe

        findings += probe.check(case, console, probe_timeout)
    colour = console.colour and console.out.isatty()
    console.result(screen.text(case, findings, colour), **screen.data(case, findings))
    return UNFIT_MACHINE if any(finding.level == "block" for finding in findings) else 0
