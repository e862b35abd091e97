"""The sum: what one card must hold. Pure arithmetic, one formula a function.

Legend: P parameters, T trained ones, N cards, h hidden, f feed-forward width, q and kv widths of queries and
keys, L layers, V vocabulary, t tokens of a micro batch, w bytes of a number of the compute type.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from typing import Literal

from tengtune.models.spec import ModelSpec
from tengtune.models.targets import adapted_linears, find_targets
from tengtune.plan.strategy import NOTHING, Kept, Profile, Range, States, Strategy, exactly

INT8_BYTES = 1.0
INT4_BYTES = 0.52
"""A linear's weight in int4 with the scales of its groups (GPTQ and nf4 checkpoints)."""
BACKWARD = 1.3
"""A layer's backward: what it keeps, and the gradients that are made of it; fitted to published peaks."""
LIVE_PARAMETERS = 1e9
"""DeepSpeed's stage3_max_live_parameters, and the bound of its fp32 working copies at the step."""
BUCKET_BYTES = 1e9
"""DeepSpeed's reduce_bucket_size of 5e8 numbers of 16 bits, or two of 2e8; however little is trained."""
FLOAT_BYTES = 4
LABEL_ROWS = 3
"""Hidden states of labels where the loss is computed at labels only: before and after the last norm,
and their gradient."""


@dataclass(frozen=True)
class Counts:
    """Parameters by what becomes of them: linears of all blocks, of one block; one embedding, all of them."""

    total: int
    linear: int
    block: int
    embedding: int
    embeddings: int


@functools.lru_cache(maxsize=64)
def counts(spec: ModelSpec) -> Counts:
    """Exact counts; a tied head counts once."""
    embedding = spec.vocab * spec.hidden
    block = sum(math.prod(shape) for shape in spec.block_tensors().values())
    linear = spec.layers * sum(out * inner for out, inner in spec.linears().values())
    return Counts(spec.parameters(), linear, block, embedding, embedding * (1 if spec.tie else 2))


@functools.lru_cache(maxsize=256)
def adapter_parameters(spec: ModelSpec, rank: int, targets: tuple[str, ...]) -> int:
    """LoRA's: rank x (in + out) of each target, in every layer; Qwen1's q, k and v have one A, as PEFT's
    adapter of c_attn. (Hu et al., arXiv 2106.09685)"""
    sizes = adapted_linears(spec)
    return spec.layers * rank * sum(sum(sizes[name]) for name in find_targets(spec, targets))


def trained_parameters(spec: ModelSpec, strategy: Strategy) -> int:
    """T: all, or LoRA's, with embedding and head where they are trained as well."""
    if strategy.method == "full":
        return counts(spec).total
    return adapter_parameters(spec, strategy.rank, strategy.targets) + trained_embeddings(spec, strategy)


def trained_embeddings(spec: ModelSpec, strategy: Strategy) -> int:
    """The parameters of embedding and head, where LoRA trains them as well."""
    return counts(spec).embeddings if strategy.method == "lora" and strategy.train_embeddings else 0


def trains_head(strategy: Strategy) -> bool:
    """Whether embedding and head, the largest tensors, are trained."""
    return strategy.method == "full" or strategy.train_embeddings


def state_bytes(spec: ModelSpec, strategy: Strategy, profile: Profile) -> States:
    """Weights, gradients, optimizer and the step's copies of all trained parameters, before any sharing: T
    times what each takes, embedding and head beside LoRA by figures of their own."""
    embeddings = trained_embeddings(spec, strategy)
    count = trained_parameters(spec, strategy) - embeddings
    each, outer = profile.full if strategy.method == "full" else profile.adapter, profile.embeddings
    return States(
        count * each.weights + embeddings * outer.weights,
        each.gradients * count + outer.gradients * embeddings,
        count * each.optimizer + embeddings * outer.optimizer,
        count * each.step + embeddings * outer.step,
    )


def share(strategy: Strategy, profile: Profile, level: int) -> float:
    """1/N where the states of this ZeRO level are cut over the cards, else 1. (Rajbhandari et al., arXiv
    1910.02054)"""
    return 1.0 / strategy.replicas if profile.shards or strategy.zero >= level else 1.0


def stage(spec: ModelSpec, strategy: Strategy) -> float:
    """The share of the parameters that the first group of a pipeline has, over its cards: blocks / groups and
    one embedding, with the head where it is the only group. (Narayanan et al., arXiv 2104.04473)"""
    count = counts(spec)
    blocks = count.total - count.embeddings
    outer = count.embeddings if strategy.pipeline == 1 else count.embedding
    return (blocks / strategy.pipeline + outer) / count.total / strategy.tensor


