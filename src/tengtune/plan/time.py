"""How fast a training goes: FLOPs, bytes and bytes between cards, over what the hardware does a second. Pure
arithmetic, one formula a function.

Legend as in memory.py; s tokens of a row. A "pass" goes through all layers once: forward, the recomputing
forward, and backward, which has one pass of its own for what flows back and one for the weights' gradients.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tengtune.models.spec import ModelSpec
from tengtune.models.targets import adapted_linears, find_targets
from tengtune.plan import memory
from tengtune.plan.hardware import Hardware
from tengtune.plan.strategy import NOTHING, ONCE, Profile, Range, Strategy, exactly

Part = Literal["compute", "memory", "links", "host"]
PARTS: tuple[Part, ...] = ("compute", "memory", "links", "host")

MOST_PEERS = 7
"""Other cards that a card has a link of its own to, in a mesh of eight."""
HOST_BYTES_PER_S = Range(50e9, 100e9, 200e9)
"""What an optimizer on the host's cores reads and writes a second; an assumption, not measured."""
HOST_OPTIMIZER_BYTES = 30.0
"""A parameter's traffic in DeepSpeed's Adam on the host: gradient 2, masters and moments 12 read and 12
written, weight 2, and 2 for the cast."""
HOST_LINK_BYTES_PER_S = 25e9
"""Between card and host: PCIe 4.0 of 16 lanes has 31.5e9, four fifths of which are reached."""
TILE = 64
"""Queries that plain attention takes together. (backends/torch/attention.py)"""
LAUNCHES = Range(0.8, 1.0, 1.25)
"""How the host's time to start kernels varies with its cores; an assumption."""


@dataclass(frozen=True)
class Pace:
    """How fast a plan trains.

    tokens_per_s: tokens of rows, padding too, that ONE card gets through. parts: expected seconds of one
    micro step, each for itself, with a micro step's share of what happens once an optimizer step; a micro
    step takes max(compute + the tokens' memory, the host's launches) + the weights' memory + what of links is
    not hidden + offload. binds: the largest part. unknown: codes of texts that say what is left out.
    """

    tokens_per_s: Range
    parts: dict[str, float]
    binds: Part
    unknown: tuple[str, ...] = ()

    @property
    def without_links(self) -> bool:
        """Whether sending between cards is not in it, as nobody measured how long that takes."""
        return "plan.no_link_rate" in self.unknown


def pace(spec: ModelSpec, strategy: Strategy, profile: Profile, hardware: Hardware) -> Pace | None:
    """The pace of a plan; None where no peak is known: of a CPU, of unlisted cards, of float32."""
    peak, hbm = hardware.peak_flops, hardware.hbm_bytes_per_s
    if peak is None or hbm is None or strategy.width_bytes != 2:
        return None
    compute, launches = compute_s(spec, strategy, profile, peak), launches_s(spec, strategy, profile)
    by_tokens = memory_s(token_traffic_bytes(spec, strategy, profile), hbm)
    by_weights = memory_s(weight_traffic_bytes(spec, strategy, profile), hbm)
    offload = offload_s(spec, strategy, profile)
    between, unknown = links_s(spec, strategy, profile, hardware)
    links = exactly(between)
    own = _times((compute + by_tokens).largest(launches) + by_weights, slowed(strategy, profile))
    seconds = (own + _times(links, profile.speed.shown)) * bubble(strategy) + offload
    moved, host = by_tokens + by_weights, launches + offload
    each_s = (compute.expected, moved.expected, links.expected, host.expected)
    parts: dict[str, float] = dict(zip(PARTS, each_s, strict=True))
    tokens = strategy.tokens / (strategy.tensor * strategy.pipeline)
    return Pace(_per(tokens, seconds), parts, max(PARTS, key=lambda name: parts[name]), unknown)


def hours(pace: Pace, tokens: float, cards: int, epochs: float = 1.0) -> Range:
    """Hours that `cards` cards take for `epochs` times `tokens` tokens of rows."""
    return _per(tokens * epochs / (3600.0 * cards), pace.tokens_per_s)


def forward_flops(spec: ModelSpec, row_tokens: float) -> float:
    """A token's forward: 2 x (linear parameters + V h), and causal attention, 2 q s a layer. (Kaplan et al.,
    arXiv 2001.08361, with attention's real width and half the scores)"""
    return spec.flops_per_token(row_tokens / 2) + spec.head_flops()


def forwards(strategy: Strategy, profile: Profile) -> int:
    """A token's FLOPs in forwards: forward 1, what flows back 1, full tuning's gradients of weights 1,
    recompute 1. (Korthikanti et al., arXiv 2205.05198)"""
    recompute = strategy.recompute or profile.always_recomputes
    return (2 if strategy.method == "lora" else 3) + recompute


