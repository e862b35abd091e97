"""tengtune init: what it writes suits the data and loads, and what it cannot do it says."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest
import yaml
from tests.cli.test_start import tengtune
from tests.tiny import tiny_model, tiny_tokenizer

from tengtune import recipe as recipes
from tengtune.report.verdict import ENOUGH_TOKENS


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a small model and a data file of 24 short records."""
    tiny_tokenizer(tiny_model(tmp_path / "models" / "tiny", max_position_embeddings=8192))
    records(tmp_path / "my.json", 24)
    return tmp_path


def records(path: Path, count: int, length: int = 1) -> None:
    """`count` records, all different, whose answers are `length` sentences."""
    found = [
        {"instruction": f"What is lamp {i}?", "output": f"Lamp {i} is the filter. " * length}
        for i in range(count)
    ]
    path.write_text(json.dumps(found))


def written(place: Path, *arguments: str) -> dict[str, dict[str, object]]:
    """The keys of the run file `init` writes."""
    done = tengtune("init", "models/tiny", *arguments, cwd=place)
    assert done.returncode == 0, done.stderr
    keys: dict[str, dict[str, object]] = yaml.safe_load((place / "run.yaml").read_text())
    return keys


def test_a_small_file_gets_enough_steps(place: Path) -> None:
    done = tengtune("init", "models/tiny", "my.json", cwd=place)
    assert done.stdout == "run.yaml\ntengtune run run.yaml\n"
    text = (place / "run.yaml").read_text()
    keys = yaml.safe_load(text)
    assert (keys["data"]["seq_len"], keys["train"]["global_batch"]) == (128, 2)
    made = tengtune("data", "--json", cwd=place)
    rows = json.loads(made.stdout.splitlines()[-1])["train"]["rows"]
    steps = keys["train"]["epochs"] * -(-rows // 2)
    assert 60 <= steps <= 60 + -(-rows // 2)
    said = f"Records: 24; rows of 128 tokens: {rows}; with batches of 2"
    assert said in done.stderr
    assert f"about {steps} optimizer steps" in done.stderr
    assert said in text
    assert "If that makes fewer than 60 steps" in text


@pytest.mark.parametrize(
    ("count", "length", "share"), [(24, 1, 0.15), (24, 3, 0.1), (24, 9, 0.05), (4, 1, 0.15)]
)
def test_enough_is_held_out_to_judge_by(place: Path, count: int, length: int, share: float) -> None:
    records(place / "my.json", count, length)
    done = tengtune("init", "models/tiny", "my.json", cwd=place)
    assert yaml.safe_load((place / "run.yaml").read_text())["data"]["heldout"] == share
    made = tengtune("data", "--json", cwd=place)
    held = json.loads(made.stdout.splitlines()[-1])["heldout"]
    assert (
        f"{share:.0%} of the records, {held['documents']}, with {held['trained_tokens']} trained"
        in done.stderr
    )
    assert ("too few to judge" in done.stderr) == (held["trained_tokens"] < ENOUGH_TOKENS)
    assert (held["trained_tokens"] >= ENOUGH_TOKENS) == (share < 0.15)


def test_a_large_file_keeps_the_defaults(place: Path) -> None:
    records(place / "my.json", 6000, 10)
    keys = written(place, "my.json")
    assert keys["data"]["seq_len"] == 1024
    assert (keys["train"]["epochs"], keys["train"]["global_batch"]) == (3, 8)
    told = [line for line in (place / "run.yaml").read_text().splitlines() if "Records:" in line]
    count = int(told[0].split("Records: ")[1].split(";")[0])
    assert 4800 < count < 7200  # estimated from the first part


def test_a_file_of_a_middle_size_keeps_its_epochs(place: Path) -> None:
    records(place / "my.json", 300, 4)
    keys = written(place, "my.json")
    assert keys["train"]["epochs"] == 3


def test_long_records_get_long_rows(place: Path) -> None:
    records(place / "my.json", 50, 100)
    assert written(place, "my.json")["data"]["seq_len"] in (2048, 4096)


def test_rows_are_no_longer_than_the_model_knows(place: Path) -> None:
    config = place / "models" / "tiny" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"max_position_embeddings": 600}))
    records(place / "my.json", 50, 100)
    assert written(place, "my.json")["data"]["seq_len"] == 512


def test_a_handful_of_records_does_not_go_on_for_ever(place: Path) -> None:
    records(place / "my.json", 2)
    keys = written(place, "my.json")
    assert (keys["train"]["epochs"], keys["train"]["global_batch"]) == (20, 2)


def test_packed_files_and_several_are_looked_at(place: Path) -> None:
    (place / "b.json.gz").write_bytes(gzip.compress((place / "my.json").read_bytes()))
    keys = written(place, "my.json", "b.json.gz")
    assert keys["data"]["files"] == ["my.json", "b.json.gz"]
    assert "Records: 48" in (place / "run.yaml").read_text()


