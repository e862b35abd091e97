"""How fast a plan trains: counts worked out by hand, and what must hold of any plan."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tengtune.models import known
from tengtune.models.spec import ModelSpec
from tengtune.plan import hardware, time
from tengtune.plan.profiles import DEEPSPEED, HF_TRAINER, MINDSPEED, MINDSPORE, PROFILES, TORCH
from tengtune.plan.strategy import Range, Strategy
from tengtune.plan.time import Pace


def qwen(name: str) -> ModelSpec:
    spec = known.spec(name)
    assert spec is not None
    return spec


QWEN_7B, QWEN_14B = qwen("Qwen-7B"), qwen("Qwen-14B")
LORA = Strategy(row_tokens=2048)
FULL = replace(LORA, method="full")


def pace(spec: ModelSpec, strategy: Strategy, engine: str, cards: str) -> Pace:
    found = time.pace(spec, strategy, PROFILES[engine], hardware.find(cards))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("spec", "strategy", "without", "recomputed"),
    [
        (QWEN_7B, LORA, 29.5, 44.2),
        (QWEN_7B, FULL, 44.2, 58.9),
        (QWEN_14B, LORA, 55.2, 82.8),
        (QWEN_14B, FULL, 82.8, 110.5),
    ],
)
def test_flops_of_a_token(spec: ModelSpec, strategy: Strategy, without: float, recomputed: float) -> None:
    """7B: 6.476e9 linears and 0.622e9 of the head, twice, and 2 x 4096 x 2048 x 32 of attention."""
    for recompute, expected in ((False, without), (True, recomputed)):
        flops = time.token_flops(spec, replace(strategy, recompute=recompute), HF_TRAINER)
        assert flops / 1e9 == pytest.approx(expected, abs=0.06)


@pytest.mark.parametrize(
    ("method", "zero", "gigabytes"),
    [("full", 1, 42.5), ("full", 2, 42.5), ("full", 3, 63.8), ("lora", 3, 42.5)],
)
def test_bytes_between_four_cards_of_a_14b(method: str, zero: int, gigabytes: float) -> None:
    """2 bytes x 14.167e9 x 3/4, twice or three times; LoRA's own of rank 8 are below 1%."""
    strategy = Strategy(method=method, cards=4, zero=zero)  # type: ignore[arg-type]
    sent = time.link_bytes(QWEN_14B, strategy, DEEPSPEED)
    assert sent / 1e9 == pytest.approx(gigabytes, rel=0.01)


def test_what_waits_for_the_optimizers_step_is_sent_once() -> None:
    """Replicas wait for it; DeepSpeed's ZeRO-2 scatters gradients in every micro step, and ZeRO-3 all."""
    sent = {
        zero: time.link_bytes(QWEN_14B, Strategy(method="full", cards=4, zero=zero, accumulate=8), DEEPSPEED)
        for zero in (0, 2, 3)
    }
    one = 2 * 14.167e9 * 3 / 4
    assert sent[0] == pytest.approx(2 * one / 8, rel=1e-3)
    assert sent[2] == pytest.approx(one + one / 8, rel=1e-3)
    assert sent[3] == pytest.approx(3 * one, rel=1e-3)


def test_our_mindspore_back_end_gathers_blocks_twice_and_the_head_once_a_step() -> None:
    """Qwen-7B: 6.476e9 of linears, norms and biases in blocks, 2 x 0.622e9 outside, 16 bits, two cards."""
    sent = time.link_bytes(QWEN_7B, Strategy(cards=2, accumulate=4), MINDSPORE)
    outside = 2 * 151936 * 4096
    blocks = 7.721e9 - outside
    assert sent == pytest.approx((2 * 2 * blocks + 2 * outside / 4) / 2, rel=0.01)
    assert time.link_bytes(QWEN_7B, Strategy(), MINDSPORE) == 0


