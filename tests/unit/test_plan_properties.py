"""What must hold of any plan: figures in order, and no more memory for what can only save some."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.unit.test_plan import MODELS, qwen

from tengtune.cli import plan_ask
from tengtune.models.spec import ModelSpec
from tengtune.plan import hardware, judge
from tengtune.plan.profiles import PROFILES
from tengtune.plan.strategy import Range, Strategy

STRATEGIES = st.builds(
    Strategy,
    method=st.sampled_from(["lora", "full"]),
    cards=st.integers(2, 64),
    rows=st.integers(1, 8),
    row_tokens=st.integers(8, 32768),
    zero=st.integers(0, 3),
    recompute=st.booleans(),
    rank=st.integers(1, 256),
    base=st.sampled_from(["compute", "int8", "int8-all", "int4"]),
    train_embeddings=st.booleans(),
    width_bytes=st.sampled_from([2, 4]),
    flash=st.booleans(),
)
SPECS = st.sampled_from([qwen(row["name"]) for row in MODELS])
ENGINES = st.sampled_from(list(PROFILES))
CARD = hardware.find("910b4")


def assert_no_more(one: Range, other: Range) -> None:
    """In no bound, but for rounding."""
    assert one.low <= other.low * (1 + 1e-12)
    assert one.expected <= other.expected * (1 + 1e-12)
    assert one.high <= other.high * (1 + 1e-12)


def total(spec: ModelSpec, strategy: Strategy, engine: str) -> Range:
    return judge.make(spec, strategy, engine, CARD).card.total


@settings(max_examples=80, deadline=None, derandomize=True)
@given(SPECS, STRATEGIES, ENGINES)
def test_figures_are_finite_and_in_order(spec: ModelSpec, strategy: Strategy, engine: str) -> None:
    made = judge.make(spec, strategy, engine, CARD)
    for each in (*made.card.terms.values(), made.card.total, made.host, made.disk):
        assert 0 <= each.low <= each.expected <= each.high
        assert math.isfinite(each.high)
    assert made.card.total.expected == pytest.approx(sum(t.expected for t in made.card.terms.values()))


@settings(max_examples=80, deadline=None, derandomize=True)
@given(SPECS, STRATEGIES, ENGINES, st.integers(1, 64))
def test_more_cards_never_need_more_a_card(
    spec: ModelSpec, strategy: Strategy, engine: str, more: int
) -> None:
    """From two cards on: a second one brings the buffers through which they talk."""
    larger = replace(strategy, cards=strategy.cards + more)
    assert_no_more(total(spec, larger, engine), total(spec, strategy, engine))


@settings(max_examples=80, deadline=None, derandomize=True)
@given(SPECS, STRATEGIES, ENGINES, st.integers(1, 32768))
@example(
    # The step takes more than the backward.
    qwen("Qwen-1_8B"),
    Strategy(method="full", row_tokens=8, recompute=False, flash=False),
    "torch",
    1,
)
def test_longer_rows_never_need_less(spec: ModelSpec, strategy: Strategy, engine: str, more: int) -> None:
    longer = replace(strategy, row_tokens=strategy.row_tokens + more)
    assert_no_more(total(spec, strategy, engine), total(spec, longer, engine))


@settings(max_examples=80, deadline=None, derandomize=True)
@given(SPECS, STRATEGIES, ENGINES, st.sampled_from(["rows", "rank"]), st.integers(1, 1024))
def test_more_rows_and_ranks_never_need_less(
    spec: ModelSpec, strategy: Strategy, engine: str, name: str, more: int
) -> None:
    larger = replace(strategy, **{name: getattr(strategy, name) + more})
    assert_no_more(total(spec, strategy, engine), total(spec, larger, engine))


@settings(max_examples=200, deadline=None, derandomize=True)
@given(SPECS, STRATEGIES, ENGINES)
def test_offload_never_raises_a_cards_memory(spec: ModelSpec, strategy: Strategy, engine: str) -> None:
    kept, moved, all_moved = (
        total(spec, replace(strategy, offload=offload), engine) for offload in ("none", "optimizer", "all")
    )
    assert_no_more(moved, kept)
    if strategy.zero == 3:
        assert_no_more(all_moved, moved)


@pytest.mark.parametrize("zero", [(), ("--zero", "0"), ("--zero", "2"), ("--zero", "3")])
@pytest.mark.parametrize("method", ["lora", "full"])
def test_offload_on_the_command_line_never_raises_it(zero: tuple[str, ...], method: str) -> None:
    """A small adapter is less than DeepSpeed's bucket, and its logits of long rows more than our chunks."""
    given = {"method": method, "row_tokens": 8192} | ({"zero": int(zero[1])} if zero else {})
    there = hardware.find("4x910b4")
    for model, engine in (("Qwen2.5-0.5B", None), ("Qwen2.5-7B", "torch"), ("Qwen-1_8B", "mindspore")):
        kept, moved = (
            plan_ask.of_model(model, there, engine, {**given, "offload": offload}, None, None).plan
            for offload in ("none", "optimizer")
        )
        assert_no_more(moved.card.total, kept.card.total)