def frozen_bytes(spec: ModelSpec, strategy: Strategy, profile: Profile) -> float:
    """LoRA's base: linears at w, 1 or 0.52 bytes, norms and biases at w, embedding and head at w, with
    int8-all at 1, and where a quantized base has them widened, at the program's figure."""
    count, width = counts(spec), strategy.width_bytes
    linear = {"compute": width, "int8": INT8_BYTES, "int8-all": INT8_BYTES, "int4": INT4_BYTES}[strategy.base]
    quantized = strategy.base != "compute"
    outer = profile.quantized_embedding_bytes if quantized else width
    if strategy.base == "int8-all":
        outer = INT8_BYTES
    embeddings = 0 if strategy.train_embeddings else count.embeddings
    rest = count.total - count.linear - count.embeddings
    return count.linear * linear + embeddings * outer + rest * width


def weights_bytes(spec: ModelSpec, strategy: Strategy, profile: Profile) -> Range:
    """Frozen and trained weights; 1/N with ZeRO-3; none where they lie in the host's memory or its files."""
    if strategy.offload == "all":
        return NOTHING
    trained = state_bytes(spec, strategy, profile).weights
    frozen = 0.0
    if strategy.method == "lora" and not strategy.mapped:
        frozen = frozen_bytes(spec, strategy, profile)
    return exactly((trained + frozen) * share(strategy, profile, 3) * stage(spec, strategy))


def gradients_bytes(spec: ModelSpec, strategy: Strategy, profile: Profile) -> Range:
    """T x the bytes of a gradient; 1/N from ZeRO-2 on; with offload they go to the host as they come."""
    if strategy.offload != "none":
        return NOTHING
    part = share(strategy, profile, 2) * stage(spec, strategy)
    return state_bytes(spec, strategy, profile).gradients * part


def optimizer_bytes(spec: ModelSpec, strategy: Strategy, profile: Profile) -> Range:
    """T x masters and moments; 1/N from ZeRO-1 on; none here with offload."""
    if strategy.offload != "none":
        return NOTHING
    part = share(strategy, profile, 1) * stage(spec, strategy)
    return exactly(state_bytes(spec, strategy, profile).optimizer * part)


def widths(spec: ModelSpec, each: Kept) -> float:
    """a h + b q + c kv + d f."""
    found = each.hidden * spec.hidden + each.query * spec.q_width
    return found + each.key_value * spec.kv_width + each.ffn * spec.ffn


def layer_bytes(spec: ModelSpec, strategy: Strategy, profile: Profile) -> float:
    """What one layer leaves for its backward: t x (a h + b q + c kv + d f), at w / 2 of what 16 bits take;
    without flash attention 5 bytes a score and head more; all of it over the cards that share the layer.
    (Korthikanti et al., arXiv 2205.05198)"""
    scores = 0.0 if strategy.flash else 5.0 * spec.heads * strategy.row_tokens
    return (
        strategy.tokens * (widths(spec, profile.kept) * strategy.width_bytes / 2 + scores) / strategy.tensor
    )


def working_bytes(spec: ModelSpec, strategy: Strategy, profile: Profile) -> float:
    """What a layer's backward makes beside all that layers keep: gradients of activations, as counted or a
    share of what it keeps; its scores, where a program makes them; with recompute what it keeps, too."""
    kept = layer_bytes(spec, strategy, profile)
    if profile.working is None:
        made = (BACKWARD - 1) * kept
    else:
        made = strategy.tokens * widths(spec, profile.working) * strategy.width_bytes / 2 / strategy.tensor
    made += profile.score_bytes * spec.heads * strategy.tokens * strategy.row_tokens
    return made + kept if strategy.recompute or profile.always_recomputes else made


def widened(strategy: Strategy, profile: Profile) -> bool:
    """Whether all that is not quantized is float32 beside a quantized base, the layers' inputs too. (PEFT's
    prepare_model_for_kbit_training, which leaves GPTQ's alone)"""
    quantized = strategy.method == "lora" and strategy.base != "compute"
    return quantized and profile.quantized_embedding_bytes == FLOAT_BYTES


def checkpoint_bytes(spec: ModelSpec, strategy: Strategy, profile: Profile) -> float:
    """What all layers keep until the backward: with recompute w t h L, their inputs; else all of it. (Chen
    et al., arXiv 1604.06174) In a pipeline as well: its first group has as many micro batches under way as
    there are groups."""
    if strategy.recompute or profile.always_recomputes:
        width = FLOAT_BYTES if widened(strategy, profile) else strategy.width_bytes
        return width * strategy.tokens * spec.hidden * spec.layers / strategy.tensor
    return spec.layers * layer_bytes(spec, strategy, profile)


