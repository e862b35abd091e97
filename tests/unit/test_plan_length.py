"""How long rows may be: the longest that fits, in the chart and in what is proposed."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.test_plan_beside import plan, qwen

from tengtune.plan import hardware, judge, length, picture, remedy
from tengtune.plan.judge import Plan
from tengtune.plan.strategy import Strategy


def full(tokens: int, cards: str = "8x910b3") -> Plan:
    return plan("Qwen-14B", cards, "mindspore", method="full", row_tokens=tokens)


def last(first: int, step: int, **asked: Any) -> int:
    """The longest row that fits, found one step after the other."""
    while plan(row_tokens=first + step, **asked).card_verdict == "fits":
        first += step
    return first


@pytest.mark.parametrize(
    ("model", "cards", "engine", "method"),
    [("Qwen-14B", "8x910b3", "mindspore", "full"), ("Qwen2.5-14B", "4x910b4", "mindspore", "lora")],
)
def test_the_longest_row_may_be_longer_than_the_usual(
    model: str, cards: str, engine: str, method: str
) -> None:
    asked = {"model": model, "cards": cards, "engine": engine, "method": method}
    found = picture.curve(plan(**asked))
    assert found.longest == last(8192, 64, **asked) > 8192
    assert found.lengths[-1] >= found.longest


def test_where_all_lengths_fit_none_is_called_the_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.axes import Axes

    said: list[str] = []
    draw = Axes.axvline

    def axvline(axes: Axes, place: float, **style: Any) -> Any:
        said.append(style["label"])
        return draw(axes, place, **style)

    monkeypatch.setattr(Axes, "axvline", axvline)
    tiny = replace(qwen("Qwen2.5-0.5B"), layers=1, hidden=64, heads=2, kv_heads=2, head_dim=32, ffn=64)
    made = judge.make(replace(tiny, vocab=1000), Strategy(), "torch", hardware.find("910b3"))
    assert picture.curve(made).longest == length.LONGEST
    picture.draw(made, "tiny", io.BytesIO())
    picture.draw(full(1024), "Qwen-14B", io.BytesIO())
    assert said == [
        "all fit, up to 1048576 at least",
        "the model was made for 32768",
        f"longest that fits: {picture.curve(full(1024)).longest}",
        "the model was made for 8192",
    ]


@pytest.mark.parametrize("asked", [16384, 32768, 1000000])
def test_no_longer_row_than_the_one_proposed_does(asked: int) -> None:
    made = full(asked)
    found = remedy.smallest(made)
    assert found is not None
    ((key, tokens),) = ((change.key, change.value) for change in found.changes)
    assert key == "data.seq_len"
    assert tokens == last(8192, 256, model="Qwen-14B", cards="8x910b3", engine="mindspore", method="full")
    assert found.plan.strategy.row_tokens == tokens
    assert found.plan.verdict == "fits"


def test_what_runs_today_is_no_longer_than_what_the_back_end_takes() -> None:
    """Our MindSpore back end stretches no positions of a first-generation Qwen, here beyond 2048."""
    from tengtune.models.spec import Stretch

    spec = replace(qwen("Qwen-1_8B"), stretch=Stretch(2048, True, True), max_positions=2048)
    made = judge.make(spec, Strategy(row_tokens=8000), "mindspore", hardware.find("910b3"))
    assert made.answer == "cannot"
    assert [[str(change) for change in each.changes] for each in remedy.advice(made)] == [
        ["data.seq_len: 2048"]
    ]
