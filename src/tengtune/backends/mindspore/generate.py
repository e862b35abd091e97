"""Answering: a cache of one size for all rows, prompts taken in chunks, then token by token for all rows.

The graphs: embedding, block and head, for chunks of two lengths and for one token, and for each size of the
cache; a Python loop calls the block's for every layer. What depends on positions is made on the host.

Legend: B rows of the cache, N rows of a pass (1 or B), T tokens of a row, C the cache's tokens of a row,
H query heads, G key-value heads, D head size, h hidden, V vocabulary.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from mindspore import Tensor, float32, from_numpy, ops

from tengtune.backends.mindspore.attention import NEVER, attend, rotary_frequencies
from tengtune.backends.mindspore.device import DTYPES, compiled
from tengtune.backends.mindspore.kernels import Function, Type, rms_norm
from tengtune.backends.mindspore.model import EMBEDDING, HEAD, NORM, Floats, Layout, halves, layer
from tengtune.models.spec import ModelSpec

ROWS = 8
"""Answers under way at a time: on a CPU a step for 8 takes twice as long as a step for one."""
SHORT, LONG = 32, 256
"""Tokens of a prompt that are taken at a time: LONG as long as they fill half of it, then SHORT."""
CAPACITY = 256
"""Tokens of a row that the cache has room for at first; where a text needs more it is doubled."""


@dataclass(frozen=True)
class Graphs:
    """The compiled functions that answers need; each is compiled when it is first called."""

    embed: Function
    block: Function
    head: Function


@functools.cache
def graphs(spec: ModelSpec, names: tuple[str, ...], scaling: float, dtype: str) -> Graphs:
    """Those of models of one shape: before and after training the same ones, compiled once."""
    functions = _embedding(DTYPES[dtype]), cached_block(spec, names, scaling), _head(spec.rms_eps)
    return Graphs(*map(compiled, functions))


def _embedding(dtype: Type) -> Function:
    """(ids [N,T], table [V,h]) -> hidden [N,T,h] of type `dtype`."""

    def embed(ids: Tensor, table: Tensor) -> Tensor:
        return ops.gather(table, ids, 0).astype(dtype)

    return embed


def _head(eps: float) -> Function:
    """(hidden [N,T,h], last [1], norm [h], head [V,h]) -> logits [N,V] of the tokens `last`."""

    def head(hidden: Tensor, last: Tensor, norm: Tensor, table: Tensor) -> Tensor:
        rows = ops.gather(hidden, last, 1).reshape((hidden.shape[0], -1))
        rows = rms_norm(rows, norm, eps)
        return ops.dense(rows, table.astype(rows.dtype)).astype(float32)

    return head


def cached_block(spec: ModelSpec, names: Sequence[str], scaling: float) -> Function:
    """A block whose attention goes over a cache; its weights are the tensors `names`, each by itself.

    (hidden [N,T,h], cosine, sine [N,T,1,D/2], scale [N,T,1,1] of the queries, bias [N,1,1,T,C] of the scores,
    row [1] that the pass is for if N < B, written [B,1,C,1] where the cache takes a new token, source [C]:
    which of T, keys and values [B,G,C,D], *tensors) -> hidden, and keys and values with the T tokens.
    """
    before, after = halves(spec, names, scaling)

    def block(
        hidden: Tensor,
        cosine: Tensor,
        sine: Tensor,
        scale: Tensor,
        bias: Tensor,
        row: Tensor,
        written: Tensor,
        source: Tensor,
        keys: Tensor,
        values: Tensor,
        *tensors: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = before(hidden, cosine, sine, tensors)
        k, v = k.transpose(0, 2, 1, 3), v.transpose(0, 2, 1, 3)
        if hidden.shape[1] > 1:
            k, v = ops.gather(k, source, 2), ops.gather(v, source, 2)
        keys, values = ops.where(written, k, keys), ops.where(written, v, values)
        own_keys, own_values = keys, values
        if hidden.shape[0] < keys.shape[0]:
            own_keys, own_values = ops.gather(keys, row, 0), ops.gather(values, row, 0)
        mixed = attend((q * scale).astype(q.dtype), own_keys, own_values, bias)
        return after(hidden, mixed, tensors), keys, values

    return block


class Answering:
    """A back end's model as answers need it; `layouts` are those of one block's vectors."""

    def __init__(self, spec: ModelSpec, layouts: Sequence[Layout], scaling: float, dtype: str) -> None:
        self.spec, self.type, self._layouts = spec, DTYPES[dtype], layouts
        names = tuple(name for layout in layouts for name in layout.shapes)
        self.graphs = graphs(spec, names, scaling, dtype)
        self._cut: dict[str, tuple[Sequence[Tensor], list[Tensor]]] = {}

    def tensors(self, name: str, vectors: Sequence[Tensor]) -> list[Tensor]:
        """The tensors of the block `name`. Cut out of its vectors once, on the host: inside a graph every cut
        is an operator, as many as all others of a block."""
        known = self._cut.get(name)
        if known is not None and all(a is b for a, b in zip(known[0], vectors, strict=True)):
            return known[1]
        pairs = zip(self._layouts, vectors, strict=True)
        tensors = [from_numpy(view) for layout, v in pairs for _, view in layout.views(v.asnumpy())]
        self._cut[name] = (vectors, tensors)
        return tensors


class Texts:
    """`backends.answers.Texts`. `whole`: a group of weights -> its vectors.

    A row that holds no text, or that a pass is not for, computes in vain and leaves what nobody sees: a key
    beyond a text's end is written again before a query looks there.
    """

    def __init__(self, model: Answering, whole: Callable[[str], Sequence[Tensor]], rows: int = ROWS) -> None:
        self.rows, self._model, self._whole = rows, model, whole
        spec, self._capacity = model.spec, CAPACITY
        shape = (rows, spec.kv_heads, CAPACITY, spec.head_dim)
        self._keys = [ops.zeros(shape, model.type) for _ in range(spec.layers)]
        self._values = [ops.zeros(shape, model.type) for _ in range(spec.layers)]
        self._lengths = np.zeros(rows, np.int32)
        self._frequencies = np.ones((rows, 1, 1, spec.head_dim // 2), np.float32)

    def begin(self, row: int, length: int) -> None:
        """See `backends.answers.Texts`."""
        self._lengths[row] = 0

    def take(self, ids: Mapping[int, Sequence[int]]) -> Floats:
        """See `backends.answers.Texts`."""
        self._reserve(max(int(self._lengths[row]) + len(new) for row, new in ids.items()))
        for row, new in ids.items():
            if self._lengths[row] == 0:
                self._frequencies[row] = self._rotary(len(new))
        if all(len(new) == 1 for new in ids.values()):
            return self._step({row: new[0] for row, new in ids.items()})
        ((row, prompt),) = ids.items()
        return self._prompt(row, np.array(prompt, np.int32))

    def _step(self, ids: Mapping[int, int]) -> Floats:
        """Logits after one more token of each of these rows."""
        taken, rows = np.zeros((self.rows, 1), np.int32), list(ids)
        taken[rows, 0] = list(ids.values())
        hidden = self._pass(np.arange(self.rows), taken)
        self._lengths[rows] += 1
        return self._logits(hidden, 0)[rows]

    def _prompt(self, row: int, ids: npt.NDArray[np.int32]) -> Floats:
        """Logits [1,V] after many more tokens of a row."""
        while ids.size:
            size = LONG if ids.size > LONG // 2 else SHORT
            chunk, ids = ids[:size], ids[size:]
            hidden = self._pass(np.array([row]), np.pad(chunk, (0, size - chunk.size))[None])
            self._lengths[row] += chunk.size
        return self._logits(hidden, chunk.size - 1)

    def _pass(self, rows: npt.NDArray[np.int_], ids: npt.NDArray[np.int32]) -> Tensor:
        """Take ids [N,T] into the cache of these rows; hidden [N,T,h] after the last block."""
        model = self._model
        hidden = model.graphs.embed(Tensor(ids), *self._whole(EMBEDDING))
        context = [Tensor(array) for array in self._context(rows, ids.shape[1])]
        for number in range(model.spec.layers):
            tensors = model.tensors(layer(number), self._whole(layer(number)))
            hidden, self._keys[number], self._values[number] = model.graphs.block(
                hidden, *context, self._keys[number], self._values[number], *tensors
            )
        return hidden

    def _logits(self, hidden: Tensor, last: int) -> Floats:
        model, place = self._model, Tensor(np.array([last], np.int32))
        head = self._whole(EMBEDDING if model.spec.tie else HEAD)
        logits: Floats = model.graphs.head(hidden, place, *self._whole(NORM), *head).asnumpy()
        return logits

    def _context(self, rows: npt.NDArray[np.int_], count: int) -> tuple[npt.NDArray[np.generic], ...]:
        """What the blocks need besides hidden states, cache and weights for the next `count` tokens of these
        rows: cosine to source, as in `cached_block`."""
        spec, places = self._model.spec, np.arange(self._capacity, dtype=np.int32)
        positions = self._lengths[rows, None] + np.arange(count, dtype=np.int32)
        angles = positions[:, :, None, None].astype(np.float32) * self._frequencies[rows]
        scale = np.full(positions.shape, 1 / math.sqrt(spec.head_dim), np.float32)
        if spec.stretch is not None:
            scale *= np.vectorize(spec.stretch.query_factor, otypes=[np.float32])(positions)
        unseen = places > positions[:, :, None]
        bias = np.where(unseen, np.float32(NEVER), np.float32(0))[:, None, None]
        written = np.zeros((self.rows, 1, self._capacity, 1), np.bool_)
        ends = positions[:, :1], positions[:, -1:]
        written[rows, 0, :, 0] = (places >= ends[0]) & (places <= ends[1])
        source = np.clip(places - ends[0][0], 0, count - 1)
        row = rows[:1].astype(np.int32)
        return np.cos(angles), np.sin(angles), scale[:, :, None, None], bias, row, written, source

    def _rotary(self, tokens: int) -> Floats:
        """RoPE's frequencies of a text that begins with so many tokens."""
        spec = self._model.spec
        factor = spec.stretch.base_factor(tokens, spec.head_dim) if spec.stretch else 1.0
        frequencies: Floats = rotary_frequencies(spec.head_dim, spec.rope_theta * factor).asnumpy()
        return frequencies

    def _reserve(self, length: int) -> None:
        """Make the cache's rows hold `length` tokens."""
        while self._capacity < length:
            self._capacity *= 2
            for states in (self._keys, self._values):
                for number, state in enumerate(states):
                    states[number] = ops.cat((state, ops.zeros_like(state)), 2)