def logits_bytes(spec: ModelSpec, strategy: Strategy, profile: Profile) -> Range:
    """At the loss: k bytes a logit x t V, or x the most logits of 16 bits that exist at a time; as much
    again, up to the program's bound, that its allocator keeps; a trained head's new gradient and its copy in
    the compute type, a widened one's copy in 16 bits. None on a pipeline's first group, the fullest."""
    if strategy.pipeline > 1:
        return NOTHING
    count = strategy.tokens * spec.vocab / strategy.tensor
    if profile.logits is not None:
        count = min(count * strategy.width_bytes / 2, profile.logits)
    copies = 0.0
    if trains_head(strategy) and profile.head_bytes:
        cast = strategy.width_bytes if strategy.width_bytes < FLOAT_BYTES else 0
        copies = (profile.head_bytes + cast) * counts(spec).embedding
    if widened(strategy, profile):
        copies += 2.0 * counts(spec).embedding
    logits = profile.logit_bytes * count
    return logits + logits.least(profile.spare_logits) + exactly(copies)


def gathered_bytes(spec: ModelSpec, strategy: Strategy, profile: Profile) -> Range:
    """Whole tensors and buckets beside each card's parts; none on one card that keeps all.

    deepspeed: ZeRO-2 a bucket, offload alone one that is no larger than the gradients; ZeRO-3 parameters in
    use (at most 1e9 of 2 bytes), buckets and one embedding.
    mindspore: embedding and head with their gradients, whole, a block with its gradient twice. (deepspeed's
    documentation of stage3_max_live_parameters and reduce_bucket_size; backends/mindspore/parallel.py)
    """
    count = counts(spec)
    if profile.gathers == "deepspeed" and strategy.zero < 2 and strategy.offload != "none":
        sent = state_bytes(spec, strategy, profile).gradients * stage(spec, strategy)
        return sent.least(exactly(BUCKET_BYTES))
    if profile.gathers == "deepspeed" and strategy.zero >= 2:
        if strategy.zero < 3:
            return exactly(BUCKET_BYTES)
        live = 2.0 * min(LIVE_PARAMETERS, count.total) + 2.0 * count.embedding
        return Range(BUCKET_BYTES, live + BUCKET_BYTES, live + BUCKET_BYTES)
    if profile.gathers == "mindspore" and strategy.cards > 1:
        if strategy.method == "lora":
            outer = count.embeddings * (4.0 if strategy.train_embeddings else strategy.width_bytes)
            gradients = 4.0 * count.embeddings if strategy.train_embeddings else 0.0
            return exactly(outer + gradients + strategy.width_bytes * count.block)
        one = 4.0 * count.embedding  # an addition makes a new gradient before the old one goes
        return Range(
            8.0 * count.embeddings, 8.0 * count.embeddings + one, 8.0 * count.embeddings + one
        ) + exactly(12.0 * count.block)
    return NOTHING


def step_bytes(spec: ModelSpec, strategy: Strategy, profile: Profile) -> float:
    """What the optimizer's step takes besides: copies of what it updates; DeepSpeed's full tuning four
    working copies in float32 of at most 1e9 parameters at half their size."""
    if strategy.offload != "none":
        return 0.0
    part = share(strategy, profile, 1) * stage(spec, strategy)
    if profile.gathers == "deepspeed" and strategy.method == "full" and strategy.zero:
        return 4 * 2.0 * min(LIVE_PARAMETERS, counts(spec).total * part)
    working = profile.largest_bytes * counts(spec).embedding if trains_head(strategy) else 0.0
    return state_bytes(spec, strategy, profile).step * part + working


Point = Literal["loss", "loss_first", "backward", "backward_first", "summed", "step"]
"""Where in a step a moment is; first: of its only micro batch, before any gradient."""


@dataclass(frozen=True)
class Moment:
    """What exists beside weights and optimizer at one point of a step."""

    point: Point
    gradients: Range
    activations: Range = NOTHING
    logits: Range = NOTHING
    buffers: Range = NOTHING
    step: Range = NOTHING

    @property
    def total(self) -> Range:
        return self.gradients + self.activations + self.logits + self.buffers + self.step

    def not_below(self, low: float) -> Moment:
        """The moment with low figures that are nearer to the expected ones, by as much as makes their sum
        `low`: another moment takes so much at least."""
        total = self.total
        if low <= total.low:
            return self
        nearer = (low - total.low) / (total.expected - total.low)
        terms = (self.gradients, self.activations, self.logits, self.buffers, self.step)
        raised = (replace(each, low=each.low + nearer * (each.expected - each.low)) for each in terms)
        return Moment(self.point, *raised)


