"""The Qwen decoder as graph functions over flat weights: embedding, block, and their gradients.

The functions made here are compiled once and serve every layer and step. A group of tensors (one block,
one adapter) is one vector that enters a graph as a Tensor and is cut into its tensors inside; keeping
1/N of it per rank means cutting the vector and gathering it before the call.

Legend: B rows, S tokens per row, h hidden, V vocabulary, D head size.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from mindspore import Tensor, ops

from tengtune.backends.base import Array, Source
from tengtune.backends.mindspore.attention import rotary_angles, rotary_frequencies, rotate
from tengtune.backends.mindspore.kernels import Function, Kernels, Type, rms_norm
from tengtune.models.spec import ModelSpec

Floats = npt.NDArray[np.float32]

EMBEDDING, NORM, HEAD = "model.embed_tokens", "model.norm", "lm_head"
SHARED = "self_attn.qkv_proj"
"""Qwen1's q, k and v, which have one adapter together."""

gradient = ops.GradOperation(get_all=True, sens_param=True)
"""gradient(f)(*inputs, sens): the gradients of all inputs of f, computed anew from the inputs."""


@dataclass(frozen=True, eq=False)
class Layout:
    """The tensors of a group in one vector: name inside the group -> shape, in the vector's order.

    A group of one tensor keeps that tensor's shape: reshaping an embedding would copy it at every call.
    """

    shapes: Mapping[str, tuple[int, ...]]

    @property
    def shape(self) -> tuple[int, ...]:
        """The vector's shape."""
        shapes = list(self.shapes.values())
        return shapes[0] if len(shapes) == 1 else (sum(map(math.prod, shapes)),)

    def views(self, vector: Array) -> Iterator[tuple[str, Array]]:
        """Name and view of every tensor in a vector."""
        flat, start = vector.reshape(-1), 0
        for name, shape in self.shapes.items():
            stop = start + math.prod(shape)
            yield name, flat[start:stop].reshape(shape)
            start = stop

    def read(self, source: Source, prefix: str, dtype: str = "float32") -> Array:
        """The vector of the tensors `<prefix>.<name>` of `source`."""
        vector = np.empty(self.shape, dtype)
        with np.errstate(over="ignore"):  # what float16 can't hold is infinite, as elsewhere
            for name, view in self.views(vector):
                view[...] = source[f"{prefix}.{name}"]
        return vector

    def decays(self) -> Floats:
        """1 where weight decay applies, 0 on biases and norms; [1] where all tensors are alike in that."""
        wanted = [len(shape) > 1 for shape in self.shapes.values()]
        if len(set(wanted)) == 1:
            return np.array(wanted[:1], np.float32)
        vector = np.empty(self.shape, np.float32)
        for (_, view), decay in zip(self.views(vector), wanted, strict=True):
            view[...] = decay
        return vector

    def unpacker(self) -> Function:
        """The graph function vector -> tuple of its tensors."""
        shapes = list(self.shapes.values())
        stops = np.cumsum([math.prod(shape) for shape in shapes]).tolist()
        starts = [0, *stops[:-1]]

        def unpack(vector: Tensor) -> tuple[Tensor, ...]:
            return tuple([vector[starts[i] : stops[i]].reshape(shapes[i]) for i in range(len(shapes))])

        return unpack


def groups(spec: ModelSpec) -> dict[str, Layout]:
    """The model's tensors by group; a group's name is the common prefix of its tensors' names."""
    block = Layout(spec.block_tensors())
    layouts = {EMBEDDING: Layout({"weight": (spec.vocab, spec.hidden)})}
    layouts |= {layer(number): block for number in range(spec.layers)}
    layouts[NORM] = Layout({"weight": (spec.hidden,)})
    if not spec.tie:
        layouts[HEAD] = Layout({"weight": (spec.vocab, spec.hidden)})
    return layouts


def layer(number: int) -> str:
    """The group of one block."""
    return f"model.layers.{number}"


