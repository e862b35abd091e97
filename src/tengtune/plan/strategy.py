"""What a plan is about: the training that is asked for, and what a training program keeps in memory for
it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Method = Literal["lora", "full"]
Base = Literal["compute", "int8", "int8-all", "int4"]
Offload = Literal["none", "optimizer", "all"]


@dataclass(frozen=True)
class Range:
    """A figure with its uncertainty, low <= expected <= high."""

    low: float
    expected: float
    high: float

    @property
    def bounds(self) -> tuple[float, float, float]:
        """Low, expected, high."""
        return self.low, self.expected, self.high

    def rounded(self) -> dict[str, int]:
        """In whole numbers, for JSON."""
        return {"low": round(self.low), "expected": round(self.expected), "high": round(self.high)}

    def __add__(self, other: Range) -> Range:
        return Range(self.low + other.low, self.expected + other.expected, self.high + other.high)

    def __mul__(self, factor: float) -> Range:
        return Range(self.low * factor, self.expected * factor, self.high * factor)

    def largest(self, other: Range) -> Range:
        """The larger of two, bound by bound."""
        return Range(max(self.low, other.low), max(self.expected, other.expected), max(self.high, other.high))

    def least(self, other: Range) -> Range:
        """The smaller of two, bound by bound."""
        return Range(min(self.low, other.low), min(self.expected, other.expected), min(self.high, other.high))

    def above(self, other: Range) -> Range:
        """What `largest` of the two has more than `other`, bound by bound; a term of a sum, no figure."""
        most = self.largest(other)
        return Range(most.low - other.low, most.expected - other.expected, most.high - other.high)


def exactly(value: float) -> Range:
    """A figure without uncertainty."""
    return Range(value, value, value)


NOTHING, ONCE = exactly(0.0), exactly(1.0)


@dataclass(frozen=True)
class Strategy:
    """The training: what of a run file decides memory.

    cards: ranks in all, one a card. row_tokens: tokens of a row; rows: rows of a micro batch. zero: what is
    kept 1/N: 1 optimizer, 2 gradients too, 3 weights too. base: what the frozen weights of LoRA are kept
    in; int8-all has embedding and head in int8 as well. width_bytes: of a number of the compute type.
    offload: what lies in the host's memory; all: weights, gradients and optimizer. flash: attention keeps
    no scores. accumulate: micro batches of an optimizer step. tensor: cards that share each layer, and its
    rows between; pipeline: groups of these, each with some of the layers. mapped: LoRA's base
    stays in the model's files.
    """

    method: Method = "lora"
    cards: int = 1
    nodes: int = 1
    rows: int = 1
    row_tokens: int = 1024
    zero: int = 0
    offload: Offload = "none"
    recompute: bool = True
    rank: int = 8
    targets: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    base: Base = "compute"
    train_embeddings: bool = False
    width_bytes: int = 2
    flash: bool = True
    checkpoints: int = 2
    accumulate: int = 1
    tensor: int = 1
    pipeline: int = 1
    mapped: bool = False

    @property
    def replicas(self) -> int:
        """Groups of cards that have the whole model each; `zero` cuts over these."""
        return self.cards // (self.tensor * self.pipeline)

    @property
    def tokens(self) -> int:
        """Tokens of a micro batch."""
        return self.rows * self.row_tokens


@dataclass(frozen=True)
class States:
    """Bytes a trained parameter takes, or all of them: weights, gradients, optimizer (with masters), and
    more at the step."""

    weights: float
    gradients: Range
    optimizer: float
    step: float = 0.0


@dataclass(frozen=True)
class Kept:
    """Bytes of one layer's activations per token: so many per unit of hidden, query, key-value, ffn width."""

    hidden: float
    query: float
    key_value: float
    ffn: float


@dataclass(frozen=True)
class Speed:
    """How a training program uses a card's time.

    share: of the peak, in its products of matrices. pass_s: seconds of the host to start the kernels of one
    layer in one pass; full_pass_s: the same of full tuning. touches: how often element-wise operations of a
    pass read or write what a layer keeps. adapter_in, adapter_out: bytes that LoRA's operations move a pass,
    per unit of an adapted linear's input and output. unpack_bytes: moved to unpack a quantized weight in a
    pass. sent_bytes: of a gradient between cards. shown: of the time between cards, what computing does not
    hide. lora_zero: what a card's own work is multiplied by where LoRA trains under ZeRO-2 or 3. tile_s:
    of the host, to start attention's kernels of one tile of 64 tokens in one layer and pass, where attention
    goes by tiles.
    """

    share: Range
    pass_s: float
    full_pass_s: float
    touches: float
    adapter_in: float = 0.0
    adapter_out: float = 0.0
    unpack_bytes: float = 0.0
    sent_bytes: float = 2.0
    shown: Range = Range(0.0, 0.5, 1.0)
    lora_zero: Range = ONCE
    tile_s: float = 0.0


@dataclass(frozen=True)
class Profile:
    """A training program, as far as memory and time go; each figure has its source in profiles.py.

    full, adapter, embeddings: what a trained parameter takes, of the model, of LoRA, of an embedding or head
    beside LoRA. quantized_embedding_bytes: of embedding and head beside an int8 or int4 base. kept: what a
    layer leaves for its backward; working: what a backward makes beside it, None: a share of it;
    score_bytes: of a score of attention. logit_bytes: of a logit at the loss; logits: most of 16 bits that
    exist at a time, None: all; spare_logits: bytes that the allocator keeps of earlier ones, at most.
    head_bytes: a trained embedding's or head's further copies, per parameter of one of them; largest_bytes:
    the same at the optimizer's step. gradients_grow: they come one by one. keeps_logits: their memory serves
    nothing else. held_checkpoint: up to so many bytes a checkpoint is copied in the same memory. gathers: how
    whole tensors are brought together of parts. shards: every rank keeps 1/N of all, whatever `zero` is.
    context: outside the allocator, None: the card's own figure. offload_factor: the host's memory per byte
    that is moved there. checkpoint_bytes: on the disk per trained parameter. maps_weights: loading copies
    nothing. splits: cards may share each layer.
    """

    name: str
    speed: Speed
    full: States
    adapter: States
    embeddings: States
    quantized_embedding_bytes: float
    kept: Kept
    logit_bytes: Range
    fragmentation: Range
    working: Kept | None = None
    score_bytes: float = 0.0
    gradients_grow: bool = False
    keeps_logits: bool = False
    held_checkpoint: float = 0.0
    logits: int | None = None
    spare_logits: Range = NOTHING
    head_bytes: float = 0.0
    largest_bytes: float = 0.0
    gathers: Literal["none", "deepspeed", "mindspore"] = "none"
    shards: bool = False
    always_recomputes: bool = False
    zero: tuple[int, ...] = (0,)
    offload: tuple[Offload, ...] = ("none",)
    context: Range | None = None
    offload_factor: Range = ONCE
    checkpoint_bytes: float = 12.0
    maps_weights: bool = False
    splits: bool = False
