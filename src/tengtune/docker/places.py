"""Which folders and files of a run a container must see, and under which names it looks for them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from tengtune import facts
from tengtune.files import as_name, as_text
from tengtune.models.hub_id import MODELS
from tengtune.recipe import Recipe
from tengtune.ui.problems import Problem

MOST_LINKS = 40
"""So many links does Linux follow in one path."""


@dataclass(frozen=True)
class Mount:
    """The host's `source` seen as `target` in the container; `why`: docker.why_<why>; `absent`: a folder that
    has to be made first."""

    source: str
    target: str
    why: str
    writable: bool = False
    absent: bool = False


def of_run(recipe: Recipe) -> list[Mount]:
    """The run file's folder (first), then what the run file names outside of it, and where results go.

    Every path keeps its name, so that the run file holds inside as it does outside. Problem for a path that
    is not there, that means something else inside (`~`), or that would cover what the image brings.
    """
    home = os.path.realpath(recipe.file.parent)
    view = _View()
    view.add(home, "run_file")
    view.add(os.path.join(home, recipe.file.name), "run_file")
    _check_output(recipe)
    view.add(_written(recipe, recipe.output.dir), "results", writable=True)
    if recipe.to_download:
        view.add(_written(recipe, MODELS), "download", writable=True)
    else:
        hub = recipe.hub_model
        folder = f"{MODELS}/{hub.split('/')[1]}" if hub else recipe.model.path
        view.add_folder(_written(recipe, folder), "model")
    for name in recipe.data.files:
        view.add_record(_written(recipe, name), "data")
    for name in recipe.output.evaluate:
        view.add(_written(recipe, name), "questions")
    return [_checked(mount) for mount in view.mounts.values()]


def _written(recipe: Recipe, path: str) -> str:
    """A path of the run file before links are followed."""
    if path.startswith("~"):
        raise Problem("docker.home", where=recipe.file, path=path, full=os.path.expanduser(path))
    return os.path.join(os.path.realpath(recipe.file.parent), as_name(path))


def _check_output(recipe: Recipe) -> None:
    """Problem where output.dir, or what leads there, is a file."""
    folder = recipe.resolve(recipe.output.dir)
    there = next(place for place in (folder, *folder.parents) if os.path.lexists(place))
    if not there.is_dir():
        raise Problem("engine.dir_no_folder", where=there, folder=folder)


class _View:
    """What the container sees: mounts by their target."""

    def __init__(self) -> None:
        self.mounts: dict[str, Mount] = {}

    def add(self, path: str, why: str, writable: bool = False) -> Mount:
        """Let the container see `path` under this name, links on the way followed as far as it sees them."""
        source, target = os.path.realpath(path), self._inside(path)
        absent = not os.path.exists(source)
        if absent and not writable:
            raise Problem("docker.absent", where=as_text(path), what=source)
        mount = Mount(source, target, why, writable, absent)
        if self._sees(target) and not writable:
            return mount
        known = self.mounts.get(target)
        if known is None:
            self.mounts[target] = mount
        else:
            self.mounts[target] = replace(known, writable=known.writable or writable)
        return mount

    def add_folder(self, path: str, why: str) -> None:
        """`add`, and what links in the folder lead to: the caches of hub clients consist of such links."""
        folder = self.add(path, why)
        if not os.path.isdir(folder.source):
            return
        for name in sorted(os.listdir(folder.source)):
            link = os.path.join(folder.source, name)
            if not os.path.islink(link) or not os.path.exists(link):
                continue
            source = os.path.realpath(link)
            target = self._inside(os.path.join(folder.target, os.readlink(link)))
            if self._sees(target):
                continue
            if os.path.isfile(source) and os.path.basename(source) == os.path.basename(target):
                source, target = os.path.dirname(source), os.path.dirname(target)
            self.mounts.setdefault(target, Mount(source, target, why))

    def add_record(self, path: str, why: str) -> None:
        """`add` a data file; of a MindRecord, which has its indexes beside it, all shards and indexes."""
        real = Path(os.path.realpath(path))
        parts = _mindrecord(real)
        if not parts:
            self.add(path, why)
        for name in parts:
            self.add(os.path.join(os.path.dirname(path), name), why)

    def _sees(self, path: str) -> bool:
        return any(_below(path, mount.target) for mount in self.mounts.values())

    def _inside(self, path: str) -> str:
        """What `path` resolves to in the container: a link it does not see is no link there."""
        at, waiting, links = "/", _parts(path), 0
        while waiting:
            part = waiting.pop()
            there = os.path.dirname(at) if part == ".." else os.path.join(at, part)
            links += os.path.islink(there)
            if os.path.islink(there) and links <= MOST_LINKS and self._shows(there):
                text = os.readlink(there)
                at = "/" if os.path.isabs(text) else at
                waiting += _parts(text)
            else:
                at = there
        return at

    def _shows(self, path: str) -> bool:
        """Whether the container sees this very path of the host."""
        return any(_below(path, each.target) for each in self.mounts.values() if each.source == each.target)


def _mindrecord(path: Path) -> list[str]:
    """The names of a MindRecord's files; none for any other file."""
    index = re.compile(re.escape(path.name) + r"\d*\.db")
    if not path.parent.is_dir() or not any(index.fullmatch(name) for name in os.listdir(path.parent)):
        return []
    from tengtune.data import mindrecord  # imports NumPy, for which the others need not wait

    found = mindrecord.parts(mindrecord.first_shard(path))
    return [part.name for part in found] if len(found) > 1 else []


def _parts(path: str) -> list[str]:
    """A path's parts, the last first."""
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]


def _below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _checked(mount: Mount) -> Mount:
    """The mount in UTF-8; Problem for a name no command can carry, or a place that must not be covered."""
    source, target = as_text(mount.source), as_text(mount.target)
    for path in (source, target):
        if reason := _unfit(path):
            raise Problem("docker.name", where=ascii(path), reason=reason)
    place = next(_covered(target), None)
    if place is not None:
        raise Problem("docker.covers", where=target, place=place)
    return replace(mount, source=source, target=target)


def _unfit(path: str) -> str:
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:
        return "UTF-8"
    odd = next((c for c in path if ord(c) < 32 or ord(c) == 127 or c in "\x85\u2028\u2029"), None)
    return ascii(odd) if odd else "' '" if path != path.strip() else ""


def _covered(target: str) -> Iterator[str]:
    """The places of the image that a mount on `target` would hide or fall into."""
    covered: dict[str, Iterable[str]] = facts.tree("docker.yaml")["covered"]
    yield from (place for place in covered["whole"] if _below(place, target))
    yield from (place for place in covered["below"] if _below(target, place))
