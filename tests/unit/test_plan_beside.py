"""What stands beside a plan: published measurements, guides' claims, a comparison, a chart."""

from __future__ import annotations

import io
import math
import struct
from dataclasses import replace
from importlib import resources
from typing import Any

import pytest
import yaml

from tengtune.models import known
from tengtune.models.spec import ModelSpec
from tengtune.plan import claims, compare, hardware, judge, nearest, picture, published
from tengtune.plan.judge import Plan
from tengtune.plan.search import Question, batch_for, search
from tengtune.plan.strategy import Strategy
from tengtune.ui import language


def qwen(name: str) -> ModelSpec:
    spec = known.spec(name)
    assert spec is not None
    return spec


def plan(model: str, cards: str, engine: str = "torch", **asked: Any) -> Plan:
    found = hardware.find(cards)
    return judge.make(qwen(model), Strategy(cards=found.count or 1, **asked), engine, found)


# Published measurements.


def test_a_plan_that_was_measured_has_its_measurement_first() -> None:
    """QwenLM's table: Qwen-7B, LoRA r 64 on one A100, 1024 tokens, 21.5 GB and 2926 tokens/s."""
    asked = plan("Qwen-7B", "a100-80g", "hf-trainer", rank=64, row_tokens=1024)
    first = nearest.nearest(asked)[0]
    assert (first.source, first.model, first.strategy.row_tokens) == ("QwenLM/Qwen", "Qwen-7B", 1024)
    assert (first.peak_bytes, first.tokens_per_s) == (21.5e9, 2925.7)
    assert first.predicted() == pytest.approx(21.5e9, rel=0.1)
    ours = nearest.speed(first)
    assert ours is not None
    assert 0.5 < ours / 2925.7 < 2


def test_a_row_is_told_from_the_one_with_trained_embeddings() -> None:
    """14.0 G and 8.4 G: the same row of 1024 tokens with and without embedding and head trained along."""
    rows = nearest.nearest(plan("Qwen-1_8B", "a100-80g", "hf-trainer", rank=64))
    cells = [line.split("  ") for line in nearest.lines(rows)[2:]]
    methods = [next(cell for cell in row if "lora" in cell).strip() for row in cells]
    assert methods[:2] == ["lora r 64", "lora r 64 + emb"]


def test_npus_are_nearer_to_npus() -> None:
    on_npu = nearest.nearest(plan("Qwen-7B", "8x910b3", row_tokens=2048))
    assert all("910" in row.device for row in on_npu)
    on_gpu = nearest.nearest(plan("Qwen-7B", "a100", row_tokens=2048))
    assert not any("910" in row.device for row in on_gpu)


@pytest.mark.parametrize("method", ["lora", "full"])
def test_only_the_same_method_and_nothing_far(method: str) -> None:
    for model in ("Qwen2.5-0.5B", "Qwen-14B", "Qwen-72B"):
        asked = plan(model, "910b3", method=method)
        rows = nearest.nearest(asked)
        assert len(rows) <= 3
        assert {row.strategy.method for row in rows} <= {method}
        for row in rows:
            assert 1 / 13 < qwen(model).parameters() / row.spec.parameters() < 13  # e^2.5 is 12.2
        others = [row for row in published.rows() if row.strategy.method != method]
        assert all(math.isinf(nearest.distance(asked, row)) for row in others)


# Claims.


