"""What a download has to do: is the folder whole already, what does the source hold, what is missing."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tengtune import files
from tengtune.hub import faults
from tengtune.hub.base import Digest, Hub, Interrupted, Listing, RemoteFile
from tengtune.hub.choose import CONFIG, Choice, choose
from tengtune.hub.meter import meter
from tengtune.hub.mirror import Mirror
from tengtune.hub.record import Entry, Record, damaged, entry_of, pieces, read_record, unchanged, write_record
from tengtune.hub.transfer import kept_bytes
from tengtune.models import hub_id
from tengtune.ui import language
from tengtune.ui.console import Console
from tengtune.ui.lists import first_few, listed, size
from tengtune.ui.problems import UNFIT_MACHINE, Problem, os_errors

HUBS = ("modelscope", "huggingface")
LISTING_WAITS = (1.0, 2.0)
"""Seconds before each new try of the list of files: who is offline should not wait long to be told."""


@dataclass(frozen=True)
class Wish:
    """What is asked for. source: a hub's name or a folder, None for the one used before or the default;
    revision: None for the one used before or the source's default."""

    repo: str
    folder: Path
    source: str | None = None
    revision: str | None = None


@dataclass(frozen=True)
class Plan:
    """What a wish comes to: `have` are the files that stand in the folder and are right, `old` those of an
    earlier revision, `missing` the ones to fetch, `linked` the names of those that only need a second name on
    this disk, `need` the bytes the others take, `free` what the disk has."""

    hub: Hub
    revision: str
    pin: str
    choice: Choice
    have: dict[str, Entry]
    old: dict[str, Entry]
    missing: list[RemoteFile]
    linked: frozenset[str]
    need: int
    free: int


def wish_for(model: str, folder: Path | None, source: str | None, revision: str | None) -> Wish:
    """What a command line asks for; a known model's owner may be left out. Problem: not a hub id."""
    repo = hub_id.full_id(model)
    if not hub_id.is_hub_id(repo):
        if Path(model).is_dir():
            raise Problem("download.is_folder", where=model, folder=model, name=Path(model).resolve().name)
        raise faults.bad_id(model)
    return Wish(repo, folder or Path(hub_id.MODELS) / repo.split("/")[1], source, revision)


def whole_record(wish: Wish, console: Console) -> Record | None:
    """The folder's record, if it is for this wish and every file is as it was noted; without any traffic."""
    record = read_record(wish.folder)
    if record is None:
        return None
    if record.model.lower() != wish.repo.lower():
        raise Problem("download.other_model", where=wish.folder, there=record.model, asked=wish.repo)
    source = wish.source if wish.source in (*HUBS, None) else Mirror.name
    asked = source in (None, record.source) and wish.revision in (None, record.revision)
    if not (record.whole and asked):
        return None
    before = dict(record.files)
    with meter(console, record.bytes, "download.hashing") as advance:
        broken = damaged(wish.folder, record, advance)
    if broken:
        console.say("download.damaged", files=listed(broken))
        return None
    if record.files != before:
        write_record(wish.folder, record)
    return record


