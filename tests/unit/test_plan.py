"""The planner's sum: counts, verdicts that are known from elsewhere, and what must hold of any plan."""

from __future__ import annotations

import csv
from dataclasses import replace
from importlib import resources
from typing import Any

import pytest
import yaml

from tengtune.models import known
from tengtune.models.spec import ModelSpec
from tengtune.plan import hardware, judge, memory, remedy, time
from tengtune.plan.judge import Plan
from tengtune.plan.profiles import OURS, PROFILES
from tengtune.plan.strategy import Strategy, exactly

FACTS = resources.files("tengtune.facts")
MODELS = list(csv.DictReader(FACTS.joinpath("models.csv").read_text("utf-8").splitlines()))


def qwen(name: str) -> ModelSpec:
    spec = known.spec(name)
    assert spec is not None
    return spec


def plan(model: str, cards: str, engine: str = "torch", host_gb: float | None = None, **asked: Any) -> Plan:
    found = hardware.find(cards)
    if host_gb is not None:
        found = replace(found, host_bytes=int(host_gb * 1e9))
    return judge.make(qwen(model), Strategy(cards=found.count or 1, **asked), engine, found)


@pytest.mark.parametrize("row", MODELS, ids=lambda row: row["name"])
def test_counts_are_exact(row: dict[str, str]) -> None:
    spec = qwen(row["name"])
    count = memory.counts(spec)
    assert count.total == spec.parameters() == int(row["params"])
    assert count.total - count.embeddings == int(row["params_non_embed"])


@pytest.mark.parametrize(
    ("name", "known_as"),
    [
        ("Qwen/Qwen-14B-Chat", "Qwen-14B"),
        ("qwen2.5-7b-instruct", "Qwen2.5-7B"),
        ("Qwen3-8B-Base", "Qwen3-8B"),
        ("Qwen14B", "Qwen-14B"),
        ("qwen_14b", "Qwen-14B"),
        ("qwen1.8b", "Qwen-1_8B"),
        ("Qwen2_5-7B-Instruct", "Qwen2.5-7B"),
    ],
)
def test_models_by_the_names_of_hubs(name: str, known_as: str) -> None:
    assert known.spec(name) == qwen(known_as)
    assert known.spec("Qwen/Qwen-15B") is None
    assert known.spec("Qwen2-57B") is None  # not Qwen2.5-7B without its point


@pytest.mark.parametrize(
    ("name", "known_as", "parameters"),
    [
        ("Qwen/Qwen2.5-Coder-7B-Instruct", "Qwen2.5-7B", 7_615_616_512),
        ("qwen2.5-coder-0.5b", "Qwen2.5-0.5B", 494_032_768),
        ("QwQ-32B", "Qwen2.5-32B", 32_763_876_352),
        ("QwQ-32B-Preview", "Qwen2.5-32B", 32_763_876_352),
        ("Qwen3-4B-Instruct-2507", "Qwen3-4B", 4_022_468_096),
        # 80 layers of 8192 with 8 of 64 heads for keys and values and 49152 wide; 152064 tokens twice.
        (
            "Qwen1.5-110B-Chat",
            "Qwen1.5-110B",
            80 * (2 * 8192 * (8192 + 1024 + 1) + 3 * 8192 * 49152 + 8192 + 2 * 1024)
            + 8192
            + 2 * 152064 * 8192,
        ),
    ],
)
def test_models_of_a_known_shape(name: str, known_as: str, parameters: int) -> None:
    spec = known.spec(name)
    assert spec == qwen(known_as)
    assert spec.parameters() == parameters


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *(
            (name, "moe")
            for name in ("Qwen3-30B-A3B", "Qwen/Qwen3-235B-A22B-Instruct-2507", "Qwen1.5-MoE-A2.7B")
        ),
        *(
            (name, "moe")
            for name in ("Qwen2-57B-A14B", "Qwen3-Coder-480B-A35B-Instruct", "Qwen3-Next-80B-A3B")
        ),
        *(
            (name, "media")
            for name in ("Qwen-VL-Chat", "Qwen2-VL-7B-Instruct", "Qwen2.5-VL-3B", "Qwen2-Audio-7B")
        ),
        *((name, "media") for name in ("Qwen2.5-Omni-7B", "QVQ-72B-Preview", "Qwen-Image")),
        *((name, "quantized") for name in ("Qwen-14B-Chat-Int4", "Qwen-7B-Chat-Int8", "Qwen3-8B-FP8")),
        *((name, "quantized") for name in ("Qwen2.5-7B-Instruct-AWQ", "Qwen2.5-7B-Instruct-GGUF", "a-w8a8")),
        *(
            (name, None)
            for name in ("Qwen-15B", "my-model-7b", "Qwen2.5-Math-7B", "Qwen3-Embedding-8B", "media7b")
        ),
        *((name, None) for name in (known.table())),
    ],
)
def test_what_a_name_says_is_not_trained(name: str, kind: str | None) -> None:
    assert known.unfit(name) == kind
    assert kind is None or known.spec(name) is None


