"""A training step as a Python loop over compiled graphs.

The graphs: embedding, block and label rows, each forward and backward; a chunk of the loss; the optimizer.
Their number depends on the shapes of the batches (one set for each label bucket K) and of the groups of
weights, not on the number of layers, micro batches or steps. State is in Tensors that a step replaces.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import SupportsFloat

import mindspore
import numpy as np
from mindspore import Tensor

from tengtune.backends import answers
from tengtune.backends.base import Array, Asked, Sampling, Shard, ShardKind, Source, StepHandles
from tengtune.backends.mindspore import device, kernels, loss, model
from tengtune.backends.mindspore.device import compiled, scalar
from tengtune.backends.mindspore.generate import Answering, Texts
from tengtune.backends.mindspore.lora import adapter_layout, initial_adapter
from tengtune.backends.mindspore.model import EMBEDDING, HEAD, NORM, Layout, layer
from tengtune.backends.mindspore.optimizer import adamw
from tengtune.backends.mindspore.parallel import Gradients, Group, part_shape, zeros
from tengtune.backends.mindspore.parallel import join as join_ranks
from tengtune.cluster.place import Place
from tengtune.models.spec import ModelSpec
from tengtune.recipe import Recipe
from tengtune.train.batch import Batch
from tengtune.train.ranks import Ranks
from tengtune.ui.problems import Problem

OUTER = (EMBEDDING, NORM, HEAD)
"""What is gathered once a step, and summed once, as FSDP does with a model's root; a block's weights are
gathered for each call."""
KINDS: tuple[ShardKind, ...] = ("param", "exp_avg", "exp_avg_sq")


def build(spec: ModelSpec, source: Source, recipe: Recipe, trainable: bool = True) -> MindSporeBackend:
    """The model of `spec` with the tensors of `source`; what this back end lacks was refused before."""
    name = device.prepare()
    group = join_ranks(recipe.train.stall_minutes) if trainable else Group(Place())
    with device.memory_faults(name):
        return MindSporeBackend(spec, source, recipe, name, group, trainable)


def join(recipe: Recipe) -> Ranks:
    """Meet the other ranks; see base.BackendModule."""
    device.prepare()
    return join_ranks(recipe.train.stall_minutes)


class MindSporeBackend:
    """`backends.base.Backend` on MindSpore. Frozen weights are kept in the compute type, what is trained in
    float32. Blocks are always recomputed in backward, so that the run file's `recompute` changes nothing
    here. Of several ranks each keeps its part of all state, see parallel.py; a vector is gathered for the
    call that needs it and freed after."""

    def __init__(
        self,
        spec: ModelSpec,
        source: Source,
        recipe: Recipe,
        device_name: str,
        group: Group,
        trainable: bool,
    ) -> None:
        self.spec, self.device, self._recipe = spec, device_name, recipe
        self.dtype = device.choose_dtype(device_name, recipe.model.dtype)
        self.slowdown = device.slowdown(device_name, self.dtype)
        self._type = device.DTYPES[self.dtype]
        self.ranks: Ranks = group
        self.sharded = group.world > 1
        self._group = group
        self._head = EMBEDDING if spec.tie else HEAD
        groups = model.groups(spec)
        block = [groups[layer(0)]]  # the layouts of one block's vectors
        full = {name: layout for name, layout in groups.items() if trainable and _trained(recipe, name)}
        # Group -> this rank's parts of its vectors, of which the last is the one that is trained, if any is.
        self._weights: dict[str, tuple[Tensor, ...]] = {}
        for name, layout in groups.items():
            vector = layout.read(source, name, "float32" if name in full else self.dtype)
            self._weights[name] = (_tensor(group.part(vector)),)
        self._lengths = {name: [layout.shape[0]] for name, layout in groups.items()}  # of the whole vectors
        adapters: dict[str, Layout] = {}
        if trainable and recipe.train.method == "lora":
            block.append(adapter_layout(spec, recipe))
            adapters = {layer(number): block[-1] for number in range(spec.layers)}
            for name, layout in adapters.items():
                self._weights[name] += (_tensor(group.part(initial_adapter(layout, name, recipe.seed))),)
                self._lengths[name].append(layout.shape[0])
        self._trained = full | adapters
        self._moments: dict[str, dict[ShardKind, Tensor]] = {
            name: {kind: zeros(part_shape(layout, group.world)) for kind in KINDS[1:]}
            for name, layout in self._trained.items()
        }
        self._decays = {layout: _tensor(self._decay(layout)) for layout in set(self._trained.values())}
        self._applied = scalar(0.0)
        self._kept: dict[str, list[Tensor]] = {}  # gathered for a whole step
        self._compile(block)

    def _decay(self, layout: Layout) -> Array:
        """Where weight decay applies in this rank's part; one number if it is the same everywhere."""
        decays = layout.decays()
        return decays if decays.size == 1 else self._group.part(decays)

    def _compile(self, block: Sequence[Layout]) -> None:
        """Make the graphs; each is compiled when it is first called."""
        spec, scaling = self.spec, self._recipe.lora.alpha / self._recipe.lora.rank
        self._embed, self._embed_backward = map(compiled, model.embedding(spec, self._type))
        chosen = kernels.choose(self.device, spec, self._type)
        self._mask = compiled(chosen.mask)
        self._block, self._block_backward = map(compiled, model.block(spec, block, scaling, chosen))
        self._answering = Answering(spec, block, scaling, self.dtype)
        self._rows, self._rows_backward = map(compiled, loss.label_rows(spec.rms_eps))
        self._chunk_loss = compiled(loss.chunk_loss)
        self._chunk_gradient = compiled(loss.chunk_gradient)
        self._chunk_gradient_head = compiled(loss.chunk_gradient_head)
        self._add_square, self._plan, self._update = map(compiled, adamw(self._recipe.train))

    def train_step(
        self, micro_batches: Sequence[Batch], trained_tokens: int, lr: float, scale: float
    ) -> StepHandles:
        """See `Backend.train_step`. A gradient whose square overflows float32 counts as not finite."""
        assert self._trained, "built with trainable=False"
        with device.memory_faults(self.device):
            weight, loss_sum = scalar(scale / trained_tokens), scalar(0.0)
            gradients = Gradients(self._group, self._trained, OUTER)
            self._kept = {name: self._whole(name) for name in OUTER if name in self._weights}
            for batch in micro_batches:
                loss_sum = self._accumulate(batch, weight, loss_sum, gradients)
            self._kept = {}
            gradients.finish()
            norm, finite = self._apply(gradients, lr, scale)
        return StepHandles(self._group.sum_(loss_sum), norm, finite)

    def _accumulate(self, batch: Batch, weight: Tensor, loss_sum: Tensor, gradients: Gradients) -> Tensor:
        """Forward and backward of a micro batch: adds its gradients; loss_sum with its loss."""
        labels = loss.chunks(batch, self.spec.vocab)
        ids, hidden, context = self._start(batch)
        inputs = []
        for number in range(self.spec.layers):
            inputs.append(hidden)
            hidden = self._block(hidden, *context, *self._whole(layer(number)))
        (norm,), head, d_rows = self._whole(NORM), self._head_matrix(), []
        head_trained = self._head in gradients
        d_head = gradients.begin(self._head) if head_trained else None
        for rows, label in zip(self._rows(hidden, norm, labels.place), labels.label, strict=True):
            if head_trained:
                loss_sum, d_chunk, d_head = self._chunk_gradient_head(
                    rows, label, head, weight, loss_sum, d_head
                )
            else:
                loss_sum, d_chunk = self._chunk_gradient(rows, label, head, weight, loss_sum)
            d_rows.append(d_chunk)
        del head
        d_hidden, d_norm = self._rows_backward(hidden, norm, labels.place, *d_rows)
        if NORM in gradients:
            gradients.end(NORM, gradients.begin(NORM) + d_norm)
        for number in reversed(range(self.spec.layers)):
            name = layer(number)
            d_hidden, total = self._block_backward(
                inputs.pop(), *context, d_hidden, gradients.begin(name), *self._whole(name)
            )
            gradients.end(name, total)
        if head_trained and not self.spec.tie:
            gradients.end(HEAD, d_head)
        if EMBEDDING in gradients:
            total = d_head if self.spec.tie else gradients.begin(EMBEDDING)
            gradients.end(EMBEDDING, self._embed_backward(ids, d_hidden, total))
        return loss_sum

    def _apply(self, gradients: Gradients, lr: float, scale: float) -> tuple[Tensor, Tensor]:
        """Clip and update by gradients of the loss x scale, which are used up; the norm, and 1 if finite."""
        square = scalar(0.0)
        for total in gradients:
            square = self._add_square(square, total)
        norm, finite, self._applied, *numbers = self._plan(
            self._group.sum_(square), self._applied, scalar(lr), scalar(1.0 / scale)
        )
        for name, layout in self._trained.items():
            state = (self._weights[name][-1], *self._moments[name].values(), gradients.take(name))
            vectors = self._update(*state, self._decays[layout], finite, *numbers)
            for kind, vector in zip(KINDS, vectors, strict=True):
                self._replace(name, kind, vector)
        return norm, finite

    def _whole(self, name: str) -> list[Tensor]:
        """The vectors of a group of weights, gathered from all ranks."""
        if name in self._kept:
            return self._kept[name]
        parts = zip(self._weights[name], self._lengths[name], strict=True)
        return [self._group.whole(part, length) for part, length in parts]

    def _head_matrix(self) -> Tensor:
        """The head [V,h] in the compute type, cast once for all chunks of the loss."""
        (head,) = self._whole(self._head)
        return head if head.dtype == self._type else head.astype(self._type)

    def _start(self, batch: Batch) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor, Tensor]]:
        """The ids, their embedding, and what every block needs: cosine, sine, mask."""
        ids = Tensor(batch.ids)
        hidden, cosine, sine = self._embed(ids, Tensor(batch.positions), *self._whole(EMBEDDING))
        return ids, hidden, (cosine, sine, self._mask(Tensor(batch.segment)))

    def eval_step(self, batch: Batch) -> SupportsFloat:
        """See `Backend.eval_step`."""
        with device.memory_faults(self.device), device.interruptible():
            labels, loss_sum = loss.chunks(batch, self.spec.vocab), scalar(0.0)
            _, hidden, context = self._start(batch)
            for number in range(self.spec.layers):
                hidden = self._block(hidden, *context, *self._whole(layer(number)))
            rows = self._rows(hidden, *self._whole(NORM), labels.place)
            head = self._head_matrix()
            for each, label in zip(rows, labels.label, strict=True):
                loss_sum = self._chunk_loss(each, label, head, loss_sum)
        return loss_sum  # type: ignore[no-any-return]

    def first_overflow(self, batch: Batch) -> str | None:
        """See `Backend.first_overflow`; the parts here are the embedding and the layers."""
        _, hidden, context = self._start(batch)
        place = None if _finite(hidden) else EMBEDDING
        for number in range(self.spec.layers):  # all of them, as the other ranks do
            hidden = self._block(hidden, *context, *self._whole(layer(number)))
            place = place or (None if _finite(hidden) else layer(number))
        return place

    def peak_bytes(self) -> int | None:
        """See `Backend.peak_bytes`."""
        return device.peak_bytes(self.device)

    def named_shards(self) -> Iterator[Shard]:
        """See `Backend.named_shards`; the arrays are views of the state and must not be written to."""
        for group, layout in self._trained.items():
            vectors = (self._weights[group][-1], *self._moments[group].values())
            for kind, vector in zip(KINDS, vectors, strict=True):
                for name, values, offset in self._group.ranges(layout, vector.asnumpy()):
                    yield Shard(f"{group}.{name}", kind, values, layout.shapes[name], offset)

    def load_shards(self, shards: Iterable[Shard], step: int) -> None:
        """See `Backend.load_shards`; Problem if a tensor is missing, foreign or of another shape."""
        home = {f"{group}.{name}": group for group, layout in self._trained.items() for name in layout.shapes}
        missing = {(name, kind) for name in home for kind in KINDS}
        waiting: dict[tuple[str, ShardKind], dict[str, Array]] = {}
        for shard in shards:
            name, kind, group = shard.name, shard.kind, home.get(shard.name, "")
            if (name, kind) not in missing or shard.array.shape != self._shape(group, name):
                raise Problem("device.foreign_shard", where=f"{name} ({kind})")
            missing.remove((name, kind))
            arrays = waiting.setdefault((group, kind), {})
            arrays[name] = shard.array
            if len(arrays) == len(self._trained[group].shapes):
                self._replace(
                    group, kind, _tensor(self._group.part(self._trained[group].read(arrays, group)))
                )
                del waiting[group, kind]
        if missing:
            name, kind = min(missing)
            raise Problem("device.missing_shard", where=f"{name} ({kind})", count=len(missing))
        self._applied = scalar(step)

    def _shape(self, group: str, name: str) -> tuple[int, ...]:
        return self._trained[group].shapes[name.removeprefix(f"{group}.")]

    def _replace(self, group: str, kind: ShardKind, vector: Tensor) -> None:
        if kind == "param":
            self._weights[group] = (*self._weights[group][:-1], vector)
        else:
            self._moments[group][kind] = vector

    def generate(
        self,
        prompt: Sequence[int],
        max_new_tokens: int,
        stop_ids: Iterable[int],
        sampling: Sampling = Sampling(),  # noqa: B008
    ) -> Iterator[int]:
        """See `Backend.generate`."""
        with device.memory_faults(self.device), device.interruptible():
            texts = Texts(self._answering, self._whole, rows=1)
            yield from answers.generate(texts, prompt, max_new_tokens, stop_ids, sampling)

    def generate_many(self, asked: Iterable[Asked], stop_ids: Iterable[int]) -> Iterator[int]:
        """See `Backend.generate_many`."""
        with device.memory_faults(self.device), device.interruptible():
            texts = Texts(self._answering, self._whole)
            yield from answers.generate_many(texts, asked, stop_ids)


def _trained(recipe: Recipe, group: str) -> bool:
    """Whether the weights of a group are trained themselves: all are, or with LoRA embedding and head if
    asked for."""
    if recipe.train.method == "full":
        return True
    return recipe.lora.train_embeddings is True and group in (EMBEDDING, HEAD)


def _tensor(vector: Array) -> Tensor:
    """A vector as a Tensor that shares its memory."""
    return mindspore.from_numpy(vector)


def _finite(hidden: Tensor) -> bool:
    return bool(np.isfinite(hidden.asnumpy()).all())