def test_the_run_file_speaks_the_users_language(place: Path) -> None:
    done = tengtune("init", "models/tiny", "my.json", "--lang", "zh", cwd=place)
    text = (place / "run.yaml").read_text(encoding="utf-8")
    for said in (done.stderr, text):
        assert "记录 24 条" in said
        assert "optimizer steps" not in said
    assert "若不足 60 步" in text
    assert recipes.load(place / "run.yaml").train.global_batch == 2


@pytest.mark.parametrize("out", ["run.yaml", "runs here/a/run.yaml", "../run.yaml"])
def test_paths_stay_relative_and_lead_to_the_same_files(place: Path, out: str) -> None:
    (place / "work").mkdir()
    done = tengtune("init", "../models/tiny", "../my.json", "-o", out, cwd=place / "work")
    assert done.returncode == 0, done.stderr
    recipe = recipes.load(place / "work" / out)
    assert not Path(recipe.model.path).is_absolute()
    assert not Path(recipe.data.files[0]).is_absolute()
    assert recipe.model_folder == (place / "models" / "tiny").resolve()
    assert recipe.resolve(recipe.data.files[0]) == (place / "my.json").resolve()


def test_absolute_paths_stay_absolute(place: Path) -> None:
    tengtune("init", str(place / "models" / "tiny"), "my.json", cwd=place)
    keys = yaml.safe_load((place / "run.yaml").read_text())
    assert keys["model"] == str(place / "models" / "tiny")
    assert keys["data"]["files"] == "my.json"


def test_a_path_that_would_mean_something_else_becomes_absolute(place: Path) -> None:
    (place / "elsewhere" / "deep").mkdir(parents=True)
    (place / "link").symlink_to(place / "elsewhere" / "deep")
    records(place / "~my.json", 3)
    tengtune("init", "models/tiny", "./~my.json", "-o", "link/run.yaml", cwd=place)
    recipe = recipes.load(place / "link" / "run.yaml")
    assert recipe.model_folder == (place / "models" / "tiny").resolve()
    assert recipe.resolve(recipe.data.files[0]) == (place / "~my.json").resolve()


@pytest.mark.parametrize(
    ("arguments", "code", "part"),
    [
        (["nosuch.json"], "run.no_data", "Relative paths start here"),
        (["mu.json"], "run.no_data", "my.json"),
        (["models"], "run.data_is_folder", "folder"),
        (["my.json/x.json"], "run.no_data", "x.json"),
        (["pipe"], "io.not_plain", "pipe"),
        (["broken.json"], "data.", "broken.json"),
        (["my.json", "-o", "my.json"], "run.exists", "my.json"),
        (["my.json", "-o", "nowhere"], "run.exists", "nowhere"),
        (["my.json", "-o", "models"], "io.is_folder", "models"),
        (["my.json", "-o", "."], "io.is_folder", "."),
        (["my.json", "-o", "my.json/run.yaml"], "io.not_folder", "my.json/run.yaml"),
        (["my.json", "-o", "my.json/a/run.yaml"], "io.not_folder", "my.json/a/run.yaml"),
        (["my.json", "-o", "/proc/nosuch/run.yaml"], "run.out_unfit", "/proc/nosuch"),
        (["my.json", "-o", "a" * 300], "io.bad_path", "a" * 300),
        (["my.json", "-o", "loop/run.yaml"], "io.not_folder", "loop"),
        ([os.fsdecode(b"\xff.json")], "run.name_not_utf8", "json"),
        (["my.json", "-o", os.fsdecode(b"\xff.yaml")], "run.name_not_utf8", "yaml"),
    ],
)
def test_what_cannot_be_done_is_one_screen(place: Path, arguments: list[str], code: str, part: str) -> None:
    os.mkfifo(place / "pipe")
    (place / "nowhere").symlink_to("nosuch")
    (place / "loop").symlink_to("loop")
    (place / "broken.json").write_bytes(b"PK\x03\x04\xff\x00")
    before = sorted(path.name for path in place.iterdir())
    done = tengtune("init", "models/tiny", *arguments, cwd=place)
    assert done.returncode == 2, done.stderr
    assert f"code {code}" in done.stderr
    assert part in done.stderr
    assert "Traceback" not in done.stderr
    assert sorted(path.name for path in place.iterdir()) == before


def test_records_of_no_format_are_told_and_the_defaults_written(place: Path) -> None:
    (place / "my.json").write_text('[{"x": 1}]')
    done = tengtune("init", "models/tiny", "my.json", cwd=place)
    assert done.returncode == 0
    assert "tengtune data check my.json" in done.stderr
    assert recipes.load(place / "run.yaml").data.seq_len == 1024