def test_the_adapter_of_qwen1_shares_one_a() -> None:
    """c_attn 5120 -> 15360, c_proj 5120 -> 5120, w1 and w2 5120 -> 13696, c_proj 13696 -> 5120; 40 layers."""
    width = (5120 + 15360) + (5120 + 5120) + 2 * (5120 + 13696) + (13696 + 5120)
    wanted = ("c_attn", "c_proj", "w1", "w2")
    assert memory.adapter_parameters(qwen("Qwen-14B"), 8, wanted) == 8 * 40 * width


# Verdicts. 14.17B parameters are 28.3 GB in 16 bits and 227 GB of states in mixed precision.


@pytest.mark.parametrize(("cards", "least"), [(2, 127.5), (4, 77.9), (8, 53.1)])
def test_14b_full_with_zero_2_does_not_fit_32_gb(cards: int, least: float) -> None:
    made = plan("Qwen-14B", f"{cards}x910b4", "deepspeed", method="full", zero=2)
    assert made.card_verdict == "no"
    states = made.card.weights + made.card.gradients + made.card.optimizer
    assert states.low / 1e9 == pytest.approx(least, abs=0.1)  # 2P + 14P/N
    assert made.card.total.low > states.low


def test_14b_lora_in_16_bits_is_at_the_limit_of_32_gb() -> None:
    made = plan("Qwen-14B", "910b4")
    assert made.card_verdict in ("no", "tight")
    assert made.card.weights.expected > 28.3e9


@pytest.mark.parametrize(
    ("rank", "base", "below_20"),
    [(8, "int8", True), (16, "int8", True), (64, "int8", False), (64, "int8-all", True)],
)
def test_14b_lora_on_an_int8_base_and_20_gb(rank: int, base: str, below_20: bool) -> None:
    made = plan("Qwen-14B", "910b4", rank=rank, base=base)
    assert made.card_verdict == "fits"
    assert (made.card.total.expected < 20e9) == below_20
    assert made.lacking == (("int8_base",) if base == "int8" else ("int8_all",))


@pytest.mark.parametrize(("host_gb", "verdict"), [(512, "fits"), (256, "no"), (128, "no"), (None, "unknown")])
def test_14b_full_offloaded_needs_the_hosts_memory(host_gb: float | None, verdict: str) -> None:
    made = plan("Qwen-14B", "4x910b4", "deepspeed", host_gb, method="full", zero=3, offload="all")
    assert made.card_verdict == "fits"
    assert made.host.low / 1e9 == pytest.approx(255, abs=1)  # 18 bytes a parameter
    assert made.host.expected / 1e9 == pytest.approx(382.5, abs=1)  # and DeepSpeed's buffers
    assert made.host_verdict == verdict
    assert made.verdict == ("fits" if verdict == "unknown" else verdict)


@pytest.mark.parametrize(("engine", "zero"), [("deepspeed", 2), ("deepspeed", 3), ("mindspore", 0)])
def test_7b_full_fits_eight_cards_of_64_gb(engine: str, zero: int) -> None:
    assert plan("Qwen-7B", "8x910b3", engine, method="full", zero=zero).verdict == "fits"