def token_flops(spec: ModelSpec, strategy: Strategy, profile: Profile) -> float:
    """What the card computes for a token: the forward x its number; a head trained beside LoRA one more of
    its products."""
    head = spec.head_flops() if strategy.method == "lora" and strategy.train_embeddings else 0.0
    return forward_flops(spec, strategy.row_tokens) * forwards(strategy, profile) + head


def compute_s(spec: ModelSpec, strategy: Strategy, profile: Profile, peak_flops: Range) -> Range:
    """A micro step's products: tokens x FLOPs of a token over the share of the peak that is reached; of the
    card's part of the model."""
    flops = strategy.tokens * token_flops(spec, strategy, profile) / (strategy.tensor * strategy.pipeline)
    return _per(flops, _times(peak_flops, profile.speed.share))


def launches_s(spec: ModelSpec, strategy: Strategy, profile: Profile) -> Range:
    """The host's time to start a micro step's kernels: figures of the program a layer and pass, and a tile of
    attention where it goes by tiles; the card computes meanwhile."""
    pass_s = profile.speed.full_pass_s if strategy.method == "full" else profile.speed.pass_s
    pass_s += profile.speed.tile_s * strategy.tokens / TILE
    return LAUNCHES * (pass_s * spec.layers / strategy.pipeline * forwards(strategy, profile))


def slowed(strategy: Strategy, profile: Profile) -> Range:
    """What a card's own work is multiplied by: the program's figure for LoRA under ZeRO-2 or 3, else 1."""
    parted = strategy.method == "lora" and strategy.zero >= 2 and strategy.cards > 1
    return profile.speed.lora_zero if parted else ONCE


def layer_traffic_bytes(spec: ModelSpec, strategy: Strategy, profile: Profile) -> float:
    """What element-wise operations of a micro step move in a pass through one layer: what the layer keeps, so
    many times; LoRA's own of each adapted linear, so many bytes a unit of its input and output."""
    speed = profile.speed
    moved = speed.touches * memory.layer_bytes(spec, strategy, profile)
    if strategy.method == "lora":
        sizes = adapted_linears(spec)
        adapted = [sizes[name] for name in find_targets(spec, strategy.targets)]
        inner, out = (sum(each[place] for each in adapted) for place in (0, 1))
        moved += strategy.tokens * (speed.adapter_in * inner + speed.adapter_out * out) / strategy.tensor
    return moved


def token_traffic_bytes(spec: ModelSpec, strategy: Strategy, profile: Profile) -> float:
    """What a micro step's tokens move in the card's memory beside products of matrices: element-wise
    operations of all passes and layers; logits, written and read once."""
    passes = forwards(strategy, profile)
    moved = passes * spec.layers * layer_traffic_bytes(spec, strategy, profile)
    moved += 2 * profile.logit_bytes.expected * strategy.tokens * spec.vocab / strategy.tensor
    return moved / strategy.pipeline


def weight_traffic_bytes(spec: ModelSpec, strategy: Strategy, profile: Profile) -> float:
    """What moves however many tokens there are: a quantized base unpacked in each pass, trained weights of
    float32 cast in each that uses them; new gradients added to the sum (three times their bytes); the
    optimizer's step, which reads gradients and reads and writes weights and states, a micro step's share."""
    trained, moved = memory.state_bytes(spec, strategy, profile), 0.0
    passes, linear = forwards(strategy, profile), memory.counts(spec).linear
    if strategy.base != "compute" and strategy.method == "lora":
        moved += passes * profile.speed.unpack_bytes * linear
    if strategy.method == "full" and profile.full.weights > strategy.width_bytes:
        moved += (passes - 1) * (profile.full.weights + strategy.width_bytes) * linear
    moved += 3 * trained.gradients.expected
    if strategy.offload == "none":
        step = 2 * trained.weights + trained.gradients.expected + 2 * trained.optimizer
        moved += step * memory.share(strategy, profile, 1) / strategy.accumulate
    return moved * memory.stage(spec, strategy)


def memory_s(moved_bytes: float, hbm_bytes_per_s: float) -> Range:
    """Bytes over the memory's bandwidth, of which element-wise kernels reach some 80%: exp moves 1.77 of
    A800's 2.04 TB/s and 1.28 of 910B's 1.6. (limulidae's README)"""
    return _per(moved_bytes, Range(0.7, 0.8, 0.9) * hbm_bytes_per_s)