def moments(spec: ModelSpec, strategy: Strategy, profile: Profile) -> list[Moment]:
    """Where a step may be largest: at the loss, in the first layer's backward, where the last gradient, the
    embedding's, is made, and where the optimizer works or ranks sum.

    Where gradients come one by one, a step's first micro batch has none yet while all activations are there.
    A tied head's gradient waits for the embedding's and is added to it.
    """
    gradients = gradients_bytes(spec, strategy, profile)
    kept = exactly(checkpoint_bytes(spec, strategy, profile))
    layer = kept + exactly(working_bytes(spec, strategy, profile))
    beside = gathered_bytes(spec, strategy, profile) + copy_bytes(spec, strategy, profile)
    first, waiting, new = gradients, 0.0, 0.0
    at_loss: Point = "loss"
    in_backward: Point = "backward"
    if profile.gradients_grow:
        again = strategy.accumulate > 1
        if not again:
            at_loss, in_backward = "loss_first", "backward_first"
        embedding = FLOAT_BYTES * counts(spec).embedding if trains_head(strategy) else 0.0
        linears = (
            [out * inner for out, inner in spec.linears().values()] if strategy.method == "full" else [0]
        )
        first = gradients if again else NOTHING
        waiting = embedding * (spec.tie or not again) + FLOAT_BYTES * max(linears) * again
        new = embedding * (spec.tie + again)
    labels = 0.0 if profile.logits is None else LABEL_ROWS * strategy.width_bytes
    rows = exactly(labels * strategy.tokens * spec.hidden)
    logits = logits_bytes(spec, strategy, profile)
    spare = logits if profile.keeps_logits else NOTHING
    return [
        Moment(at_loss, first, kept + rows, logits, beside),
        Moment(in_backward, first + exactly(waiting), layer, spare, beside),
        Moment("summed", gradients + exactly(new), NOTHING, NOTHING, beside),
        Moment("step", gradients, step=exactly(step_bytes(spec, strategy, profile))),
    ]


def copy_bytes(spec: ModelSpec, strategy: Strategy, profile: Profile) -> Range:
    """A checkpoint's copy that is written beside the training, where it lies in the same memory: it may be
    gone at the peak."""
    size = profile.checkpoint_bytes * trained_parameters(spec, strategy)
    return Range(0.0, size, size) if size <= profile.held_checkpoint else NOTHING


@dataclass(frozen=True)
class Card:
    """What one card must hold, term by term, at the largest moment of a step; `total` is their sum."""

    point: Point
    weights: Range
    gradients: Range
    optimizer: Range
    activations: Range
    logits: Range
    buffers: Range
    step: Range
    context: Range
    fragmentation: Range

    @property
    def terms(self) -> dict[str, Range]:
        """By name, in the order of the sum."""
        return {name: each for name, each in self.__dict__.items() if isinstance(each, Range)}

    @property
    def total(self) -> Range:
        return functools.reduce(Range.__add__, self.terms.values())


def card_bytes(
    spec: ModelSpec, strategy: Strategy, profile: Profile, context: Range, link_bytes: float
) -> Card:
    """A card's peak: states, and the largest moment of a step; slack on all that; context and link buffers.

    context: what lies outside the allocator on this card; link_bytes: a communicator's buffers.
    """
    weights = weights_bytes(spec, strategy, profile)
    optimizer = optimizer_bytes(spec, strategy, profile)
    each = moments(spec, strategy, profile)
    most = max(each, key=lambda moment: moment.total.expected)
    most = most.not_below(max(moment.total.low for moment in each))
    rest = max(moment.total.high for moment in each) - most.total.high
    tensors = weights + optimizer + most.total
    slack = profile.fragmentation
    return Card(
        most.point,
        weights,
        most.gradients,
        optimizer,
        activations=most.activations + Range(0.0, 0.0, rest),
        logits=most.logits,
        buffers=most.buffers + exactly(link_bytes if strategy.cards > 1 else 0.0),
        step=most.step,
        context=profile.context or context,
        fragmentation=Range(
            tensors.low * (slack.low - 1),
            tensors.expected * (slack.expected - 1),
            (tensors.high + rest) * (slack.high - 1),
        ),
    )
