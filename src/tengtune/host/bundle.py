"""A host in one file: a .tar.gz of a folder that stands for its root, and of what a folder cannot hold.

A bundle comes from somebody else. What is in it may be wrong, never harmful: only plain files and folders
with names inside it are unpacked, none of them can be run, and neither their number nor their sizes are more
than a bundle of ours has. Links of the host are data (Place.links), not links on the disk.
"""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, get_args

from tengtune.files import open_plain
from tengtune.host.place import MOST_BYTES, Fault, Place
from tengtune.json_file import parse_object
from tengtune.ui.problems import Problem, os_errors

VERSION = 1
OWN = "tengtune"
"""The folder of what is not the host's: it can't be a name in the host's root that is read."""
_MANIFEST = f"{OWN}/bundle.json"
RUN = f"{OWN}/run"
MOST_MEMBERS = 4000
MOST_UNPACKED = 64 << 20
MOST_PACKED = 32 << 20
_DAMAGE = (tarfile.TarError, EOFError, zlib.error, ValueError, RecursionError, gzip.BadGzipFile)


@dataclass(frozen=True)
class Asked:
    """The run that was judged: the name of its file in RUN, its settings from the command line, and the size
    of its model's weights."""

    file: str
    overrides: tuple[str, ...] = ()
    weights: int = 0


@dataclass(frozen=True)
class Manifest:
    """What a folder cannot hold. seconds, links, faults: see Place. probes: findings of --probe and of
    the run's needs, each level, code and values."""

    seconds: float = 10.0
    links: Mapping[str, str] = field(default_factory=dict)
    faults: Mapping[str, Fault] = field(default_factory=dict)
    run: Asked | None = None
    probes: Sequence[tuple[str, str, Mapping[str, str]]] = ()


def pack(stream: Any, files: Mapping[str, bytes], folders: Iterable[str], manifest: Manifest) -> None:
    """Write a bundle; names are relative to the host's root, and no file's is a folder's."""
    own = {_MANIFEST: json.dumps({"version": VERSION, **asdict(manifest)}, indent=1).encode()}
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=stream, mtime=0) as packed,  # else it names the file
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for name in sorted(folders):
            member = tarfile.TarInfo(name)
            member.type, member.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(member)
        for name, data in sorted((own | dict(files)).items()):
            member = tarfile.TarInfo(name)
            member.size, member.mode = min(len(data), MOST_BYTES), 0o644
            tar.addfile(member, io.BytesIO(data))


@contextmanager
def opened(path: Path) -> Iterator[tuple[Place, Manifest]]:
    """A bundle as a Place, unpacked for as long as the block runs. Problem for what is none of ours."""
    with tempfile.TemporaryDirectory(prefix="tengtune-bundle-") as folder:
        root = Path(folder)
        _unpack(path, root)
        manifest = _manifest(path, root / _MANIFEST)
        yield Place(root, manifest.seconds, manifest.links, manifest.faults), manifest


def _unpack(path: Path, root: Path) -> None:
    with os_errors(path), open_plain(path) as stream:
        packed = stream.read(MOST_PACKED + 1)
    if len(packed) > MOST_PACKED:
        raise _refused(path, f"> {MOST_PACKED} bytes")
    try:
        with os_errors(root), gzip.GzipFile(fileobj=io.BytesIO(packed)) as unpacked:
            data = unpacked.read(MOST_UNPACKED + 1)
        if len(data) > MOST_UNPACKED:
            raise _refused(path, f"> {MOST_UNPACKED} bytes")
        with os_errors(root), tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
            for number, member in enumerate(tar):
                if number >= MOST_MEMBERS:
                    raise _refused(path, f"> {MOST_MEMBERS} files")
                _place(path, tar, member, root)
    except _DAMAGE as error:
        raise _refused(path, str(error)[:200] or type(error).__name__) from error


def _place(path: Path, tar: tarfile.TarFile, member: tarfile.TarInfo, root: Path) -> None:
    """Put a member into the folder; Problem for anything but a plain file or a folder inside it."""
    name = PurePosixPath(member.name)
    if name.is_absolute() or ".." in name.parts or not name.parts or "\0" in member.name:
        raise _refused(path, repr(member.name)[:200])
    if not (member.isreg() or member.isdir()) or member.size > MOST_BYTES or member.issparse():
        raise _refused(path, repr(member.name)[:200])
    target = root / name
    if member.isdir():
        target.mkdir(parents=True, exist_ok=True)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    content = tar.extractfile(member)
    with target.open("xb") as stream:  # a second one of a name is refused
        stream.write(content.read() if content else b"")
    target.chmod(0o600)


def _manifest(path: Path, file: Path) -> Manifest:
    """The manifest; Problem where it is missing, damaged or of another version."""
    if not file.is_file():
        raise _refused(path, f"{_MANIFEST}: -")
    tree = parse_object(file.read_bytes(), path, "doctor.bad_bundle")
    try:
        if tree["version"] != VERSION:
            raise _refused(path, f"version {str(tree['version'])[:20]}")
        run = tree["run"]
        manifest = Manifest(
            float(tree["seconds"]),
            _texts(tree["links"]),
            {name: fault for name, fault in _texts(tree["faults"]).items() if fault in get_args(Fault)},
            None if run is None else _asked(run),
            [(str(level), str(code), _texts(values)) for level, code, values in tree["probes"]],
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise _refused(path, f"{_MANIFEST}: {type(error).__name__}") from error
    return manifest


def _asked(run: Mapping[str, Any]) -> Asked:
    return Asked(_plain(run["file"]), tuple(map(str, run["overrides"])), int(run["weights"]))


def _plain(name: Any) -> str:
    """A file's name without a folder; ValueError for any other."""
    if not isinstance(name, str) or name != PurePosixPath(name).name:
        raise ValueError
    return name


def _texts(tree: Mapping[Any, Any]) -> dict[str, Any]:
    """A mapping of texts; TypeError for any other."""
    if not all(isinstance(value, str) for value in tree.values()):
        raise TypeError
    return dict(tree)


def _refused(path: Path, reason: str) -> Problem:
    return Problem("doctor.bad_bundle", where=path, reason=reason)