def make_plan(wish: Wish, console: Console) -> Plan:
    """List the source's files and compare with the folder. Problem: the folder holds something else, or is
    the source itself."""
    record = read_record(wish.folder)
    hub = open_hub(wish.source or (record.source if record and record.source in HUBS else HUBS[0]))
    _refuse_source(hub, wish)
    kept = record.revision if record is not None and record.source == hub.name else ""
    revision = wish.revision or kept or hub.revision
    listing = _listing(hub, wish.repo, revision)
    choice = choose(listing.files, hub.endpoint)
    named = revision or listing.pin
    at = language.say("download.at_revision", revision=named) if named else ""
    console.say("download.start", model=wish.repo, at=at, source=hub.endpoint, folder=wish.folder)
    if choice.skipped:
        skipped = sum(file.size for file, _ in choice.skipped)
        console.say("download.skipping", count=len(choice.skipped), size=size(skipped))
    have = {}
    with meter(console, choice.bytes, "download.hashing") as advance:
        for file in choice.needed:
            entry = _verified(wish.folder / file.name, file, record, advance)
            if entry is not None:
                have[file.name] = entry
    missing = [file for file in choice.needed if file.name not in have]
    foreign = [file.name for file in missing if not _ours(wish.folder / file.name, record)]
    if foreign:
        raise Problem("download.foreign_files", where=wish.folder, files=first_few(foreign))
    linked = frozenset(file.name for file in missing if _linkable(hub, wish, file))
    need = sum(file.size - kept_bytes(wish.folder, file) for file in missing if file.name not in linked)
    old = {name: entry for name, entry in record.files.items() if name not in have} if record else {}
    free = files.free_bytes(wish.folder)
    return Plan(hub, named, listing.pin, choice, have, old, missing, linked, need, free)


def open_hub(source: str) -> Hub:
    """The hub of this name, or the folder; Problem where its client is not installed."""
    try:
        if source == "modelscope":
            from tengtune.hub.modelscope import ModelScope

            return ModelScope()
        if source == "huggingface":
            from tengtune.hub.huggingface import HuggingFace

            return HuggingFace()
    except ModuleNotFoundError as error:
        raise Problem(
            "download.no_client", exit_code=UNFIT_MACHINE, hub=source, package=error.name
        ) from error
    return Mirror(Path(source))


def _refuse_source(hub: Hub, wish: Wish) -> None:
    """Problem where the folder is the one the files are to come from: what differs from its record would be
    told as somebody's own files there, to be deleted."""
    config = hub.path(wish.repo, CONFIG)
    if config is not None and wish.folder.is_dir() and os.path.samefile(config.parent, wish.folder):
        raise Problem("download.same_folder", where=wish.folder)


def _listing(hub: Hub, repo: str, revision: str) -> Listing:
    """The hub's list, tried again where the failure may pass."""
    waits = iter(LISTING_WAITS)
    while True:
        try:
            return hub.listing(repo, revision)
        except Interrupted as error:
            wait = next(waits, None)
            if wait is None:
                raise faults.unreachable(hub, error.reason) from error
            time.sleep(wait)


def _verified(
    path: Path, file: RemoteFile, record: Record | None, advance: Callable[[int], None]
) -> Entry | None:
    """The entry of a file in the folder if it is the listed one: by the record where it is unchanged since,
    by its hash otherwise. What has neither is not taken for the listed file."""
    if not path.is_file() or path.stat().st_size != file.size:
        return None
    entry = record.files.get(file.name) if record is not None else None
    if entry is not None and unchanged(path, entry) and not file.git:
        return entry if file.sha256 in ("", entry.sha256) else None
    if not file.sha256 and not file.git:
        return None
    digest = Digest(file)
    with os_errors(path), open(path, "rb", buffering=0) as stream:
        for data in pieces(stream, advance):
            digest.update(data)
    return entry_of(path, digest.sha256) if digest.fault() is None else None


def _ours(path: Path, record: Record | None) -> bool:
    """Whether the place of a missing file is free, or holds what a download put there (an earlier revision).
    Anything else is somebody's: a tuned model, an edited config.json; it is not written over."""
    if not path.exists():
        return True
    return record is not None and path.name in record.files and unchanged(path, record.files[path.name])


def _linkable(hub: Hub, wish: Wish, file: RemoteFile) -> bool:
    """Whether a missing file takes no room: a second name for bytes that are on the folder's disk."""
    original = hub.path(wish.repo, file.name)
    return original is not None and _same_disk(original, wish.folder)


def _same_disk(path: Path, folder: Path) -> bool:
    """Whether a file could have a second name in `folder`, which need not be there yet."""
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    return os.stat(path).st_dev == os.stat(there).st_dev
