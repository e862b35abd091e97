"""What a back end is: the contract both fulfil. Nothing here imports a framework.

A back end is a package `tengtune.backends.<name>` whose `step.py` holds
`build(spec, source, recipe, threads=None) -> Backend`. The loop in `train/fit.py` knows this contract only.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, SupportsFloat, cast

import numpy as np
import numpy.typing as npt

from tengtune import capabilities
from tengtune.backends.choice import choose
from tengtune.backends.loading import uninterrupted
from tengtune.cluster.place import here
from tengtune.models.spec import ModelSpec
from tengtune.recipe import Recipe
from tengtune.train.batch import Batch
from tengtune.train.ranks import Alone, Ranks

Array = npt.NDArray[np.generic]

Source = Mapping[str, Array]
"""The model's tensors by canonical (Qwen2 Hugging Face) name; values are memory maps, bfloat16 as
ml_dtypes.bfloat16. See weights/source.py."""

ShardKind = Literal["param", "exp_avg", "exp_avg_sq"]


@dataclass(frozen=True)
class Shard:
    """This rank's share of one trained tensor or optimizer state; name is canonical, e.g.
    `model.layers.0.self_attn.q_proj.lora_A.weight` [rank, in] and `....lora_B.weight` [out, rank].

    A share is one contiguous range of the whole tensor in C order: `array` holds its elements `offset` to
    `offset + array.size`. That covers a whole (or replicated) tensor, a slice of its rows (FSDP) and a slice
    of a flat vector. `shape` is the whole tensor's; left out, `array` is the whole tensor.
    """

    name: str
    kind: ShardKind
    array: Array
    shape: tuple[int, ...] = ()
    offset: int = 0

    def __post_init__(self) -> None:
        if not self.shape:
            object.__setattr__(self, "shape", self.array.shape)


@dataclass(frozen=True)
class StepHandles:
    """A step's figures, unread: `float(...)` on one waits for the device. Read once per log interval.

    loss_sum: sum of cross entropy over the step's labels (float32), unscaled.
    grad_norm: norm of the mean-loss gradient before clipping, unscaled.
    finite: 1.0 if every gradient was finite and the update applied, 0.0 if the step was skipped.
    """

    loss_sum: SupportsFloat
    grad_norm: SupportsFloat
    finite: SupportsFloat


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen. temperature 0 is greedy.

    repetition_penalty: ids of the prompt and of the answer so far have their logits divided by it, or
    multiplied where they are negative (transformers' rule); 1 changes nothing.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    repetition_penalty: float = 1.0


@dataclass(frozen=True)
class Asked:
    """A prompt and where its answer goes: `take` is given each new id and says whether to go on."""

    prompt: Sequence[int]
    max_new_tokens: int
    take: Callable[[int], bool]
    sampling: Sampling = Sampling()


class Backend(Protocol):
    """A model on a device, ready to train or to answer."""

    spec: ModelSpec
    dtype: str
    """Compute type: float32, float16 or bfloat16 (float16 wants a loss scale)."""
    device: str
    """Where it computes: cpu, npu:0, cuda:0, Ascend:0."""
    slowdown: float
    """How many times longer a product takes in `dtype` than in float32 on this device."""
    ranks: Ranks
    """The processes that share the training, this one among them."""
    sharded: bool
    """Whether each rank holds a part of what is trained; else each holds all of it."""

    def train_step(
        self, micro_batches: Sequence[Batch], trained_tokens: int, lr: float, scale: float
    ) -> StepHandles:
        """One optimizer step over the micro batches.

        The micro batches are this rank's share, as many as any other's. The loss is the sum over all labels
        of all ranks divided by `trained_tokens`, their number; gradients are computed on loss x scale, summed
        over the ranks and unscaled before clipping and AdamW. The figures are those of all ranks.
        A step with a non-finite gradient leaves weights and optimizer untouched.
        """
        ...

    def eval_step(self, batch: Batch) -> SupportsFloat:
        """Sum of cross entropy over the batch's labels, without gradients. Every rank calls it equally
        often, each with a batch of its own, and gets the sum of that."""
        ...

    def first_overflow(self, batch: Batch) -> str | None:
        """The first part of the model whose output is not finite in a forward pass over `batch`, by its
        canonical name (`model.layers.3.mlp.down_proj`, or the layer); None when all are finite. Every rank
        calls it equally often."""
        ...

    def peak_bytes(self) -> int | None:
        """The most that the card's allocator has given out in this process; None on a CPU."""
        ...

    def named_shards(self) -> Iterator[Shard]:
        """This rank's trained parameters and optimizer states, one at a time, in the same order each time.

        A tensor that every rank holds whole is rank 0's share. Arrays are float32 and stay as they are while
        training goes on: copies, or memory that later steps leave alone.
        """
        ...

    def load_shards(self, shards: Iterable[Shard], step: int) -> None:
        """Take trained parameters and optimizer states back; `step` optimizer steps were applied.

        What comes in are whole tensors; a rank takes its own range of each. Problem
        (device.foreign_shard, device.missing_shard) if they are not what this run trains.
        """
        ...

    def generate(
        self,
        prompt: Sequence[int],
        max_new_tokens: int,
        stop_ids: Iterable[int],
        sampling: Sampling = Sampling(),
    ) -> Iterator[int]:
        """New token ids one by one, the stop id not included."""
        ...

    def generate_many(self, asked: Iterable[Asked], stop_ids: Iterable[int]) -> Iterator[int]:
        """Answer several prompts at a time; gives the number of each (from 0) as its answer ends.

        A prompt is taken from `asked` when there is room for it, in order, and answered as `generate` would
        answer it alone; answers end at a stop id (not taken), at max_new_tokens, or when `take` says so.
        """
        ...


class BackendModule(Protocol):
    """A back end's `step` module."""

    def build(self, spec: ModelSpec, source: Source, recipe: Recipe, trainable: bool = True) -> Backend:
        """The model of `spec` with the tensors of `source`; with `trainable` False for answering only."""
        ...

    def join(self, recipe: Recipe) -> Ranks:
        """Meet the other ranks of this training, whose number and place the launcher has set; `build` then
        works with them. Problem when they do not come. Only where several ranks are not refused."""
        ...


def join(recipe: Recipe) -> Ranks:
    """The ranks that share the training of a run, met before any of them reads what rank 0's machine may
    still be making."""
    return Alone() if here().world == 1 else load(choose(recipe)).join(recipe)


def load(name: str) -> BackendModule:
    """The back end's `step` module; this imports the framework."""
    with uninterrupted():
        return cast(BackendModule, importlib.import_module(f"tengtune.backends.{name}.step"))


def open_backend(recipe: Recipe, folder: Path, trainable: bool = True) -> Backend:
    """The run's back end with the model in `folder`, ready to train or (trainable False) to answer.
    Problem for what it lacks, before its framework is loaded."""
    from tengtune.models import spec as specs
    from tengtune.weights.source import open_source

    spec, name = specs.from_folder(folder), choose(recipe)
    capabilities.refuse(recipe, spec, name, trainable)
    return load(name).build(spec, open_source(folder, spec), recipe, trainable)
