"""A local folder as the source of a download: linked or copied, verified, never changed."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path

import pytest
from tests.hub_lab import NEEDED, SHARDS, console, contents, get, names, problem, told
from tests.hubs import REPO

from tengtune import files
from tengtune.hub.download import bring
from tengtune.hub.plan import Wish
from tengtune.hub.record import Record, entry_of, write_record


@pytest.fixture
def mirror(tmp_path: Path) -> Path:
    """A model that was downloaded on another machine and carried over."""
    folder = tmp_path / "disk" / REPO
    folder.mkdir(parents=True)
    record = Record(REPO, "modelscope", "https://modelscope.cn", "master", whole=True)
    for name, data in contents().items():
        if name in NEEDED:
            (folder / name).write_bytes(data)
            record.files[name] = entry_of(folder / name, hashlib.sha256(data).hexdigest())
    write_record(folder, record)
    return folder


@pytest.mark.parametrize("given", ["", "Qwen", REPO])
def test_files_are_linked_on_the_same_disk(tmp_path: Path, mirror: Path, given: str) -> None:
    figures = get(tmp_path / "m", str(tmp_path / "disk" / given))
    assert figures["checked"] is True
    assert names(tmp_path / "m") == NEEDED | {"download.json"}
    assert all(os.path.samefile(tmp_path / "m" / name, mirror / name) for name in NEEDED)
    again = get(tmp_path / "m", None)
    assert again["fetched"] == 0


def test_files_are_copied_to_another_disk(
    tmp_path: Path, mirror: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def other_disk(*_: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", other_disk)
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / f"{SHARDS[0]}.partial").write_bytes(contents()[SHARDS[0]][:1000])
    get(tmp_path / "m", str(tmp_path / "disk"))
    assert names(tmp_path / "m") == NEEDED | {"download.json"}
    assert all((tmp_path / "m" / name).read_bytes() == contents()[name] for name in NEEDED)
    assert not os.path.samefile(tmp_path / "m" / SHARDS[0], mirror / SHARDS[0])


def test_links_into_a_cache_are_followed(tmp_path: Path, mirror: Path) -> None:
    """Hugging Face's own cache keeps the contents elsewhere and links to them."""
    blobs = tmp_path / "blobs"
    mirror.rename(blobs)
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    for name in NEEDED:
        (snapshot / name).symlink_to(blobs / name)
    get(tmp_path / "m", str(snapshot))
    assert not any((tmp_path / "m" / name).is_symlink() for name in NEEDED)
    assert all((tmp_path / "m" / name).read_bytes() == contents()[name] for name in NEEDED)


def test_a_disk_without_room_is_seen_first(
    tmp_path: Path, mirror: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "free_bytes", lambda path: 0)
    get(tmp_path / "m", str(mirror))  # a second name takes no room
    monkeypatch.setattr("tengtune.hub.plan._same_disk", lambda *_: False)
    assert problem(tmp_path / "n", str(mirror)).code == "download.no_space"


@pytest.mark.parametrize("how", ["bits", "cut", "gone"])
def test_a_damaged_mirror_is_refused(tmp_path: Path, mirror: Path, how: str) -> None:
    shard = mirror / SHARDS[1]
    if how == "bits":
        shard.write_bytes(bytes(reversed(shard.read_bytes())))
    elif how == "cut":
        os.truncate(shard, 199_999)
    else:
        shard.unlink()
    fault = problem(tmp_path / "m", str(mirror))
    assert (fault.code, fault.values["files"]) == ("download.mirror_damaged", SHARDS[1])
    assert not (tmp_path / "m" / "config.json").exists()


@pytest.mark.parametrize("name", ["Qwen/Another", "a/b"])
def test_the_sums_hold_whatever_the_name_asked_for(tmp_path: Path, mirror: Path, name: str) -> None:
    voice = console()
    figures = bring(Wish(name, tmp_path / "m", str(mirror)), voice)
    assert figures["checked"] is True
    assert "Whole and verified" in told(voice)
    assert "sha256" not in told(voice)
    shard = bytearray((mirror / SHARDS[0]).read_bytes())
    shard[1000] ^= 1
    (mirror / SHARDS[0]).unlink()  # the link made above stays right
    (mirror / SHARDS[0]).write_bytes(shard)
    fault = problem(tmp_path / "n", str(mirror), repo=name)
    assert (fault.code, fault.values["files"]) == ("download.mirror_damaged", SHARDS[0])