def test_ours_sums_the_adapters_float32_gradients_once_a_step() -> None:
    strategy = Strategy(cards=8, accumulate=2, rank=8)
    sent = time.link_bytes(QWEN_7B, strategy, TORCH)
    # rank 8 on c_attn, c_proj, w1, w2, c_proj of 32 layers; 4 bytes, sent twice less an eighth
    width = (4096 + 12288) + (4096 + 4096) + 2 * (4096 + 11008) + (11008 + 4096)
    assert sent == pytest.approx(8 * 32 * width * 4 * 2 * 7 / 8 / 2, rel=1e-9)


@pytest.mark.parametrize(
    ("cards", "count", "nodes", "gigabytes"),
    [
        ("8x910b3", 2, 1, 17),  # HCCS: a link to each other card
        ("8x910b3", 4, 1, 51),
        ("8x910b3", 8, 1, 119),
        ("2x8x910b3", 16, 2, 25),  # 200 Gb/s between machines
        ("8x910b3", 2, 2, 25),
        ("4x300t a2", 4, 1, 25),  # PCIe
        ("8xa100", 8, 1, 145),
        ("8x32g", 8, 1, None),
    ],
)
def test_the_rate_between_cards(cards: str, count: int, nodes: int, gigabytes: float | None) -> None:
    rate = time.link_rate(Strategy(cards=count, nodes=nodes), hardware.find(cards))
    assert rate == (None if gigabytes is None else pytest.approx(gigabytes * 1e9))


def test_a_14bs_optimizer_on_the_host() -> None:
    """30 bytes a parameter are 425 GB, 4.25 s at 100 GB/s; and 4 bytes a parameter cross a card's link."""
    strategy = Strategy(method="full", zero=2, offload="optimizer")
    seconds = time.offload_s(QWEN_14B, strategy, DEEPSPEED)
    assert seconds.expected == pytest.approx(4.25 + 4 * 14.167 / 25, rel=1e-3)
    often = time.offload_s(QWEN_14B, replace(strategy, accumulate=16), DEEPSPEED)
    assert often.expected == pytest.approx(4.25 / 16 + (2 + 2 / 16) * 14.167 / 25, rel=1e-3)


def test_short_rows_wait_for_the_host() -> None:
    """QwenLM's table: rows of 256 and of 512 take LoRA of a 1.8B the same time, 1.0 s for eight."""
    spec = qwen("Qwen-1_8B")
    seconds = {}
    for tokens in (256, 512):
        found = pace(spec, Strategy(row_tokens=tokens, accumulate=8, rank=64), "hf-trainer", "a100")
        assert found.binds == "host"
        seconds[tokens] = 8 * tokens / found.tokens_per_s.expected
    assert seconds[256] == pytest.approx(seconds[512], rel=0.01)
    assert seconds[256] == pytest.approx(1.0, rel=0.1)


def test_zero_3_over_pcie_is_bound_by_its_links() -> None:
    slow = pace(QWEN_14B, Strategy(method="full", cards=4, zero=3), "deepspeed", "4x300t a2")
    assert slow.binds == "links"
    assert slow.parts["links"] == pytest.approx(63.75 / 25, rel=1e-3)
    assert not slow.unknown


@pytest.mark.parametrize(
    ("cards", "width"), [("cpu", 4), ("cpu", 2), ("8x32g", 2), ("910b3", 4)], ids=lambda each: str(each)
)
def test_nothing_is_invented(cards: str, width: int) -> None:
    """A CPU, a card of a mere size, and float32 have no peak here."""
    assert time.pace(QWEN_7B, Strategy(width_bytes=width), TORCH, hardware.find(cards)) is None


def test_links_nobody_measured_are_left_out_and_that_is_said() -> None:
    found = pace(QWEN_7B, Strategy(cards=2), "torch", "2xv100")
    assert found.unknown == ("plan.no_link_rate",)
    assert found.parts["links"] == 0
    assert not pace(QWEN_7B, Strategy(), "torch", "v100").unknown


