"""A name that exists is whole."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tengtune import files
from tengtune.ui.problems import Problem


def test_a_file_appears_only_when_whole(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "a.txt"
    with files.atomic_file(target, "w") as stream:
        stream.write("x")
        assert not target.exists()
    assert target.read_text() == "x"


def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "a.txt"
    target.write_text("old")
    with pytest.raises(ValueError, match="midway"), files.atomic_file(target, "w") as stream:
        stream.write("new")
        raise ValueError("midway")
    assert target.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]


@pytest.mark.parametrize(
    ("number", "code", "exit_code"),
    [
        (errno.ENOSPC, "io.no_space", 3),
        (errno.EROFS, "io.not_permitted", 3),
        (errno.EIO, "io.device_error", 3),
    ],
)
def test_system_errors_become_problems(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, code: str, exit_code: int
) -> None:
    def broken(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(Problem) as caught:
        files.write_text(tmp_path / "a.txt", "x")
    assert (caught.value.code, caught.value.exit_code) == (code, exit_code)
    assert os.listdir(tmp_path) == []


def test_a_folder_replaces_the_old_one_only_when_whole(tmp_path: Path) -> None:
    target = tmp_path / "out"
    for text in ("one", "two"):
        with files.atomic_folder(target) as folder:
            (folder / "sub").mkdir()
            (folder / "sub" / "f").write_text(text)
    with pytest.raises(ValueError, match="midway"), files.atomic_folder(target) as folder:
        (folder / "g").write_text("three")
        raise ValueError("midway")
    assert (target / "sub" / "f").read_text() == "two"
    assert os.listdir(tmp_path) == ["out"]


def test_what_a_killed_run_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / "out.partial").mkdir()
    (tmp_path / "out.partial" / "half").write_text("x")
    with files.atomic_folder(tmp_path / "out") as folder:
        (folder / "f").write_text("y")
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["f", "out"]


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "iso8859-1", "gb18030"])
def test_a_name_is_the_utf8_of_its_bytes_in_any_locale(
    monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    monkeypatch.setattr(os, "fsencode", lambda name: name.encode(encoding, "surrogateescape"))
    monkeypatch.setattr(os, "fsdecode", lambda raw: raw.decode(encoding, "surrogateescape"))
    raw = "数据 é.json".encode()
    assert files.as_text(raw.decode(encoding, "surrogateescape")) == "数据 é.json"
    assert files.as_name("数据 é.json").encode(encoding, "surrogateescape") == raw


def test_a_link_in_the_place_of_the_unfinished_file_is_not_followed(tmp_path: Path) -> None:
    victim, target = tmp_path / "victim", tmp_path / "a.txt"
    victim.write_text("precious")
    (tmp_path / "a.txt.partial").symlink_to(victim)
    files.write_text(target, "x")
    assert (victim.read_text(), target.read_text()) == ("precious", "x")


def test_pipes_devices_and_folders_are_not_replaced(tmp_path: Path) -> None:
    pipe, folder = tmp_path / "pipe", tmp_path / "folder"
    os.mkfifo(pipe)
    folder.mkdir()
    link = tmp_path / "link"
    link.symlink_to("/dev/null")
    for target, code in ((pipe, "io.out_not_plain"), (link, "io.out_not_plain"), (folder, "io.is_folder")):
        with pytest.raises(Problem) as caught, files.atomic_file(target):
            pytest.fail("opened")
        assert caught.value.code == code
    assert pipe.is_fifo()
    assert link.is_symlink()
