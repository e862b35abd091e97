"""tengtune plan: what cannot be run, what is short, what more cards would change, and what is not known."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.test_plan_cli import data, plan
from tests.tiny import tiny_model

from tengtune import recipe as recipes
from tengtune.ui import language

FIRST = ("--model", "Qwen/Qwen-7B-Chat", "--hardware")
FULL_14B = ("--model", "Qwen/Qwen-14B-Chat", "--method", "full", "--hardware")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    language.choose(None)


# What our back ends have not got.


@pytest.mark.parametrize(
    ("asked", "lacking"),
    [
        ((*FULL_14B, "2x8x910a"), "parallel.zero: 3"),
        ((*FIRST, "8x910a", "--base", "int8"), "lora.base: int8"),
        ((*FIRST, "8x910b3", "--zero", "2", "--engine", "torch"), "parallel.zero: 2"),
    ],
)
def test_what_tengtune_cannot_run_is_no_fit(asked: tuple[str, ...], lacking: str) -> None:
    code, out, _ = plan(*asked)
    assert code == 3
    lines = out.splitlines()
    assert lines[3].startswith("tengtune cannot run this today")
    assert lacking in lines[3]
    assert lines[4].startswith("What tengtune runs today: ")
    answer = data(*asked)
    assert (answer["verdict"], answer["card"]["verdict"]) == ("cannot", "fits")
    assert "cannot" not in [remedy["verdict"] for remedy in answer["remedies"]]


def test_another_program_that_has_it_fits() -> None:
    answer = data(*FULL_14B, "2x8x910a", "--engine", "deepspeed", "--zero", "3")
    assert (answer["verdict"], answer["lacking"]) == ("fits", [])


def test_what_does_not_fit_is_called_that_whatever_else_is_lacking() -> None:
    assert data(*FULL_14B, "4x910b4")["verdict"] == "no"


def test_a_run_file_that_was_written_is_an_answer() -> None:
    Path("old.yaml").write_text("model: Qwen/Qwen-7B\ndata: d.json\nlora: {base: int8}\n", "utf-8")
    assert plan("old.yaml", "--hardware", "910b4")[0] == 3
    assert plan("old.yaml", "--hardware", "910b4", "--write", "new.yaml")[0] == 0
    assert data("new.yaml", "--hardware", "910b4")["verdict"] == "fits"


# Cards that cannot work together. (CANN's documentation of HCCL: 1, 2, 4 or 8 of the first generation)


@pytest.mark.parametrize(("cards", "most"), [("3x910a", 2), ("6x910a", 4), ("7x 910ProB", 4), ("5x910a", 4)])
def test_the_first_generation_works_in_1_2_4_and_8(cards: str, most: int) -> None:
    answer = data(*FIRST, cards)
    assert {way["cards"] for way in answer["ways"]} == {1, 2, 4, 8} & set(range(most + 1))
    assert answer["strategy"]["cards"] == most
    assert any("cannot work together" in note for note in answer["notes"])


def test_several_machines_of_six() -> None:
    found = {(way["nodes"], way["cards"]) for way in data(*FIRST, "2x6x910a")["ways"]}
    assert found == {(1, 1), (1, 2), (1, 4), (2, 8)}


def test_a_run_file_with_six_ranks_cannot_be_run_there() -> None:
    run = "model: Qwen/Qwen-7B\ndata: d.json\nparallel: {ranks: 6}\ntrain: {global_batch: 12}\n"
    Path("run.yaml").write_text(run, "utf-8")
    answer = data("run.yaml", "--hardware", "8x910a")
    assert answer["verdict"] == "cannot"
    assert answer["remedies"][0]["changes"] == {"parallel.ranks": 4}
    assert (
        "6 x 910A in one machine cannot work together; 1, 2, 4, 8 can"
        in plan("run.yaml", "--hardware", "8x910a")[1].splitlines()[3]
    )
    assert data("run.yaml", "--hardware", "8x910b3")["verdict"] == "fits"


# Links that nobody measured.


def test_without_a_links_rate_the_speed_is_without_them_and_ranks_no_machine_first() -> None:
    answer = data(*FIRST, "2x8x910a", "--tokens", "1e9")
    assert answer["time"]["without_links"]
    nodes = [way["nodes"] for way in answer["ways"] if way["verdict"] == "fits"]
    assert nodes == sorted(nodes)
    assert set(nodes) == {1, 2}
    _, out, _ = plan(*FIRST, "2x8x910a", "--tokens", "1e9")
    table = [line.split() for line in out.splitlines() if line.startswith(("1 ", "2 "))]
    assert all(row[-2].endswith("^") for row in table)
    told = [line for line in out.splitlines() if line.startswith(("speed", "time", "- ^:"))]
    assert len(told) == 3
    assert all("before sending between cards" in line for line in told)


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("cards", ["8x910a", "2x8x910a", "8x910b3", "910a"])
def test_no_figure_with_a_range_is_called_a_bound(cards: str, lang: str) -> None:
    """A range about a bound would go beyond it."""
    out = plan("--model", "Qwen-14B", "--hardware", cards, "--tokens", "1e9", lang=lang)[1]
    about = [line for line in out.splitlines() if line.startswith(("speed", "time", "速度", "时间"))]
    assert all("(" in line or "（" in line for line in about)
    assert not any(word in line for line in about for word in ("at most", "at least", "最多 ", "至少", "<="))


def test_one_card_sends_nothing_and_its_speed_lacks_nothing() -> None:
    ways = data(*FIRST, "2x8x910a")["ways"]
    assert {way["without_links"] for way in ways if way["cards"] == 1} == {False}
    assert not any(way["without_links"] for way in data(*FIRST, "2x8x910b3")["ways"])
    assert "before sending" not in plan(*FIRST, "8x910b3")[1]


# A shortage of disk or of the host's memory alone.

SHORT = ("--model", "Qwen-14B", "--hardware", "8x910b4", "--tokens", "5e6")


def test_a_short_disk_hides_neither_speed_nor_ways() -> None:
    enough, short = data(*SHORT), data(*SHORT, "--disk", "50")
    assert (short["verdict"], short["disk"]["verdict"], short["card"]["verdict"]) == ("no", "no", "fits")
    assert (short["engine"], short["strategy"], short["time"]) == (
        enough["engine"],
        enough["strategy"],
        enough["time"],
    )
    assert len(short["ways"]) == len(enough["ways"])
    code, out, _ = plan(*SHORT, "--disk", "50")
    assert code == 3
    # two models of 28.3 GB and checkpoints of below half a GB each
    missing = next(line for line in out.splitlines() if line.startswith("What there is falls short of "))
    assert 56.7 - 50 < float(missing.split()[6]) < 58.2 - 50
    assert "No one to three changes" not in out
    assert "\ntime   " in out
    assert "How tengtune can run it" in out


def test_both_that_are_short_are_named() -> None:
    _, out, _ = plan(*SHORT, "--disk", "20", "--host-memory", "2")
    assert " GB of host memory and " in out
    assert plan(*SHORT, "--disk", "20", "--write", "run.yaml")[0] == 3
    assert not Path("run.yaml").exists()


def test_fewer_checkpoints_are_the_smallest_change_for_a_disk() -> None:
    """14.17e9 parameters: two models of 28.3 GB, a checkpoint of 170 GB; three are 567 GB, two 397."""
    answer = data(*FULL_14B, "8x910b3", "--disk", "600")
    assert answer["disk"]["needs"]["expected"] / 1e9 == pytest.approx(2 * 28.33 + 3 * 170.0, abs=1)
    assert answer["disk"]["needs"]["high"] / 1e9 == pytest.approx(3 * 28.33 + 4 * 170.0, abs=1)
    assert answer["remedies"][0]["changes"] == {"train.keep": 1}
    answer = data(*FULL_14B, "8x910b3", "--disk", "500")
    assert {change for each in answer["remedies"] for change in each["changes"]} <= {"train.keep"}
    claim = next(each for each in answer["claims"] if each["name"] == "disk_500")
    assert not claim["holds"]
    _, out, _ = plan(*FULL_14B, "8x910b3", "--disk", "500")
    assert "3 checkpoints (train.keep, and the best one or one being written) take 567 GB" in out


# How many cards it takes, where those there are have no way.


@pytest.mark.parametrize(
    ("cards", "asked"),
    [
        (("8x 300T A2", "{}x 300T A2"), ("Qwen-14B", "--method", "full")),
        (("16x 910b4", "{}x 910b4"), ("Qwen-14B", "--method", "full")),
        (("4x 910b3", "{}x 910b3"), ("Qwen-14B", "--method", "full")),
        (("910b4", "{}x 910b4"), ("Qwen-14B", "--seq-len", "8192")),
        (("2x 910b4", "{}x 910b4"), ("Qwen2.5-72B",)),
    ],
)
def test_the_cards_it_takes_are_named_and_half_of_them_are_not_enough(
    cards: tuple[str, str], asked: tuple[str, ...]
) -> None:
    """An offload that tengtune does not have, and another method, are no help for what was asked."""
    there, others = cards
    code, out, _ = plan("--model", *asked, "--hardware", there)
    assert code == 3
    named = re.search(r"tengtune needs (\d+) such cards, by its own sum: (\w+)", out)
    assert named is not None
    count = int(named[1])
    assert data("--model", *asked, "--hardware", there)["minimum"]["cards"] == count
    again = data("--model", *asked, "--hardware", others.format(count))
    assert (again["verdict"], again["engine"], again["sum_of"]) == ("fits", named[2], named[2])
    assert [
        way
        for way in data("--model", *asked, "--hardware", others.format(count // 2))["ways"]
        if way["verdict"] == "fits"
    ] == []


@pytest.mark.parametrize(("lang", "words"), [("en", "On no number of such cards"), ("zh", "增加到 64 张")])
def test_no_number_of_cards_is_said(lang: str, words: str) -> None:
    """Without MindSpore each card has the whole model: 227 GB of states on 32 GB, on however many."""
    code, out, _ = plan(*FULL_14B, "8x910a", lang=lang)
    assert (code, words in out) == (3, True)
    assert words not in plan(*FIRST, "8x910a", lang=lang)[1]


# Remedies within the hardware.


def test_more_cards_than_there_are_are_called_that() -> None:
    asked = ("--model", "Qwen-14B", "--hardware", "1x atlas 300t a2")
    answer = data(*asked)
    within = [each for each in answer["remedies"] if not each["more_cards"]]
    assert within
    assert not any("parallel.ranks" in each["changes"] for each in within)
    _, out, _ = plan(*asked)
    assert "What tengtune runs today: " not in out
    more = next(line for line in out.splitlines() if "parallel.ranks: " in line)
    assert more.startswith("On more cards than there are: ")


def test_cards_that_are_there_are_no_more_cards() -> None:
    Path("run.yaml").write_text("model: Qwen/Qwen-14B\ndata: d.json\nparallel: {ranks: 1}\n", "utf-8")
    remedies = data("run.yaml", "--hardware", "4x910b4")["remedies"]
    today = [each for each in remedies if not each["lacking"]]
    assert today[0]["changes"] == {"backend": "mindspore", "parallel.ranks": 2}
    assert not today[0]["more_cards"]


# What one key must not change, what one option means.


def test_a_level_that_mindspore_ignores_changes_nothing() -> None:
    asked = (*FULL_14B, "8x910b3", "--engine", "mindspore")
    levels = [data(*asked, "--zero", level) for level in ("0", "1", "3")]
    assert [each["host"]["needs"] for each in levels] == [levels[0]["host"]["needs"]] * 3
    # each of eight ranks reads the embedding in float32: 151,936 or 152,064 x 5120 x 4 bytes
    assert levels[2]["host"]["needs"]["expected"] / 8 == pytest.approx(152_064 * 5120 * 4, rel=2e-3)


def test_tokens_are_those_of_one_epoch_with_a_run_file_and_without() -> None:
    asked = (*FIRST, "8x910b3", "--tokens", "1e8")
    plan(*asked, "--write", "run.yaml")
    assert recipes.load(Path("run.yaml")).train.epochs == 3
    found = data(*asked)["time"]
    assert found["tokens"] == 3e8
    assert data("run.yaml", "--hardware", "8x910b3", "--tokens", "1e8")["time"]["hours"] == found["hours"]


def test_short_times_are_minutes() -> None:
    lines = plan(*FIRST, "8x910b3", "--tokens", "1e6")[1].splitlines()
    line = next(line for line in lines if line.startswith("time "))
    assert line.split()[2] == "min"
    hours = data(*FIRST, "8x910b3", "--tokens", "1e6")["time"]["hours"]
    assert float(line.split()[1]) == pytest.approx(60 * hours["expected"], abs=0.06)
    assert line.endswith("for 1,000,000 tokens x 3 epochs")
    long = plan(*FIRST, "8x910b3", "--tokens", "1e9", lang="zh")[1]
    assert any(line.startswith("时间") and " 小时（" in line for line in long.splitlines())


# The next step after --write.


def test_a_written_run_file_names_the_download_until_the_model_is_there(here: Path) -> None:
    _, out, _ = plan(*FIRST, "8x910b3", "--write", "run.yaml")
    assert "tengtune download Qwen/Qwen-7B-Chat --to models/Qwen-7B-Chat" in out
    _, out, _ = plan("run.yaml", "--hardware", "8x910b3", "--write", "again.yaml")
    assert "tengtune download Qwen/Qwen-7B-Chat --to models/Qwen-7B-Chat" in out
    (here / "runs").mkdir()
    _, out, _ = plan("--model", "Qwen-7B", "--hardware", "910b3", "--write", "runs/run.yaml")
    assert "tengtune download Qwen/Qwen-7B --to runs/models/Qwen-7B" in out
    assert recipes.load(Path("runs/run.yaml")).model_folder == here / "runs/models/Qwen-7B"
    tiny_model(here / "models/Qwen-7B-Chat")
    assert "tengtune download" not in plan("run.yaml", "--hardware", "8x910b3", "--write", "third.yaml")[1]
    _, out, _ = plan("--model", "models/Qwen-7B-Chat", "--hardware", "910b3", "--write", "own.yaml")
    assert "tengtune download" not in out
