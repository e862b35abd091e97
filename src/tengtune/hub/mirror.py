"""A folder on this machine in place of a hub: a disk carried behind the air gap, a share, another copy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tengtune.hub import faults
from tengtune.hub.base import Answer, Listing, RemoteFile
from tengtune.hub.record import read_record
from tengtune.ui.lists import first_few
from tengtune.ui.problems import Problem, os_errors

PIECE = 1 << 20


class Mirror:
    """A folder with one model in it, or with many as `owner/name` or `name`.

    The hashes are those of the folder's own download record, whatever name it was fetched by: it is about
    these files. A folder without one offers sizes only.
    """

    name = "folder"
    revision = ""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.expanduser().absolute()
        self.endpoint = str(self.folder)
        if not self.folder.is_dir():
            raise Problem("download.no_such_mirror", where=folder)

    def listing(self, repo: str, revision: str) -> Listing:
        folder = self._model(repo)
        record = read_record(folder)
        if record is not None and not record.whole:
            raise Problem("download.mirror_not_whole", where=folder, model=record.model)
        if revision and (record is None or revision != record.revision):
            raise faults.no_revision(self, repo, revision, [record.revision] if record is not None else [])
        known = record.files if record is not None else {}
        with os_errors(folder):
            sizes = {path.name: path.stat().st_size for path in folder.iterdir() if path.is_file()}
        broken = sorted(name for name, entry in known.items() if sizes.get(name) != entry.size)
        if broken:
            raise Problem("download.mirror_damaged", where=folder, files=first_few(broken))
        hashes = {name: entry.sha256 for name, entry in known.items()}
        files = [RemoteFile(name, size, hashes.get(name, "")) for name, size in sorted(sizes.items())]
        return Listing(record.revision if record is not None else revision, files)

    @contextmanager
    def open(self, repo: str, pin: str, file: str, start: int) -> Iterator[Answer]:
        path = self._model(repo) / file
        with os_errors(path), open(path, "rb") as stream:
            stream.seek(start)
            yield Answer(start, iter(lambda: stream.read(PIECE), b""))

    def path(self, repo: str, file: str) -> Path | None:
        return self._model(repo) / file

    def _model(self, repo: str) -> Path:
        """The model's folder in the mirror: that of its name, or the mirror itself if it is a model."""
        places = [self.folder / repo, self.folder / repo.split("/")[1], self.folder]
        for place in places:
            if (place / "config.json").is_file():
                return place
        raise Problem("download.not_in_mirror", where=self.folder, model=repo, places=first_few(places))