def link_bytes(spec: ModelSpec, strategy: Strategy, profile: Profile) -> float:
    """What a card sends in a micro step, with its share of an optimizer step's: for n bytes n (N-1)/N to
    gather or to scatter sums, twice that to sum everywhere. (Rajbhandari et al., arXiv 1910.02054)

    Replicas and ZeRO-1: gradients everywhere, once an optimizer step. ZeRO-2: gradients scattered in every
    micro step (DeepSpeed does not wait), weights gathered once an optimizer step. ZeRO-3: all weights
    gathered twice and gradients scattered in every micro step. mindspore: the same of blocks; embedding and
    head, their gradients too, once an optimizer step. (backends/mindspore/step.py, parallel.py)
    """
    if strategy.replicas == 1:
        return 0.0
    ring, often = (strategy.replicas - 1) / strategy.replicas, 1.0 / strategy.accumulate
    ring *= memory.stage(spec, strategy)
    count, trained = memory.counts(spec), memory.trained_parameters(spec, strategy)
    full = strategy.method == "full"
    if profile.shards:
        width = 4.0 if full else float(strategy.width_bytes)
        outer = memory.counts(spec).embeddings
        changed = outer if full else memory.trained_embeddings(spec, strategy)
        blocks = 2 * width * (count.total - outer) + 4.0 * (trained - changed)
        return ring * (blocks + often * (width * outer + 4.0 * changed))
    size = profile.speed.sent_bytes
    if strategy.zero == 3:
        frozen = 0.0 if full else memory.frozen_bytes(spec, strategy, profile)
        return ring * (2 * (frozen + 2.0 * trained) + size * trained)
    if strategy.zero == 2:
        return ring * (size * trained + often * 2.0 * trained)
    return ring * often * 2 * size * trained


def tensor_bytes(spec: ModelSpec, strategy: Strategy, profile: Profile) -> float:
    """What a card sends in a micro step to those that share its layers: twice a layer, forward, backward and
    recomputing, the sum of w t h bytes everywhere. (Shoeybi et al., arXiv 1909.08053)"""
    recompute = strategy.recompute or profile.always_recomputes
    ring = (strategy.tensor - 1) / strategy.tensor
    hidden = strategy.width_bytes * strategy.tokens * spec.hidden
    return 2 * (2 + recompute) * spec.layers / strategy.pipeline * 2 * ring * hidden


def bubble(strategy: Strategy) -> float:
    """How much longer a step takes because groups of a pipeline wait at its start and end: 1 + (groups - 1) /
    micro batches. (Narayanan et al., arXiv 2104.04473)"""
    return 1.0 + (strategy.pipeline - 1) / strategy.accumulate


def rate_inside(hardware: Hardware, cards: int) -> float | None:
    """Bytes that a card sends a second to the others of so many of its machine; None where nobody measured.
    In a mesh each other card has a link of its own."""
    rate = hardware.link_bytes_per_s
    return rate * min(cards - 1, MOST_PEERS) if rate is not None and hardware.mesh else rate


def link_rate(strategy: Strategy, hardware: Hardware) -> float | None:
    """Bytes that a card sends a second to all cards of the training; None where nobody measured. Between
    machines the network is the narrowest place."""
    cards, between = strategy.cards // strategy.nodes, hardware.node_bytes_per_s
    inside = rate_inside(hardware, cards)
    if strategy.nodes == 1 or between is None:
        return inside if strategy.nodes == 1 else None
    return between if cards == 1 or inside is None else min(between, inside)


def links_s(
    spec: ModelSpec, strategy: Strategy, profile: Profile, hardware: Hardware
) -> tuple[float, tuple[str, ...]]:
    """A micro step's bytes between cards over what their links send a second, and whether that is unknown."""
    seconds = 0.0
    for sent, rate in (
        (link_bytes(spec, strategy, profile), link_rate(strategy, hardware)),
        (tensor_bytes(spec, strategy, profile), rate_inside(hardware, strategy.tensor)),
    ):
        if sent and rate is None:
            return 0.0, ("plan.no_link_rate",)
        seconds += sent / rate if sent and rate else 0.0
    return seconds, ()


def offload_s(spec: ModelSpec, strategy: Strategy, profile: Profile) -> Range:
    """The optimizer on the host: its traffic over the host's memory bandwidth, all cards of a machine
    together; gradients there and weights back over each card's link to the host. all: each card's part of the
    weights comes over that link for each gathering. A micro step's share. (DeepSpeed's DeepSpeedCPUAdam)"""
    if strategy.offload == "none":
        return NOTHING
    trained, often = memory.trained_parameters(spec, strategy), 1.0 / strategy.accumulate
    update = _per(often * HOST_OPTIMIZER_BYTES * trained / strategy.nodes, HOST_BYTES_PER_S)
    crossing = (2.0 + 2.0 * often) * trained / strategy.cards
    if strategy.offload == "all":
        crossing += 2 * 2.0 * memory.counts(spec).total / strategy.cards
    return update + exactly(crossing / HOST_LINK_BYTES_PER_S)


def _per(amount: float, rate: Range) -> Range:
    """An amount over a rate: the low figure at the high rate."""
    return Range(amount / rate.high, amount / rate.expected, amount / rate.low)


def _times(one: Range, other: Range) -> Range:
    """The product, bound by bound."""
    return Range(one.low * other.low, one.expected * other.expected, one.high * other.high)