@pytest.mark.parametrize(
    ("model", "cards", "asked", "told"),
    [
        # 14.167 x 16; 14.167 x (2 + 14 / 4); 14.167 x 18 x 1.5
        (
            "Qwen-14B",
            "4x910b4",
            {"method": "full"},
            {"full_56": (226.7, False), "zero2_35": (77.9, False), "host_512": (382.5, True)},
        ),
        (
            "Qwen-14B",
            "2x910b4",
            {"method": "full"},
            {"full_56": (226.7, False), "zero2_35": (127.5, False), "host_256": (382.5, False)},
        ),
        ("Qwen-14B", "910b4", {}, {"lora_20": (28.3, False), "host_128": (3.1, True)}),
        ("Qwen-14B", "910b4", {"base": "int8"}, {}),
        ("Qwen-7B", "4x910b4", {"method": "full"}, {}),
        ("Qwen-14B", "8x910b3", {}, {}),
    ],
)
def test_claims_about_the_plan_with_their_sums(
    model: str, cards: str, asked: dict[str, Any], told: dict[str, tuple[float, bool]]
) -> None:
    found = {each.name: each for each in claims.of(plan(model, cards, **asked))}
    disk = found.pop("disk_500", None)
    assert found.keys() == told.keys()
    assert (disk is not None) == bool(told)
    for name, (needs, holds) in told.items():
        assert found[name].needs / 1e9 == pytest.approx(needs, abs=0.1)
        assert found[name].holds == holds


@pytest.mark.parametrize("lang", language.LANGUAGES)
def test_every_claim_has_its_words(lang: language.Language) -> None:
    text = resources.files("tengtune.facts").joinpath("claims.yaml").read_text("utf-8")
    names = {(each["name"], each["sum"]) for each in yaml.safe_load(text)}
    messages = language.area_messages("plan")
    assert set(messages["plan.claim_names"][lang]) == {name for name, _ in names}
    assert set(messages["plan.claim_sums"][lang]) == {formula for _, formula in names}
    assert set(messages["plan.guides"][lang]) == {each["guide"] for each in yaml.safe_load(text)}


@pytest.mark.parametrize("method", ["lora", "full"])
def test_guides_speak_of_cards_and_no_cpu_refutes_them(method: str) -> None:
    """Four ranks of a 14B on a CPU of 8 GB: nothing fits, and nothing was promised of it."""
    small = replace(hardware.find("cpu"), host_bytes=8 * 10**9, count=4)
    asked = Strategy(method=method, cards=4, width_bytes=4)  # type: ignore[arg-type]
    made = judge.make(qwen("Qwen-14B"), asked, "torch", small)
    assert made.verdict == "no"
    assert claims.of(made) == []


