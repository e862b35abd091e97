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
from tengtune.backends.mindspore import device, loss, model
from tengtune.backends.mindspore.device import compiled, scalar
from tengtune.backends.mindspore.generate import Graphs, Texts
from tengtune.backends.mindspore.lora import adapter_layout, initial_adapter
from tengtune.backends.mindspore.model import EMBEDDING, HEAD, NORM, Floats, Layout, layer
from tengtune.backends.mindspore.optimizer import adamw
from tengtune.models.spec import ModelSpec
from tengtune.recipe import Recipe
from tengtune.train.batch import Batch
from tengtune.train.ranks import Alone
from tengtune.ui.problems import Problem

KINDS: tuple[ShardKind, ...] = ("param", "exp_avg", "exp_avg_sq")


def build(spec: ModelSpec, source: Source, recipe: Recipe, trainable: bool = True) -> MindSporeBackend:
    """The model of `spec` with the tensors of `source`; what this back end lacks was refused before."""
    name = device.prepare()
    with device.memory_faults(name):
        return MindSporeBackend(spec, source, recipe, name, trainable)


class MindSporeBackend:
    """`backends.base.Backend` on MindSpore, in float32. Blocks are always recomputed in backward, so that
    the run file's `recompute` changes nothing here."""

    dtype = device.DTYPE
    slowdown = 1.0

    def __init__(
        self, spec: ModelSpec, source: Source, recipe: Recipe, device_name: str, trainable: bool
    ) -> None:
        self.spec, self.device, self._recipe = spec, device_name, recipe
        self.ranks = Alone()
        self._head = EMBEDDING if spec.tie else HEAD
        groups = model.groups(spec)
        block = [groups[layer(0)]]  # the layouts of one block's vectors
        # Group -> its vectors, of which the last is the one that is trained, if any is.
        self._weights: dict[str, tuple[Tensor, ...]] = {
            name: (_tensor(layout.read(source, name)),) for name, layout in groups.items()
        }
        self._trained: dict[str, Layout] = {}
        if trainable and recipe.train.method == "full":
            self._trained = groups
        elif trainable:
            block.append(adapter_layout(spec, recipe))
            self._trained = {layer(number): block[-1] for number in range(spec.layers)}
            for name, layout in self._trained.items():
                self._weights[name] += (_tensor(initial_adapter(layout, name, recipe.seed)),)
        self._moments: dict[str, dict[ShardKind, Tensor]] = {
            name: {kind: _zeros(layout) for kind in KINDS[1:]} for name, layout in self._trained.items()
        }
        self._decays = {layout: _tensor(layout.decays()) for layout in set(self._trained.values())}
        self._applied = scalar(0.0)
        self._compile(block)

    def _compile(self, block: Sequence[Layout]) -> None:
        """Make the graphs; each is compiled when it is first called."""
        spec, scaling = self.spec, self._recipe.lora.alpha / self._recipe.lora.rank
        self._embed, self._embed_backward = map(compiled, model.embedding(spec))
        self._block, self._block_backward = map(compiled, model.block(spec, block, scaling))
        self._answering = Graphs(spec, block, scaling)
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
            zeros = {layout: _zeros(layout) for layout in self._decays}
            totals = {name: zeros[layout] for name, layout in self._trained.items()}
            del zeros  # from here on a total that was replaced is freed
            for batch in micro_batches:
                loss_sum = self._accumulate(batch, weight, loss_sum, totals)
            norm, finite = self._apply(totals, lr, scale)
        return StepHandles(loss_sum, norm, finite)

    def _accumulate(
        self, batch: Batch, weight: Tensor, loss_sum: Tensor, totals: dict[str, Tensor]
    ) -> Tensor:
        """Forward and backward of a micro batch: adds its gradients to `totals`; loss_sum with its loss."""
        labels = loss.chunks(batch, self.spec.vocab)
        ids, hidden, context = self._start(batch)
        inputs = []
        for number in range(self.spec.layers):
            inputs.append(hidden)
            hidden = self._block(hidden, *context, *self._weights[layer(number)])
        norm, head, d_rows = self._weights[NORM][0], self._weights[self._head][0], []
        for rows, label in zip(self._rows(hidden, norm, labels.place), labels.label, strict=True):
            if self._head in totals:
                loss_sum, d_chunk, totals[self._head] = self._chunk_gradient_head(
                    rows, label, head, weight, loss_sum, totals[self._head]
                )
            else:
                loss_sum, d_chunk = self._chunk_gradient(rows, label, head, weight, loss_sum)
            d_rows.append(d_chunk)
        d_hidden, d_norm = self._rows_backward(hidden, norm, labels.place, *d_rows)
        if NORM in totals:
            totals[NORM] = totals[NORM] + d_norm
        for number in reversed(range(self.spec.layers)):
            name = layer(number)
            d_hidden, totals[name] = self._block_backward(
                inputs.pop(), *context, d_hidden, totals[name], *self._weights[name]
            )
        if EMBEDDING in totals:
            totals[EMBEDDING] = self._embed_backward(ids, d_hidden, totals[EMBEDDING])
        return loss_sum

    def _apply(self, totals: dict[str, Tensor], lr: float, scale: float) -> tuple[Tensor, Tensor]:
        """Clip and update by gradients of the loss x scale, which are used up; the norm, and 1 if finite."""
        square = scalar(0.0)
        for total in totals.values():
            square = self._add_square(square, total)
        norm, finite, self._applied, *numbers = self._plan(
            square, self._applied, scalar(lr), scalar(1.0 / scale)
        )
        for name, layout in self._trained.items():
            state = (self._weights[name][-1], *self._moments[name].values(), totals.pop(name))
            vectors = self._update(*state, self._decays[layout], finite, *numbers)
            for kind, vector in zip(KINDS, vectors, strict=True):
                self._replace(name, kind, vector)
        return norm, finite

    def _start(self, batch: Batch) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor, Tensor]]:
        """The ids, their embedding, and what every block needs: cosine, sine, segment."""
        ids = Tensor(batch.ids)
        hidden, cosine, sine = self._embed(ids, Tensor(batch.positions), self._weights[EMBEDDING][0])
        return ids, hidden, (cosine, sine, Tensor(batch.segment))

    def eval_step(self, batch: Batch) -> SupportsFloat:
        """See `Backend.eval_step`."""
        with device.memory_faults(self.device):
            labels, loss_sum = loss.chunks(batch, self.spec.vocab), scalar(0.0)
            _, hidden, context = self._start(batch)
            for number in range(self.spec.layers):
                hidden = self._block(hidden, *context, *self._weights[layer(number)])
            rows = self._rows(hidden, self._weights[NORM][0], labels.place)
            for each, label in zip(rows, labels.label, strict=True):
                loss_sum = self._chunk_loss(each, label, self._weights[self._head][0], loss_sum)
        return loss_sum  # type: ignore[no-any-return]

    def first_overflow(self, batch: Batch) -> str | None:
        """See `Backend.first_overflow`; the parts here are the embedding and the layers."""
        _, hidden, context = self._start(batch)
        for number in range(-1, self.spec.layers):
            if number >= 0:
                hidden = self._block(hidden, *context, *self._weights[layer(number)])
            if not np.isfinite(hidden.asnumpy()).all():
                return layer(number) if number >= 0 else EMBEDDING
        return None

    def named_shards(self) -> Iterator[Shard]:
        """See `Backend.named_shards`; the arrays are views of the state and must not be written to."""
        for group, layout in self._trained.items():
            vectors = (self._weights[group][-1], *self._moments[group].values())
            for kind, vector in zip(KINDS, vectors, strict=True):
                for name, view in layout.views(vector.asnumpy()):
                    yield Shard(f"{group}.{name}", kind, view)

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
                self._replace(group, kind, _tensor(self._trained[group].read(arrays, group)))
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
        with device.memory_faults(self.device):
            texts = Texts(self._answering, self._weights.__getitem__, rows=1)
            yield from answers.generate(texts, prompt, max_new_tokens, stop_ids, sampling)

    def generate_many(self, asked: Iterable[Asked], stop_ids: Iterable[int]) -> Iterator[int]:
        """See `Backend.generate_many`."""
        with device.memory_faults(self.device):
            texts = Texts(self._answering, self._weights.__getitem__)
            yield from answers.generate_many(texts, asked, stop_ids)


def _tensor(vector: Floats) -> Tensor:
    """A vector as a Tensor that shares its memory."""
    return mindspore.from_numpy(vector)


def _zeros(layout: Layout) -> Tensor:
    return _tensor(np.zeros(layout.shape, np.float32))