def test_megatrons_states_are_divided_among_the_cards_that_share_layers() -> None:
    """18 bytes of 14.167e9 parameters on eight cards; of Llama2-7B on two times four (each group of the four
    has a quarter of the 6.476e9 in blocks, the first one the embedding too): MindSpeed-LLM's test of full
    tuning at these settings (tune_llama2_tp2_pp4_vpp2_mcore_full, short rows) states 15275 MiB."""
    eight = plan("Qwen-14B", "8x910b3", "mindspeed", method="full", tensor=8, zero=1)
    states = eight.card.weights + eight.card.gradients + eight.card.optimizer
    assert states.expected == pytest.approx(18 * 14.167e9 / 8, rel=1e-3)
    shape = {"hidden": 4096, "layers": 32, "heads": 32, "kv_heads": 32, "head_dim": 128, "ffn": 11008}
    llama = replace(qwen("Qwen2.5-7B"), **shape, vocab=32000, tie=False, qkv_bias=False)
    assert llama.parameters() == 6_738_415_616
    asked = Strategy(method="full", cards=8, tensor=2, pipeline=4, zero=1, recompute=False, row_tokens=128)
    card = memory.card_bytes(llama, asked, PROFILES["mindspeed"], exactly(0.0), 0.0)
    assert card.total.expected / 2**20 == pytest.approx(15275, rel=0.05)


@pytest.mark.parametrize(("parameters", "host_gb"), [(9.4e9, 252), (32.76e9, 744)])
def test_the_two_runs_that_were_killed_are_short(parameters: float, host_gb: float) -> None:
    """GLM4-9B and a 32B under ZeRO-3 with offload: the host's memory was full and the run killed."""
    qwen32 = plan("Qwen2.5-32B", "8x64g", "deepspeed", method="full", zero=3, offload="all")
    scaled = qwen32.host.expected * parameters / qwen("Qwen2.5-32B").parameters()
    assert scaled > host_gb * 1e9


def test_a_reported_out_of_memory_does_not_fit() -> None:
    assert plan("Qwen-72B", "910b4").card_verdict == "no"
    assert plan("Qwen-72B", "a100-80g", "hf-trainer").card_verdict == "no"


def test_masters_go_with_the_optimizer() -> None:
    """7.72B of 16 bits are 15.4 GB on the card; 4 + 4 + 8 bytes, and 2 on their way, are in the host."""
    made = plan("Qwen-7B", "910b4", method="full", offload="optimizer")
    assert made.card.weights.expected == 2 * 7_721_324_544
    assert made.host.low == 18 * 7_721_324_544
    assert made.host.expected == 1.5 * made.host.low


# Remedies.


def test_the_smallest_change_is_one_and_makes_it_fit() -> None:
    made = plan("Qwen-14B", "4x910b4", method="full", zero=3)
    assert made.card_verdict == "no"
    found = remedy.smallest(made)
    assert found is not None
    assert [str(change) for change in found.changes] == ["parallel.offload: optimizer"]
    assert found.plan.verdict == "fits"


def test_what_runs_today_lacks_nothing() -> None:
    made = plan("Qwen-14B", "4x910b4", method="full", zero=3)
    later, today = remedy.advice(made)
    assert later.plan.lacking == ("zero_3", "offload_optimizer")
    assert today.plan.lacking == ()
    assert today.plan.verdict == "fits"


def test_a_plan_that_fits_needs_no_advice() -> None:
    assert remedy.advice(plan("Qwen-7B", "8x32g")) == []


def test_offload_is_not_proposed_with_mindspore() -> None:
    """Its ranks share all states; another back end AND an offload that neither has are no small change."""
    found = remedy.smallest(plan("Qwen-14B", "4x910b4", method="full", zero=2))
    assert found is not None
    keys = {change.key for change in found.changes}
    assert not {"backend", "parallel.offload"} <= keys
    assert len(remedy.advice(plan("Qwen-14B", "2x910b4", method="full", zero=2))) == 1  # not the same twice