def embedding(spec: ModelSpec, dtype: Type) -> tuple[Function, Function]:
    """Forward (ids, positions, table) -> hidden [B,S,h] of type `dtype`, cosine, sine [B,S,1,D/2]; and
    backward (ids, d_hidden, total [V,h]) -> total with the table's gradient added."""
    frequencies = rotary_frequencies(spec.head_dim, spec.rope_theta)

    def embed(ids: Tensor, positions: Tensor, table: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        cosine, sine = rotary_angles(positions, frequencies)
        return ops.gather(table, ids, 0).astype(dtype), cosine, sine

    def embed_backward(ids: Tensor, d_hidden: Tensor, total: Tensor) -> Tensor:
        return ops.tensor_scatter_add(total, ids.expand_dims(-1), d_hidden.astype(total.dtype))

    return embed, embed_backward


def block(
    spec: ModelSpec, layouts: Sequence[Layout], scaling: float, kernels: Kernels
) -> tuple[Function, Function]:
    """Forward and backward of a block whose weights are the vectors of `layouts`, the last of them trained.

    Forward (hidden [B,S,h], cosine, sine, mask, *vectors) -> hidden. Backward (hidden, cosine,
    sine, mask, d_out, total, *vectors) -> (d_hidden, total with the trained vector's gradient added);
    it takes the forward's input and computes the rest again, so that a step keeps B x S x h per layer.
    The vectors are arguments of their own: Tensors inside a tuple would be taken for constants.
    """
    names = [name for layout in layouts for name in layout.shapes]
    before, after = halves(spec, names, scaling, kernels.rms_norm)
    unpack, mix = [layout.unpacker() for layout in layouts], kernels.attention
    trained = len(layouts[-1].shapes)

    def unpack_all(vectors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        tensors = ()
        for i in range(len(vectors)):
            tensors = tensors + unpack[i](vectors[i])
        return tensors

    def apply(
        hidden: Tensor, cosine: Tensor, sine: Tensor, mask: Tensor, tensors: tuple[Tensor, ...]
    ) -> Tensor:
        q, k, v = before(hidden, cosine, sine, tensors)
        return after(hidden, mix(q, k, v, mask), tensors)

    def of_all(hidden: Tensor, cosine: Tensor, sine: Tensor, mask: Tensor, *tensors: Tensor) -> Tensor:
        return apply(hidden, cosine, sine, mask, tensors)

    def forward(hidden: Tensor, cosine: Tensor, sine: Tensor, mask: Tensor, *vectors: Tensor) -> Tensor:
        return apply(hidden, cosine, sine, mask, unpack_all(vectors))

    def backward(
        hidden: Tensor,
        cosine: Tensor,
        sine: Tensor,
        mask: Tensor,
        d_out: Tensor,
        total: Tensor,
        *vectors: Tensor,
    ) -> tuple[Tensor, Tensor]:
        tensors = unpack_all(vectors)
        # Gradients of frozen ones are asked for, too, and dropped by the compiler: a function with a Cell
        # that has its own backward may not refer to anything around it.
        gradients = gradient(of_all)(hidden, cosine, sine, mask, *tensors, d_out)
        d_trained = gradients[-trained:]
        return gradients[0], total + ops.cat([part.reshape(-1) for part in d_trained])

    return forward, backward


def halves(
    spec: ModelSpec, names: Sequence[str], scaling: float, rms_norm: Function = rms_norm
) -> tuple[Function, Function]:
    """A block before and after its attention; `tensors` come in the order of `names`, those that are trained
    in float32, from which products cast them to the type of the hidden states.

    Before (hidden [B,S,h], cosine, sine, tensors) -> q, k, v [B,S,*,D], turned by their positions. After
    (hidden, mixed [B,S,*], tensors) -> hidden, where `mixed` is what attention gave.
    """
    at = {name: i for i, name in enumerate(names)}
    size, eps, qk_norm = spec.head_dim, spec.rms_eps, spec.qk_norm
    first, second = spec.q_width, spec.q_width + spec.kv_width
    shared = f"{SHARED}.lora_A.weight" in at

    def dense(x: Tensor, tensors: tuple[Tensor, ...], name: str) -> Tensor:
        bias = tensors[at[f"{name}.bias"]].astype(x.dtype) if f"{name}.bias" in at else None
        return ops.dense(x, tensors[at[f"{name}.weight"]].astype(x.dtype), bias)

    def addition(x: Tensor, tensors: tuple[Tensor, ...], name: str) -> Tensor:
        a, b = tensors[at[f"{name}.lora_A.weight"]], tensors[at[f"{name}.lora_B.weight"]]
        return ops.dense(ops.dense(x, a.astype(x.dtype)) * scaling, b.astype(x.dtype))

    def linear(x: Tensor, tensors: tuple[Tensor, ...], name: str) -> Tensor:
        y = dense(x, tensors, name)
        if f"{name}.lora_A.weight" in at:
            y = y + addition(x, tensors, name)
        return y

    def projected(x: Tensor, tensors: tuple[Tensor, ...]) -> tuple[Tensor, Tensor, Tensor]:
        q = linear(x, tensors, "self_attn.q_proj")
        k = linear(x, tensors, "self_attn.k_proj")
        v = linear(x, tensors, "self_attn.v_proj")
        if shared:
            added = addition(x, tensors, SHARED)
            q, k, v = q + added[..., :first], k + added[..., first:second], v + added[..., second:]
        return q, k, v

    def heads(y: Tensor, tensors: tuple[Tensor, ...], name: str) -> Tensor:
        y = y.reshape((y.shape[0], y.shape[1], -1, size))
        if qk_norm and name != "v":
            y = rms_norm(y, tensors[at[f"self_attn.{name}_norm.weight"]], eps)
        return y

    def before(
        hidden: Tensor, cosine: Tensor, sine: Tensor, tensors: tuple[Tensor, ...]
    ) -> tuple[Tensor, Tensor, Tensor]:
        x = rms_norm(hidden, tensors[at["input_layernorm.weight"]], eps)
        q, k, v = projected(x, tensors)
        q = rotate(heads(q, tensors, "q"), cosine, sine)
        k = rotate(heads(k, tensors, "k"), cosine, sine)
        return q, k, heads(v, tensors, "v")

    def after(hidden: Tensor, mixed: Tensor, tensors: tuple[Tensor, ...]) -> Tensor:
        hidden = hidden + linear(mixed, tensors, "self_attn.o_proj")
        x = rms_norm(hidden, tensors[at["post_attention_layernorm.weight"]], eps)
        gate = ops.silu(linear(x, tensors, "mlp.gate_proj"))
        return hidden + linear(gate * linear(x, tensors, "mlp.up_proj"), tensors, "mlp.down_proj")

    return before, after