def test_cards_that_share_layers_send_their_sums() -> None:
    """7B on eight cards, two rows of 8192: 32 layers, forward and backward, twice 2 x 7/8 of 134 MB each."""
    strategy = Strategy(method="full", cards=8, tensor=8, rows=2, row_tokens=8192, recompute=False)
    hidden = 2 * 16384 * 4096
    sent = time.tensor_bytes(QWEN_7B, strategy, MINDSPEED)
    assert sent == pytest.approx(32 * 2 * 2 * (2 * 7 / 8) * hidden)
    again = time.tensor_bytes(QWEN_7B, replace(strategy, recompute=True), MINDSPEED)
    assert again == pytest.approx(1.5 * sent)
    assert time.link_bytes(QWEN_7B, strategy, MINDSPEED) == 0
    found = pace(QWEN_7B, strategy, "mindspeed", "8x910b3")
    assert found.parts["links"] == pytest.approx(sent / (7 * 17e9))


def test_a_pipelines_groups_wait_for_each_other() -> None:
    """Four groups and sixteen micro batches: 3/16 longer."""
    assert time.bubble(Strategy(cards=8, pipeline=4, accumulate=16)) == pytest.approx(1.1875)
    assert time.bubble(Strategy(cards=8, accumulate=16)) == 1


def test_hours() -> None:
    made = Pace(Range(1000, 2000, 4000), {}, "compute")
    assert time.hours(made, 36e6, cards=5, epochs=2) == Range(1.0, 2.0, 4.0)


TRAININGS = st.builds(
    Strategy,
    method=st.sampled_from(["lora", "full"]),
    cards=st.sampled_from([1, 2, 4, 8]),
    rows=st.integers(1, 16),
    row_tokens=st.integers(8, 32768),
    zero=st.integers(0, 3),
    offload=st.sampled_from(["none", "optimizer", "all"]),
    recompute=st.booleans(),
    rank=st.integers(1, 256),
    base=st.sampled_from(["compute", "int8", "int8-all", "int4"]),
    train_embeddings=st.booleans(),
    flash=st.booleans(),
    accumulate=st.sampled_from([1, 2, 16]),
)
MODELS = st.sampled_from([qwen(name) for name in ("Qwen2.5-0.5B", "Qwen-7B", "Qwen3-32B", "Qwen2.5-72B")])
ENGINES = st.sampled_from(sorted(PROFILES))
CARDS = st.sampled_from(["8x910b4", "8x910b3", "8x300t a2", "2x4x910b3", "a100", "8xv100"])


def seconds(spec: ModelSpec, strategy: Strategy, engine: str, cards: str) -> Range:
    """Of a micro step."""
    speed = pace(spec, strategy, engine, cards).tokens_per_s
    return Range(strategy.tokens / speed.high, strategy.tokens / speed.expected, strategy.tokens / speed.low)


@settings(deadline=None, max_examples=150)
@given(spec=MODELS, strategy=TRAININGS, engine=ENGINES, cards=CARDS)
def test_any_pace(spec: ModelSpec, strategy: Strategy, engine: str, cards: str) -> None:
    found = pace(spec, strategy, engine, cards)
    speed = found.tokens_per_s
    assert 0 < speed.low <= speed.expected <= speed.high < math.inf
    assert all(0 <= each < math.inf for each in found.parts.values())
    assert found.parts[found.binds] == max(found.parts.values())
    peak = hardware.find(cards).peak_flops
    assert peak is not None
    assert speed.high * time.token_flops(spec, strategy, PROFILES[engine]) <= peak.high

    now = seconds(spec, strategy, engine, cards)
    slower = [
        replace(strategy, recompute=True),
        replace(strategy, row_tokens=strategy.row_tokens + 64),
        replace(strategy, rows=strategy.rows + 1),
        replace(strategy, accumulate=1),
        replace(strategy, flash=False),
    ]
    for other in slower:
        later = seconds(spec, other, engine, cards)
        for one, more in zip(vars(now).values(), vars(later).values(), strict=True):
            assert more >= one * (1 - 1e-9), other
