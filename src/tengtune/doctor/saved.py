"""A host judged from wherever it is read: this machine, a folder, or a bundle; and a bundle written of it."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from tengtune.doctor import choice
from tengtune.doctor.examine import examine
from tengtune.doctor.finding import Case, Finding, Inputs, Level
from tengtune.host.place import Place
from tengtune.host.record import Recorder
from tengtune.host.survey import survey
from tengtune.ui import language
from tengtune.ui.console import Console
from tengtune.ui.lists import joined
from tengtune.ui.problems import Problem

if TYPE_CHECKING:  # a bundle's modules are loaded where there is one
    from tengtune.host.bundle import Manifest
    from tengtune.recipe import Recipe

_NEED = "need_"
_MARKS = ("bin/npu-smi*", "bin/lspci*", "usr/local/Ascend", "etc/hccn.conf", "etc/os-release", "proc/meminfo")
"""By these a folder is known to stand for a host; any one is enough."""
Load = Callable[[int | None], "Recipe"]
"""The run file read; given how many cards there are, None: those of this machine."""


@dataclass(frozen=True)
class Source:
    """Where a host is read; manifest: of a bundle."""

    place: Recorder
    manifest: Manifest | None = None


@contextmanager
def source(root: Path | None, seconds: float) -> Iterator[Source]:
    """This machine (root None), a folder that stands for a host, or a bundle. Problem for neither."""
    if root is None or root.is_dir():
        yield Source(Recorder(root, seconds))
    elif root.exists():
        from tengtune.host.bundle import opened

        with opened(root) as (place, manifest):
            yield Source(Recorder(place.folder, place.seconds, place.links, place.faults), manifest)
    else:
        raise Problem("doctor.no_root", where=root)


def judge(source: Source, load: Load | None) -> tuple[Case, list[Finding]]:
    """The host, and the run that `load` reads; without one that of a bundle, if it has one."""
    place, manifest = source.place, source.manifest
    weights = None
    inputs: Inputs = "here" if place.folder is None else "elsewhere"
    if load is None and manifest is not None and manifest.run is not None:
        load, weights, inputs = _packed_run(place, manifest), manifest.run.weights, "told"
    recipe = load(None) if load else None
    folder = recipe.resolve(recipe.output.dir) if recipe else Path.cwd()
    there = next((each for each in (folder, *folder.parents) if each.exists()), Path("/"))
    case = Case(survey(place, there), recipe, place.seconds, weights, inputs)
    if place.folder is not None and manifest is None and place.kept.is_empty:
        raise _no_host(place.folder)  # else it would pass for a machine without cards
    if place.folder is not None and load is not None:  # ranks follow that host's cards, not this one's
        case = replace(case, recipe=load(choice.usable(case)))
    told = _told(manifest) if manifest else []
    if inputs != "told":  # of another run than the bundle's
        told = [each for each in told if not each.code.partition(".")[2].startswith(_NEED)]
    return case, examine(case) + told


def _no_host(folder: Path) -> Problem:
    """Of a folder that nothing could be read from: with the folder above it, or in it, that is a host's."""
    above = folder.resolve().parents[:-1]  # / is this machine
    inside = [each for each in sorted(folder.iterdir()) if each.is_dir()]
    near = (each for each in (*above, *inside) if any(any(each.glob(mark)) for mark in _MARKS))
    found = next(near, None)
    if found is None:
        return Problem("doctor.no_host", where=folder)
    return Problem("doctor.no_host_near", where=folder, near=shlex.quote(str(found)))


def _packed_run(place: Place, manifest: Manifest) -> Load:
    """The run of a bundle, as if it lay here."""
    run = manifest.run
    assert run is not None
    here = Path.cwd() / run.file

    def load(cards: int | None) -> Recipe:
        from tengtune import recipe as recipes
        from tengtune.host.bundle import RUN

        found = recipes.load(place.path(f"/{RUN}/{run.file}"), run.overrides, cards)
        return found.model_copy(update={"file": here})

    return load


def _told(manifest: Manifest) -> list[Finding]:
    """What only that host could find: by --probe, and of the run's files and needs. Problem for findings that
    are none of ours."""
    findings = []
    for level, code, values in manifest.probes:
        known = level in get_args(Level) and _is_told(code)
        finding = Finding(level, code, dict(values))  # type: ignore[arg-type]
        try:
            if not known or "what" not in finding.texts():
                raise KeyError(code)
        except (KeyError, ValueError, IndexError, TypeError, AttributeError) as error:
            raise Problem("doctor.bad_bundle", reason=f"{level[:20]} {code[:80]}") from error
        findings.append(finding)
    return findings


def _is_told(code: str) -> bool:
    """Whether it is the code of a finding that a bundle tells of."""
    return code in language.area_messages("doctor") and code.partition(".")[2].startswith(("probe_", _NEED))


def collect(
    out: Path, source: Source, case: Case, findings: Sequence[Finding], console: Console, force: bool
) -> None:
    """Write a bundle to `out`, say what was masked, and whether it reads back the same."""
    from tengtune import files, lock
    from tengtune.doctor.collect import Collection
    from tengtune.host.bundle import pack

    probes = [each for each in findings if _is_told(each.code)]
    with lock.held(lock.beside(out), console):
        if os.path.lexists(out) and not force:
            raise Problem("check.out_exists", where=out)
        found = Collection(case, source.place, probes)
        with files.atomic_file(out) as stream:
            pack(stream, found.files, found.folders, found.manifest)
    kinds: dict[str, str] = language.lookup("doctor.mask_kinds")
    masked = joined(f"{kinds[kind]} {count}" for kind, count in found.mask.counts.items())
    console.say(
        "doctor.collected", out=out, count=len(found.files), masked=masked or "-", left=found.left_out
    )
    lost = _differences(out, findings)
    if lost:
        console.warn("doctor.bundle_differs", checks=joined(lost))


def _differences(bundle: Path, findings: Sequence[Finding]) -> list[str]:
    """The checks that a bundle is judged otherwise in than the host it is of."""
    try:
        with source(bundle, 0) as saved:
            _, reread = judge(saved, None)
    except Problem as problem:  # the run file's form may have suffered
        return [problem.code]
    before, after = (Counter((each.level, each.code) for each in some) for some in (findings, reread))
    return sorted({code.removeprefix("doctor.") for _, code in (before - after) + (after - before)})