@pytest.mark.parametrize("engine", ["mindspeed", "mindformers"])
def test_programs_that_share_layers_get_no_sharing_of_deepspeeds(engine: str) -> None:
    for zero in (0, 1):
        found = remedy.smallest(plan("Qwen-7B", "8x910b3", engine, method="full", zero=zero, rows=8))
        assert found is None or found.plan.profile.name == engine


def test_nothing_is_proposed_where_nothing_helps() -> None:
    tiny = replace(hardware.find("910b4"), usable_bytes=10**9)
    made = judge.make(qwen("Qwen-72B"), Strategy(), "torch", tiny)
    assert remedy.smallest(made) is None


def test_what_nobody_measured_is_not_called_fit_near_the_limit() -> None:
    """77 GB of a nominal 80: who knows."""
    made = plan("Qwen-7B", "a100-80g", "ms-swift", method="full")
    assert made.hardware.usable_bytes is None
    assert made.card_verdict == "unknown"


# Attention on cards without a fused operator for it: the first generation.


def test_fused_attention_is_known_in_one_way() -> None:
    """What writes mindformers' yaml files and what plans agree."""
    cards = yaml.safe_load(FACTS.joinpath("mindformers.yaml").read_text("utf-8"))["hardware"]
    assert {name for name, each in cards.items() if not each["flash"]} == {"910a"}
    assert {
        text for text in ("910a", "910b4", "910c", "a100", "8x32g") if hardware.find(text).plain_attention
    } == {"910a"}


@pytest.mark.parametrize(
    ("engine", "score_bytes"),
    [
        ("torch", 0.0),  # tile by tile, and never as much as the rest of a layer's backward
        ("mindspore", 12.0 * 1.02),  # a layer's at a time; 1.02 of slack
    ],
)
def test_scores_of_plain_attention(engine: str, score_bytes: float) -> None:
    """Qwen-7B's 32 heads, rows of 8192: 2.1e9 scores a layer."""
    asked = {"row_tokens": 8192, "rank": 8}
    plain, fused = (
        plan("Qwen-7B", cards, engine, **asked).card.total.expected for cards in ("910a", "910b4")
    )
    assert plain - fused == pytest.approx(score_bytes * 32 * 8192**2, rel=1e-6, abs=1)


def test_other_programs_keep_the_scores() -> None:
    """5 bytes of each score in all 32 layers. (Korthikanti et al., arXiv 2205.05198)"""
    asked = {"row_tokens": 8192, "recompute": False}
    plain, fused = (
        plan("Qwen-7B", name, "mindformers", **asked).card.activations for name in ("910a", "910b4")
    )
    assert plain.expected - fused.expected >= 32 * 5 * 32 * 8192**2


def test_a_step_on_plain_attention_starts_its_tiles() -> None:
    """1024 tokens are 16 tiles: 16 x 0.16 ms x 32 layers x 2 passes beside the 70 ms of the rest."""
    spec, strategy = qwen("Qwen-7B"), Strategy(recompute=False)
    plain, fused = (
        time.launches_s(spec, strategy, judge.reckoned("torch", strategy, hardware.find(cards))).expected
        for cards in ("910a", "910b4")
    )
    assert plain - fused == pytest.approx(16 * 0.16e-3 * 32 * 2)


# Our back ends.


def test_profiles_share_as_the_capabilities_say() -> None:
    """A ZeRO level or offload that a back end learns must be reckoned as it does it."""
    table = yaml.load(FACTS.joinpath("capabilities.yaml").read_text("utf-8"), Loader=yaml.BaseLoader)
    for engine in OURS:
        has = {level for level in (1, 2, 3) if "yes" in table[f"zero_{level}"][engine].values()}
        assert set(PROFILES[engine].zero) - {0} == has
        offloads = "yes" in table["offload_optimizer"][engine].values()
        assert ("optimizer" in PROFILES[engine].offload) == offloads