def test_a_file_that_the_record_does_not_know_is_told_to_be_unchecked(tmp_path: Path, mirror: Path) -> None:
    (mirror / "chat_template.jinja").write_text("x")
    voice = console()
    assert bring(Wish(REPO, tmp_path / "m", str(mirror)), voice)["checked"] is False
    assert "tells no sha256 for some files" in told(voice)
    assert "Whole, but not verified" in told(voice)
    assert "Whole and verified" not in told(voice)


@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize("by_link", [True, False])
def test_a_folder_is_not_fetched_from_itself(
    tmp_path: Path, mirror: Path, recorded: bool, by_link: bool
) -> None:
    if not recorded:
        (mirror / "download.json").unlink()
    (mirror / "config.json").write_text("{}  ")
    target = mirror
    if by_link:
        target = tmp_path / "other name"
        target.symlink_to(mirror)
    before = {path.name: path.read_bytes() for path in mirror.iterdir()}
    assert problem(target, str(tmp_path / "disk")).code == "download.same_folder"
    assert {path.name: path.read_bytes() for path in mirror.iterdir()} == before


@pytest.mark.parametrize(
    ("recorded", "start"), [(True, f"{REPO} (revision master) from "), (False, f"{REPO} from ")]
)
def test_a_revision_is_named_where_there_is_one(
    tmp_path: Path, mirror: Path, recorded: bool, start: str
) -> None:
    if not recorded:
        (mirror / "download.json").unlink()
    voice = console()
    bring(Wish(REPO, tmp_path / "m", str(mirror)), voice)
    assert told(voice).startswith(start)


def test_a_mirror_that_was_never_finished_is_refused(tmp_path: Path, mirror: Path) -> None:
    text = (mirror / "download.json").read_text()
    (mirror / "download.json").write_text(text.replace('"whole": true', '"whole": false'))
    assert problem(tmp_path / "m", str(mirror)).code == "download.mirror_not_whole"


def test_the_mirrors_revision_is_the_one_recorded(tmp_path: Path, mirror: Path) -> None:
    assert get(tmp_path / "m", str(mirror))["revision"] == "master"
    assert get(tmp_path / "n", str(mirror), "master")["revision"] == "master"
    fault = problem(tmp_path / "o", str(mirror), revision="v2")
    assert (fault.code, fault.values["known"]) == ("download.no_revision", "master")


def test_a_folder_without_a_record_is_taken_and_said_to_be_unchecked(tmp_path: Path, mirror: Path) -> None:
    (mirror / "download.json").unlink()
    voice = console()
    figures = bring(Wish(REPO, tmp_path / "m", str(mirror)), voice)
    assert figures["checked"] is False
    assert "tells no sha256" in told(voice)
    record = json.loads((tmp_path / "m" / "download.json").read_text())
    assert record["files"][SHARDS[0]]["sha256"] == hashlib.sha256(contents()[SHARDS[0]]).hexdigest()
    # Nothing says that a file of the same size is the same file.
    (tmp_path / "n").mkdir()
    shutil.copy(mirror / SHARDS[0], tmp_path / "n" / SHARDS[0])
    assert problem(tmp_path / "n", str(mirror)).code == "download.foreign_files"


def test_the_mirror_is_never_written_to(tmp_path: Path, mirror: Path) -> None:
    """Its file has a second name in the folder; a wrong one there must not be emptied through it."""
    get(tmp_path / "m", str(mirror))
    (tmp_path / "m" / SHARDS[0]).rename(tmp_path / "m" / f"{SHARDS[0]}.link.partial")
    get(tmp_path / "m", str(mirror))
    assert (mirror / SHARDS[0]).read_bytes() == contents()[SHARDS[0]]
    assert names(tmp_path / "m") == NEEDED | {"download.json"}


@pytest.mark.parametrize(
    ("source", "code"), [("nowhere", "download.no_such_mirror"), ("empty", "download.not_in_mirror")]
)
def test_a_source_that_holds_no_model(tmp_path: Path, source: str, code: str) -> None:
    (tmp_path / "empty").mkdir()
    assert problem(tmp_path / "m", str(tmp_path / source)).code == code
    assert not (tmp_path / "m").exists()