@pytest.mark.parametrize("lang", language.LANGUAGES)
def test_a_claim_stands_below_the_name_of_its_guide(
    lang: language.Language, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(language, "current", lambda: lang)
    told = claims.lines(claims.of(plan("Qwen-14B", "4x910b4", method="full")))
    assert "Atlas 300T A2" in told[0]
    assert "Qwen-14B" in told[0]
    assert all(line.startswith("- ") for line in told[1:])


# Comparison.


def question(model: str, cards: str, **asked: Any) -> Question:
    there = hardware.find(cards)
    count = there.count or 1
    strategy = Strategy(cards=count, nodes=there.nodes, **asked)
    return Question(qwen(model), strategy, there, count, batch_for(count))


@pytest.mark.parametrize(
    ("model", "cards", "method", "least"),
    [
        ("Qwen-14B", "4x910b4", "lora", 2),  # 28.3 GB of weights on one of 31.7 is at the limit
        ("Qwen-7B", "4x910b4", "lora", 1),  # 15.4 GB
        ("Qwen-7B", "8x910b3", "full", 4),  # 124 GB of states in four parts, 31 GB, and 10 GB gathered
        ("Qwen-14B", "8x910b3", "full", 8),  # 227 / 8 = 28 GB and 16 GB gathered; 57 GB with four
        ("Qwen-14B", "4x910b4", "full", 32),  # 227 / 16 = 14 GB, 16 GB gathered: too near to 31.7
    ],
)
def test_the_least_that_is_enough(model: str, cards: str, method: str, least: int) -> None:
    found = compare.side(question(model, cards, method=method))
    assert found.least is not None
    assert found.least.plan.strategy.cards == least
    assert found.least.plan.verdict == "fits"
    assert (found.least.plan.strategy.rows, found.least.plan.strategy.recompute) == (1, True)
    assert (found.best is not None) == (least <= (hardware.find(cards).count or 1))


def test_no_mindspore_on_the_first_generation() -> None:
    """The back end needs a newer one than any source names for these cards: all of a 14B fits on none."""
    assert compare.side(question("Qwen-14B", "4x910a", method="full")).least is None
    asked = question("Qwen-7B", "8x910a")
    assert judge.make(asked.spec, asked.strategy, "mindspore", asked.hardware).lacking == ("lora",)
    assert {way.plan.engine for way in search(asked)} == {"torch"}


def test_what_no_number_of_cards_can_do() -> None:
    """A 72B's embedding and head with their gradients, four times 5 GB, and one layer: 64 cards of 32 GB are
    not enough to tune all of it; on CUDA there is nothing but whole models."""
    assert compare.side(question("Qwen-72B", "8xa100-80g", method="full")).least is None


def test_answering_is_weights_and_cache() -> None:
    """Qwen-14B: 28.33 GB of weights; 8 texts x 1024 tokens x 2 x 40 layers x 5120 x 2 bytes are 6.71 GB."""
    there = hardware.find("910b3")
    found = compare.answering(qwen("Qwen-14B"), there, 1024)
    assert found.card.low / 1e9 == pytest.approx(28.33 + 6.71 + 0.3, abs=0.4)
    assert found.verdict == "fits"
    assert compare.answering(qwen("Qwen-14B"), hardware.find("910b4"), 1024).verdict == "no"
    longer = compare.answering(qwen("Qwen-14B"), there, 2048)
    assert longer.card.expected - found.card.expected == pytest.approx(6.71e9, rel=0.1)


# The chart.


@pytest.mark.parametrize("rank", [8, 16, 32, 64, 128, 256])
def test_the_longest_row_is_the_last_that_fits(rank: int) -> None:
    asked = plan("Qwen-7B", "910b3", recompute=False, rank=rank)
    found = picture.curve(asked)
    assert found.lengths[0] == 256
    assert found.lengths == sorted(set(found.lengths))
    assert found.usable == asked.hardware.usable_bytes
    assert found.longest is not None
    assert found.longest % 64 == 0
    at = [found.longest, found.longest + 64]
    fits = [plan("Qwen-7B", "910b3", recompute=False, rank=rank, row_tokens=length) for length in at]
    assert [each.card_verdict for each in fits] == ["fits", "tight"]
    for length, need in zip(found.lengths, found.needs, strict=True):
        again = plan("Qwen-7B", "910b3", recompute=False, rank=rank, row_tokens=length)
        assert again.card.total == need


def test_no_row_fits_where_the_weights_do_not() -> None:
    assert picture.curve(plan("Qwen-72B", "910b4")).longest is None


@pytest.mark.parametrize("font", [None, "DejaVu Sans"])
def test_the_picture_is_one_and_chinese_where_a_font_has_it(
    font: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from matplotlib.axes import Axes

    said: list[str] = []
    monkeypatch.setattr(picture, "chinese_font", lambda: font)
    monkeypatch.setattr(language, "current", lambda: "zh")
    label = Axes.set_xlabel

    def set_xlabel(axes: Axes, text: str) -> None:
        said.append(text)
        label(axes, "x")  # DejaVu Sans has no Chinese and warns

    monkeypatch.setattr(Axes, "set_xlabel", set_xlabel)
    monkeypatch.setattr(Axes, "set_ylabel", lambda axes, text: said.append(text))
    monkeypatch.setattr(Axes, "set_title", lambda axes, text, **style: said.append(text))
    monkeypatch.setattr(Axes, "legend", lambda axes, **style: None)
    stream = io.BytesIO()
    asked = plan("Qwen-7B", "910b3")
    picture.draw(replace(asked, strategy=replace(asked.strategy, row_tokens=512)), "Qwen-7B", stream)
    image = stream.getvalue()
    assert image[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", image[16:24]) == (1200, 675)
    assert ("每卡 GB" in said) == (font is not None)
    assert ("GB of a card" in said) == (font is None)
