"""`tengtune merge --shards` and `--split` as commands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.tiny import tiny_model

GOLDEN = Path(__file__).parents[1] / "golden/strategy"
RANKS, STRATEGY = GOLDEN / "dp2_opt/shards_ckpt", GOLDEN / "dp2_opt/strategy"
WHOLE = GOLDEN / "dp2_opt/full_ckpt/rank_0/full.ckpt"


def tengtune(*arguments: object, lang: str = "en") -> subprocess.CompletedProcess[str]:
    return anything("merge", *arguments, lang=lang)


def anything(*arguments: object, lang: str = "en") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tengtune", "--lang", lang, *map(str, arguments)],
        capture_output=True,
        text=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
        check=False,
    )


def test_the_recipe_s_folders_are_joined_without_renaming_anything(tmp_path: Path) -> None:
    reruns = GOLDEN / "traps/stale_shard_same_folder/shards_ckpt"
    done = tengtune("--shards", reruns, "--strategy", STRATEGY, "--out", tmp_path / "whole.ckpt")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{tmp_path / 'whole.ckpt'}\n"  # results only
    assert (tmp_path / "whole.ckpt").read_bytes() == WHOLE.read_bytes()
    for words in (
        "qwen_rank_N_10-network.ckpt is used; older ones lie beside it: qwen_rank_N_2-network.ckpt",
        "28 tensors",
        "2 ranks in 1 pipeline stage, device grid [2, 1]",
        "22 by optimizer sharding",
        "ckpt_strategy_rank_0.ckpt",
    ):
        assert words in done.stderr


def test_json_ends_with_the_layout(tmp_path: Path) -> None:
    done = tengtune("--shards", RANKS, "--out", tmp_path / "whole", "--json", "--shard-size", "4KB")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result["event"], result["ranks"], result["notes"]) == ("result", [0, 1], [])
    assert "[2, 1]" in result["layout"]
    assert len(list((tmp_path / "whole").glob("model-*-of-00003.safetensors"))) == 3


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_a_strategy_of_another_run_is_refused(tmp_path: Path, lang: str) -> None:
    stale = GOLDEN / "traps/stale_strategy_same_cards/strategy"
    done = tengtune("--shards", RANKS, "--strategy", stale, "--out", tmp_path / "x.ckpt", lang=lang)
    assert done.returncode == 2
    assert "shard.does_not_fit" in done.stderr
    assert ("拼接后为 [4, 16]" if lang == "zh" else "put together it would be [4, 16]") in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("how", [["--ranks", 4], ["--strategy", GOLDEN / "tp2_dp2/strategy"]])
def test_split_and_back(tmp_path: Path, how: list[object]) -> None:
    done = tengtune("--split", WHOLE, *how, "--out", tmp_path / "ranks")
    assert done.returncode == 0, done.stderr
    assert "4 ranks" in done.stderr
    assert len(list((tmp_path / "ranks").glob("rank_*/checkpoint_*.ckpt"))) == 4
    done = tengtune("--shards", tmp_path / "ranks", "--out", tmp_path / "whole.ckpt", "--first-copy")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "whole.ckpt").read_bytes() == WHOLE.read_bytes()


@pytest.mark.parametrize(
    "options",
    [
        ["--shards", RANKS],
        ["--shards", RANKS, "--split", WHOLE, "--out", "x"],
        ["--shards", RANKS, "--base", "b", "--out", "x"],
        ["--split", WHOLE, "--out", "x"],
        ["--split", WHOLE, "--ranks", 2, "--strategy", STRATEGY, "--out", "x"],
    ],
)
def test_options_that_do_not_go_together(options: list[object]) -> None:
    done = tengtune(*options)
    assert done.returncode == 2
    assert "merge.options" in done.stderr


def test_one_file_is_not_cut_into_several(tmp_path: Path) -> None:
    done = tengtune("--shards", RANKS, "--out", tmp_path / "x.ckpt", "--shard-size", "4KB")
    assert done.returncode == 2
    assert "convert.one_file" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_an_output_that_exists_is_kept(tmp_path: Path) -> None:
    """A file is called a file, and of a folder it is said what is in it."""
    (tmp_path / "x.ckpt").write_text("precious")
    done = tengtune("--shards", RANKS, "--out", tmp_path / "x.ckpt")
    assert done.returncode == 2
    assert "io.out_is_file" in done.stderr
    assert "a file of this name already (8 B)" in done.stderr
    assert "folder" not in done.stderr
    assert (tmp_path / "x.ckpt").read_text() == "precious"
    done = tengtune("--shards", RANKS, "--out", tmp_path)
    assert done.returncode == 2
    assert "merge.out_exists" in done.stderr
    assert "It holds x.ckpt." in done.stderr


def rank_files(out: Path) -> list[str]:
    return sorted(str(path.relative_to(out)) for path in out.rglob("checkpoint_*"))


@pytest.mark.parametrize(("to", "suffix"), [("mindspore", "ckpt"), ("mindspore-safetensors", "safetensors")])
def test_what_convert_made_is_split_as_it_is(tmp_path: Path, to: str, suffix: str) -> None:
    model = tiny_model(tmp_path / "model")
    assert anything("convert", model, tmp_path / "ms", "--to", to, "-q").returncode == 0
    done = tengtune("--split", tmp_path / "ms", "--ranks", 2, "--out", tmp_path / "ranks")
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr.lower()
    assert rank_files(tmp_path / "ranks") == [f"rank_{n}/checkpoint_{n}.{suffix}" for n in (0, 1)]
    done = tengtune("--shards", tmp_path / "ranks", "--out", tmp_path / f"whole.{suffix}")
    assert done.returncode == 0, done.stderr
    assert anything("weights", "diff", tmp_path / f"whole.{suffix}", tmp_path / "ms").returncode == 0


@pytest.mark.parametrize(
    ("lang", "says"), [("en", "convert MODEL NEW --to mindspore"), ("zh", "--to mindspore")]
)
def test_hugging_face_names_are_told_before_they_are_split(tmp_path: Path, lang: str, says: str) -> None:
    done = tengtune(
        "--split", tiny_model(tmp_path / "m"), "--ranks", 2, "--out", tmp_path / "r", "-q", lang=lang
    )
    assert done.returncode == 0, done.stderr
    assert says in done.stderr


def test_a_number_of_ranks_that_cuts_nothing_is_told(tmp_path: Path) -> None:
    done = tengtune("--split", WHOLE, "--ranks", 7, "--out", tmp_path / "r", "-q")
    assert done.returncode == 0, done.stderr
    assert "Nothing was cut: no tensor's first axis divides by 7" in done.stderr
    for ranks in (1, 2):
        done = tengtune("--split", WHOLE, "--ranks", ranks, "--out", tmp_path / f"r{ranks}", "-q")
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("exists", [True, False])
def test_an_output_that_is_a_link_is_refused_and_stays(tmp_path: Path, exists: bool) -> None:
    link, place = tmp_path / "link", tmp_path / "place"
    link.symlink_to(place)
    if exists:
        place.mkdir()
    for done in (
        tengtune("--split", WHOLE, "--ranks", 2, "--out", link),
        anything("convert", WHOLE, link, "--to", "hf"),
    ):
        assert done.returncode == 2, done.stderr
        assert f"It leads to {place}" in " ".join(done.stderr.split())
    assert link.is_symlink()
    assert [entry.name for entry in sorted(tmp_path.iterdir())] == ["link", *["place"] * exists]
