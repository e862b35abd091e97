"""Making the folder of a run, and setting an old one aside."""

from __future__ import annotations

import os
from pathlib import Path

from tengtune.ui.problems import WRONG_INPUT, Problem, from_os_error, os_errors


def make(folder: Path) -> None:
    """Make the folder of output.dir, or the run's in it, with all that leads there."""
    there = next(place for place in (folder, *folder.parents) if os.path.lexists(place))
    if not there.is_dir():
        raise Problem("engine.dir_no_folder", where=there, folder=folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        known = from_os_error(error, folder)
        if known is not None and known.exit_code != WRONG_INPUT:
            raise known from error
        reason = os.strerror(error.errno or 0)
        raise Problem("engine.dir_unfit", where=folder, reason=reason) from error


def set_aside(folder: Path) -> None:
    """Rename an old run folder to `<name>.old-N`: --fresh loses nothing."""
    number = 1
    while (target := folder.with_name(f"{folder.name}.old-{number}")).exists():
        number += 1
    with os_errors(folder):
        os.replace(folder, target)
