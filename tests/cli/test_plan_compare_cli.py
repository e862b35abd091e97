"""tengtune plan --compare: rows side by side, each of which says what plan alone says."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
from tests.cli.test_plan_cli import plan

from tengtune.ui import language


@pytest.fixture(autouse=True)
def language_of_its_own() -> Iterator[None]:
    yield
    language.choose(None)


def test_side_by_side() -> None:
    asked = ("--model", "Qwen-14B", "--compare", "--hardware", "4x910b4", "--hardware", "8x910b3")
    code, out, _ = plan(*asked)
    assert code == 0
    rows = [re.split(r"\s{2,}", line)[:5] for line in out.splitlines() if "910B" in line and "  " in line]
    assert [[*row[:3], row[4]] for row in rows] == [
        ["4 x 910B4", "LoRA", "2", "fits"],
        ["4 x 910B4", "full", "32!", "does not fit"],
        ["8 x 910B3", "LoRA", "1", "fits"],
        ["8 x 910B3", "full", "8", "fits"],
        ["910B4", "answering", "-", "does not fit"],
        ["910B3", "answering", "1", "fits"],
    ]
    answer = json.loads(plan(*asked, "--json")[1])
    first, second = answer["trainings"][:2]
    assert (first["minimum"]["cards"], first["recommended"]["engine"]) == (2, "mindspore")
    assert (second["minimum"]["cards"], second["recommended"], second["cards_there"]) == (32, None, 4)
    assert [each["fits"] for each in answer["answering"]] == [False, True]


def test_one_method_side_by_side() -> None:
    asked = ("--model", "Qwen-7B", "--compare", "--hardware", "8x910b3", "--method", "lora", "--base", "int8")
    answer = json.loads(plan(*asked, "--json")[1])
    assert [each["method"] for each in answer["trainings"]] == ["lora"]
    assert answer["trainings"][0]["minimum"] is None  # no int8 base so far


COMPARED = [
    ("8x910a", "Qwen-14B", ()),  # 28.3 GB of weights on cards of 31.7: tight on any number
    ("2x910a", "Qwen-7B", ()),
    ("8x8x910b4", "Qwen-14B", ("--seq-len", "8192")),
    ("6x910b4", "Qwen-14B", ()),
    ("8x32g", "Qwen-14B", ("--seq-len", "4096")),
    ("4xa100-40g", "Qwen-14B", ()),
    ("8x910b3", "Qwen-14B", ("--host-memory", "4")),
    ("8x910b3", "Qwen-14B", ("--disk", "60")),
    ("8x910b3", "Qwen-14B", ("--host-memory", "4", "--disk", "10")),
]


@pytest.mark.parametrize("method", ["lora", "full"])
@pytest.mark.parametrize(("cards", "model", "more"), COMPARED)
def test_a_row_says_what_plan_says(cards: str, model: str, more: tuple[str, ...], method: str) -> None:
    """Tight ways, and ways that only the host's memory or the disk is short of, are ways; the fewest cards
    are never more than those on which plan finds one."""
    asked = ("--model", model, "--method", method, "--hardware", cards, *more, "--json")
    compared = json.loads(plan(*asked, "--compare")[1])["trainings"][0]
    alone = json.loads(plan(*asked)[1])
    ways = alone["ways"]
    assert compared["recommended"] == (ways[0] if ways else None)
    assert compared["verdict"] == (ways[0]["verdict"] if ways else "no")
    short = [name for name in ("host", "disk") if alone[name]["verdict"] == "no"] if ways else []
    assert compared["short"] == short
    if ways:
        assert compared["minimum"]["cards"] <= max(way["cards"] for way in ways)
        order = ["fits", "unknown", "tight", "no"]
        assert order.index(compared["minimum"]["verdict"]) <= order.index(ways[0]["verdict"])


def test_each_number_of_cards_has_its_row() -> None:
    """2, 4 and 8 of a card: named so, each with its own best way; hours go down as cards are added."""
    several = [part for count in (2, 4, 8) for part in ("--hardware", f"{count}x910a")]
    asked = ("--model", "Qwen-14B", "--compare", "--method", "lora", "--tokens", "1e7", *several)
    _, out, _ = plan(*asked)
    assert [line[:8] for line in out.splitlines() if " x 910A" in line] == [
        "2 x 910A",
        "4 x 910A",
        "8 x 910A",
    ]
    assert sum(line.startswith("910A ") for line in out.splitlines()) == 1  # answering takes one card of each
    answer = json.loads(plan(*asked, "--json")[1])["trainings"]
    assert [each["recommended"]["cards"] for each in answer] == [2, 4, 8]
    for each in answer:
        speed = each["recommended"]["tokens_per_s"]["expected"]
        assert each["hours"] == pytest.approx(3 * 1e7 / speed / 3600, rel=1e-3)


@pytest.mark.parametrize(
    ("asked", "mark"),
    [
        (("--hardware", "8x910a"), "1~"),
        (("--hardware", "4x910b3", "--disk", "10"), "1*"),
        (("--hardware", "1x910b4", "--seq-len", "8192"), "2!"),
        (("--hardware", "2xv100"), "1?"),  # 32 GiB: who knows what a framework gets
    ],
)
def test_the_fewest_cards_have_their_mark(asked: tuple[str, ...], mark: str) -> None:
    _, out, _ = plan("--model", "Qwen-14B", "--compare", "--method", "lora", *asked)
    assert re.split(r"\s{2,}", out.splitlines()[3])[2] == mark


@pytest.mark.parametrize(
    ("lang", "words"), [("en", "short of host memory and disk"), ("zh", "主机内存和磁盘不足")]
)
def test_what_is_short_is_named(lang: str, words: str) -> None:
    short = ("--hardware", "8x910b3", "--host-memory", "4", "--disk", "10")
    _, out, _ = plan("--model", "Qwen-14B", "--compare", "--method", "full", *short, lang=lang)
    assert words in out.splitlines()[3]
    answers = json.loads(plan("--model", "Qwen-14B", "--compare", *short, "--json")[1])["answering"]
    assert (answers[0]["short"], answers[0]["fits"]) == (["disk"], False)  # 28.3 GB on a disk of 10


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("cards", ["8x910c", "8x910b", "16x910b4", "atlas 800", "4x300t-a2", "8x32g"])
def test_what_is_read_into_a_name_is_said_as_plan_says_it(cards: str, lang: str) -> None:
    alone = plan("--model", "Qwen-7B", "--hardware", cards, lang=lang)[1].splitlines()
    read = {note for note in alone if note.startswith("- ")}
    compared = plan(
        "--model", "Qwen-7B", "--compare", "--hardware", cards, "--hardware", "8x910b3", lang=lang
    )[1]
    notes = [line for line in compared.splitlines() if line.startswith("- ")]
    assert notes[0] in read
    assert len(notes) == len(set(notes))
