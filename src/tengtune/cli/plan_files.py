"""What `tengtune plan` writes: a run file, a chart."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tengtune.cli.command import misused
from tengtune.plan.profiles import OURS
from tengtune.ui import language
from tengtune.ui.problems import UNFIT_MACHINE, Problem, os_errors

if TYPE_CHECKING:
    from tengtune.cli.plan_ask import Asked


def check(
    write_to: Path | None,
    data: Sequence[Path],
    png: Path | None,
    force: bool,
    run: Path | None,
    compare: bool,
) -> None:
    """Problem for files that are there already (unless forced), for options that say nothing here, and for a
    chart without matplotlib."""
    from tengtune.cli import init

    if (data and write_to is None) or (compare and (write_to or png)):
        raise misused("plan.nothing_written")
    for each in data:
        init.check_data(each)
    init.check_names(*data, *(path for path in (write_to, png) if path))
    if png is not None:
        from tengtune.report import plot

        if not plot.available():
            raise Problem("plan.no_chart")
    if write_to is not None and png is not None and _same(write_to, png):
        raise Problem("plan.written_twice", where=png)
    for path in (write_to, png):
        if path is not None:
            _check_place(path, force, [*data, *([run] if run and path is png else [])])
    if write_to is not None and run is not None and write_to.absolute().parent != run.absolute().parent:
        raise Problem("plan.write_beside", where=write_to, folder=run.absolute().parent)


def _check_place(path: Path, force: bool, read: Sequence[Path]) -> None:
    """Problem unless a file may be written there. read: files that this call reads."""
    with os_errors(path):
        if path.is_dir():
            raise Problem("plan.is_folder", where=path)
        if path.exists() and not path.is_file():
            raise Problem("io.not_plain", where=path)
        if any(_same(path, each) for each in read):
            raise Problem("plan.is_read", where=path)
        if path.exists() and not force:
            raise Problem("plan.exists", where=path)
        if not path.parent.exists():
            raise Problem("plan.no_folder", where=path, folder=shlex.quote(str(path.parent)))


def _same(one: Path, other: Path) -> bool:
    """Whether two paths lead to one file, which need not be there."""
    return one.resolve() == other.resolve()


def write(asked: Asked, path: Path, data: Sequence[Path], overrides: Sequence[str]) -> None:
    """Write the best way as a run file; Problem where there is none."""
    from tengtune.cli import init
    from tengtune.models.hub_id import full_id
    from tengtune.plan import run_file

    if asked.plan.engine not in OURS:
        raise Problem("plan.not_ours_to_write", where=path, engine=asked.plan.engine)
    if not asked.ways or asked.ways[0].plan.verdict == "no":
        raise Problem("plan.none_to_write", exit_code=UNFIT_MACHINE)
    best, files = asked.ways[0], [init.written(each, path.parent) for each in data]
    if asked.recipe is None:
        named = Path(asked.name)
        folder = named.parent if named.is_file() else named
        model = init.written(folder, path.parent) if folder.exists() else full_id(asked.name)
        text = run_file.new(best, model, files, asked.question.global_batch)
    else:
        text = _changed(asked, files, overrides)
    init.write(path, text)


def _changed(asked: Asked, data: Sequence[str], overrides: Sequence[str]) -> str:
    """The run file's text with the settings of this call and what the best way changes."""
    from tengtune import recipe as recipes
    from tengtune import run_yaml
    from tengtune.files import as_text
    from tengtune.plan import rewrite, run_file

    recipe = asked.recipe
    assert recipe is not None
    text = recipe.file.read_text(encoding="utf-8-sig")
    values, lines = run_yaml.parse(text, recipe.file)
    for override in overrides:
        recipes.override_value(values, as_text(override), lines)
    return rewrite.rewritten(text, recipe.file, run_file.changed(asked.ways[0], recipe, values, data))


def draw(asked: Asked, path: Path) -> None:
    """Write the chart."""
    from tengtune import files
    from tengtune.plan import picture

    with files.atomic_file(path) as stream:
        picture.draw(asked.plan, asked.name, stream)


def made(asked: Asked, write_to: Path | None, png: Path | None) -> list[str]:
    """What to do with the files."""
    lines = []
    if write_to is not None:
        lines.append(language.say("plan.wrote", file=write_to, run=shlex.quote(str(write_to))))
        lines += _to_fetch(asked, write_to)
    if png is not None:
        lines.append(str(png))
    return ["", *lines] if lines else []


def _to_fetch(asked: Asked, run: Path) -> list[str]:
    """How to bring the model of the run file `run`, where it is a hub's and not there yet."""
    from tengtune.models.hub_id import MODELS, full_id, hub_id_in

    name = full_id(asked.name) if asked.recipe is None else asked.name
    model = hub_id_in(name, run.parent)
    if model is None:
        return []
    folder = run.parent / MODELS / model.split("/")[1]
    if (folder / "config.json").exists():
        return []
    return [language.say("plan.wrote_download", model=model, folder=shlex.quote(str(folder)))]
