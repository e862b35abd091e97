"""Where weights may be written: what makes an output anew removes what stands there and beside it."""

from __future__ import annotations

import os
from pathlib import Path

from tengtune.files import working_names
from tengtune.lock import beside
from tengtune.ui.problems import Problem, os_errors


def refuse_here(out: Path) -> None:
    """Problem where the output would be the folder the command is called in, or has no name of its own, or
    is a link: it would be replaced, and the disk it leads to measured for the one it lies on."""
    if out.is_symlink():
        raise Problem("io.link", where=out.absolute(), target=os.readlink(out))
    if out.name in ("", "..") or (out.exists() and out.samefile(".")):
        raise Problem("io.here", where=out.absolute())


def refuse_input(code: str, out: Path, *inputs: Path) -> None:
    """Problem `code` where writing `out` would remove an input before it is read: one that is, or lies in,
    `out` or a name used on the way. Folders are looked into for links that lead there."""
    for given in inputs:
        with os_errors(given):
            entries = list(given.iterdir()) if given.is_dir() else []
        there = {place for path in (given, *entries) for way in _ways(path) for place in (way, *way.parents)}
        for place in (out, *working_names(out), beside(out)):
            if there & _ways(place):
                raise Problem(code, where=place, input=given)


def _ways(path: Path) -> set[Path]:
    """The path as it is named, and what it leads to."""
    return {Path(os.path.abspath(path)), Path(os.path.realpath(path))}
