"""A download against stand-ins of both hubs: whole, verified, nothing twice, nobody's file written over."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.hub_lab import NEEDED, ONE_HUB, SHARDS, assert_whole, console, get, names, problem, told
from tests.hubs import REPO, Hub

from tengtune import files
from tengtune.hub import transfer
from tengtune.hub.download import bring
from tengtune.hub.plan import Wish


def test_a_model_comes_whole_and_once(hub: Hub, tmp_path: Path, source: str) -> None:
    figures = get(tmp_path / "m", source)
    assert_whole(hub, tmp_path / "m")
    size = sum(len(hub.files[name]) for name in NEEDED)
    assert (figures["files"], figures["bytes"], figures["fetched_bytes"]) == (6, size, size)
    assert figures["checked"] is True
    assert all(hub.sent(name) == len(hub.files[name]) for name in NEEDED)
    assert hub.requests[-1].path.endswith("config.json")
    record = json.loads((tmp_path / "m" / "download.json").read_text())
    sums = {name: hashlib.sha256(hub.files[name]).hexdigest() for name in NEEDED}
    assert {name: entry["sha256"] for name, entry in record["files"].items()} == sums


@ONE_HUB
def test_what_is_not_needed_is_left_out_and_said(hub: Hub, tmp_path: Path, source: str) -> None:
    voice = console()
    bring(Wish(REPO, tmp_path / "m", source), voice)
    assert "Left out: 5 files, 270,012 B" in told(voice)
    assert not any(r.path.endswith((".gguf", ".onnx", ".bin", ".png")) for r in hub.requests)


@ONE_HUB
def test_pickles_come_where_there_is_nothing_better(hub: Hub, tmp_path: Path, source: str) -> None:
    for name in (*SHARDS, "model.safetensors.index.json"):
        del hub.files[name]
    get(tmp_path / "m", source)
    assert names(tmp_path / "m") == {
        "README.md", "config.json", "download.json", "pytorch_model.bin", "tokenizer.json",
    }  # fmt: skip


def test_a_whole_model_causes_no_traffic(hub: Hub, tmp_path: Path, source: str) -> None:
    get(tmp_path / "m", source)
    hub.requests.clear()
    figures = get(tmp_path / "m", None)
    assert (figures["fetched"], hub.requests) == (0, [])
    # Copied to another disk, where only the times differ: hashed here, still no traffic.
    for path in (tmp_path / "m").iterdir():
        os.utime(path, ns=(1, 1))
    assert get(tmp_path / "m", source)["fetched"] == 0
    assert hub.requests == []


@pytest.mark.parametrize("name", [SHARDS[0], "tokenizer.json"])
def test_a_cut_connection_is_gone_on_from(hub: Hub, tmp_path: Path, source: str, name: str) -> None:
    hub.cuts[name] = [1000, 0, 2000]
    get(tmp_path / "m", source)
    assert_whole(hub, tmp_path / "m")
    assert [r.start for r in hub.of(name)] == [0, 1000, 1000, 3000]
    assert hub.sent(name) == len(hub.files[name])


def test_a_connection_that_stays_bad_is_told_and_what_came_stays(
    hub: Hub, tmp_path: Path, source: str
) -> None:
    hub.cuts[SHARDS[0]] = [1000, *[0] * 6]
    fault = problem(tmp_path / "m", source)
    assert (fault.code, fault.exit_code) == ("download.cut", 4)
    assert not (tmp_path / "m" / "config.json").exists()
    assert (tmp_path / "m" / f"{SHARDS[0]}.partial").stat().st_size == 1000
    get(tmp_path / "m", source)
    assert_whole(hub, tmp_path / "m")
    assert hub.sent(SHARDS[0]) == len(hub.files[SHARDS[0]])


def test_a_server_that_cannot_resume(hub: Hub, tmp_path: Path, source: str) -> None:
    hub.resumes = False
    hub.cuts[SHARDS[0]] = [1000]
    get(tmp_path / "m", source)
    assert_whole(hub, tmp_path / "m")
    # ... and always breaks off at the same place is no endless loop.
    hub.cuts[SHARDS[0]] = [1000] * 20
    assert problem(tmp_path / "n", source).code == "download.cut"


def test_an_answer_from_another_offset_is_not_used(hub: Hub, tmp_path: Path, source: str) -> None:
    hub.cuts[SHARDS[0]] = [1000]
    hub.headers = {"Content-Range": "bytes 7-299999/300000"}
    assert problem(tmp_path / "m", source).code == "download.cut"


@pytest.mark.parametrize("name", [SHARDS[1], "config.json"])
def test_a_wrong_hash_is_refused(hub: Hub, tmp_path: Path, source: str, name: str) -> None:
    hub.lies[name] = bytes(reversed(hub.files[name]))
    fault = problem(tmp_path / "m", source)
    assert (fault.code, fault.values["file"]) == ("download.wrong_hash", name)
    assert not {"config.json", name, f"{name}.partial"} & names(tmp_path / "m")
    hub.lies.clear()
    get(tmp_path / "m", source)
    assert_whole(hub, tmp_path / "m")


def test_more_bytes_than_listed_are_refused(hub: Hub, tmp_path: Path, source: str) -> None:
    hub.lies[SHARDS[0]] = hub.files[SHARDS[0]] + b"x" * 500_000
    assert problem(tmp_path / "m", source).code == "download.wrong_hash"


@ONE_HUB
def test_a_partial_file_of_something_else_is_begun_anew(hub: Hub, tmp_path: Path, source: str) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / f"{SHARDS[0]}.partial").write_bytes(b"old revision" * 100)
    (tmp_path / "m" / f"{SHARDS[1]}.partial").write_bytes(b"x" * 900_000)  # longer than the file
    voice = console()
    bring(Wish(REPO, tmp_path / "m", source), voice)
    assert_whole(hub, tmp_path / "m")
    assert told(voice).count("does not belong to this file") == 1


def test_files_that_are_there_already_are_adopted(hub: Hub, tmp_path: Path, source: str) -> None:
    (tmp_path / "m").mkdir()
    for name in (SHARDS[0], "config.json", "tokenizer.json"):
        (tmp_path / "m" / name).write_bytes(hub.files[name])
    figures = get(tmp_path / "m", source)
    assert_whole(hub, tmp_path / "m")
    assert figures["fetched"] == 3
    assert not any(hub.of(name) for name in (SHARDS[0], "config.json", "tokenizer.json"))


@ONE_HUB
@pytest.mark.parametrize("recorded", [False, True])
def test_somebodys_files_are_not_written_over(hub: Hub, tmp_path: Path, source: str, recorded: bool) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    if recorded:
        get(folder, source)
    (folder / "config.json").write_bytes(b'{"edited": true}')
    fault = problem(folder, source)
    assert (fault.code, fault.values["files"]) == ("download.foreign_files", "config.json")
    assert (folder / "config.json").read_bytes() == b'{"edited": true}'


def test_a_lost_config_comes_back(hub: Hub, tmp_path: Path, source: str) -> None:
    get(tmp_path / "m", source)
    (tmp_path / "m" / "config.json").unlink()
    assert get(tmp_path / "m", source)["fetched"] == 1
    assert_whole(hub, tmp_path / "m")


def test_a_lost_file_comes_back_alone(hub: Hub, tmp_path: Path, source: str) -> None:
    get(tmp_path / "m", source)
    (tmp_path / "m" / SHARDS[1]).unlink()
    hub.requests.clear()
    assert get(tmp_path / "m", None)["fetched"] == 1
    assert_whole(hub, tmp_path / "m")
    assert len(hub.requests) == 3  # the list, the file's address, the file


@ONE_HUB
def test_a_new_revision_replaces_the_old_one(hub: Hub, tmp_path: Path, source: str) -> None:
    get(tmp_path / "m", source)
    for name in (*SHARDS, "model.safetensors.index.json"):
        del hub.files[name]
    kept = {"README.md", "config.json", "download.json", "model.safetensors", "tokenizer.json"}
    hub.files |= {"model.safetensors": b"new" * 1000, "config.json": b'{"new": 1}'}
    hub.requests.clear()
    hub.statuses["config.json"] = [403]
    assert problem(tmp_path / "m", source, revision="v1.0").code == "download.denied"
    assert names(tmp_path / "m") == kept - {"config.json"} | {"config.json.partial"}
    get(tmp_path / "m", source, "v1.0")
    assert names(tmp_path / "m") == kept
    assert (tmp_path / "m" / "config.json").read_bytes() == b'{"new": 1}'
    assert not hub.of("tokenizer.json")
    assert json.loads((tmp_path / "m" / "download.json").read_text())["revision"] == "v1.0"


@ONE_HUB
def test_another_model_in_the_folder_is_refused(hub: Hub, tmp_path: Path, source: str) -> None:
    get(tmp_path / "m", source)
    assert problem(tmp_path / "m", source, "Qwen/Other").code == "download.other_model"


@ONE_HUB
def test_no_room_is_seen_before_anything_is_fetched(
    hub: Hub, tmp_path: Path, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    need = sum(len(hub.files[name]) for name in NEEDED)
    monkeypatch.setattr(files, "free_bytes", lambda path: need - 1)
    fault = problem(tmp_path / "m", source)
    assert (fault.code, fault.exit_code, (tmp_path / "m").exists()) == ("download.no_space", 3, False)
    assert not any(r.path.startswith("/cdn/") for r in hub.requests)
    monkeypatch.setattr(files, "free_bytes", lambda path: need)
    get(tmp_path / "m", source)
    # What is there already, or partly, needs no room again.
    (tmp_path / "m" / SHARDS[0]).rename(tmp_path / "m" / f"{SHARDS[0]}.partial")
    os.truncate(tmp_path / "m" / f"{SHARDS[0]}.partial", 299_000)
    monkeypatch.setattr(files, "free_bytes", lambda path: 1000)
    get(tmp_path / "m", source)
    assert_whole(hub, tmp_path / "m")


@ONE_HUB
def test_a_disk_that_fills_up_is_gone_on_from(
    hub: Hub, tmp_path: Path, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = transfer._Part.take

    def full(self: transfer._Part, chunks: Iterator[bytes]) -> None:
        def limited() -> Iterator[bytes]:
            for chunk in chunks:
                yield chunk
                if self.file.name == SHARDS[0]:
                    raise OSError(28, os.strerror(28))

        real(self, limited())

    with monkeypatch.context() as patch:
        patch.setattr(transfer._Part, "take", full)
        fault = problem(tmp_path / "m", source)
    assert (fault.code, fault.exit_code) == ("download.disk_full", 3)
    assert not (tmp_path / "m" / "config.json").exists()
    get(tmp_path / "m", source)
    assert_whole(hub, tmp_path / "m")
