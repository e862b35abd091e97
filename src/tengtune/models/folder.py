"""A model's folder is there: asked before anything is read from it, and answered alike by every command."""

from __future__ import annotations

import shlex
from pathlib import Path

from tengtune.models.hub_id import is_hub_id, nearest
from tengtune.ui.lists import joined
from tengtune.ui.near import did_you_mean
from tengtune.ui.problems import Problem, os_errors

EXAMPLE = "Qwen/Qwen2.5-7B-Instruct"
IN_RUN = ("merged", "adapter", "full", "mindspore")
"""The folders of weights in a run folder."""
PLACEHOLDER = "path/to/model"
"""What stands in a run file for a model's folder that was not named."""


def require(folder: Path) -> None:
    """Problem where no folder is: with those that are called alike, and the hub's model that may be meant."""
    with os_errors(folder):
        if folder.is_dir():
            return
        if folder.exists():
            raise Problem("folder.is_file", where=folder)
        if folder.as_posix().endswith(PLACEHOLDER):
            raise Problem("folder.placeholder", where=folder, path=PLACEHOLDER, example=EXAMPLE)
        raise Problem(
            "folder.missing",
            where=folder,
            near=did_you_mean(folder, folders=True),
            id=_hub_id(folder),
            to=shlex.quote(str(folder)),
        )


def refuse_run_folder(folder: Path) -> None:
    """Problem where weights are looked for in a run folder, in which they lie one folder deeper."""
    inside = [folder / name for name in IN_RUN if (folder / name).is_dir()]
    if inside and (folder / "run.yaml").is_file():
        raise Problem("folder.is_run", where=folder, inside=joined(inside))


def _hub_id(folder: Path) -> str:
    """The id on a hub that the path may stand for."""
    typed = "/".join(folder.parts[-2:])
    if is_hub_id(typed) and not folder.parent.exists():
        return typed
    return next(iter(nearest(folder.name)), EXAMPLE)
