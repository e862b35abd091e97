"""Attention inside documents, and rotary positions, as graph functions of plain operators.

Legend: B rows, S tokens per row, L keys per row, H query heads, G key-value heads, D head size.
"""

from __future__ import annotations

import math

import numpy as np
from mindspore import Tensor, float32, nn, ops

NEVER = -1e30
"""Added to a score, this makes its probability exactly 0."""

# Not ops.matmul: on a CPU the gradient of its general form takes several times as long.
_product, _product_of_transposed = ops.BatchMatMul(), ops.BatchMatMul(transpose_b=True)
_transposed_product, _softmax = ops.BatchMatMul(transpose_a=True), ops.Softmax(-1)


class _Mixed(nn.Cell):  # type: ignore[misc]
    """softmax(q k^T + bias) v of [B,G,R,D] queries, R of them to a key head, and [B,G,L,D] keys and values.

    The backward is our own: it computes the probabilities again, and no large operation in it broadcasts,
    for which MindSpore takes ten times as long on a CPU. With P the probabilities and dP = d_out v^T, the
    softmax's gradient is P * (dP - rowsum(P * dP)), and that sum is rowsum(d_out * out) (FlashAttention, Dao
    et al. 2022), which joins the product as one more column.
    """

    def probabilities(self, q: Tensor, k: Tensor, bias: Tensor) -> Tensor:
        """[B,G,R,L] in float32."""
        scores = _product_of_transposed(q, k)
        rows, heads, length = (
            scores.shape[0],
            scores.shape[1] * scores.shape[2] // bias.shape[2],
            bias.shape[2],
        )
        wide = scores.reshape((rows, heads, length, -1)).astype(float32) + bias
        return _softmax(wide).reshape(scores.shape)

    def construct(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        return _product(self.probabilities(q, k, bias).astype(v.dtype), v)

    def bprop(
        self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor, out: Tensor, d_out: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        probabilities = self.probabilities(q, k, bias)
        wide = d_out.astype(float32)
        sums = (wide * out.astype(float32)).sum(-1, keepdims=True)
        ones = ops.ones((*v.shape[:3], 1), float32)
        centred = _product_of_transposed(ops.cat((wide, -sums), -1), ops.cat((v.astype(float32), ones), -1))
        d_scores = (probabilities * centred).astype(q.dtype)
        d_k = _transposed_product(q, d_scores).swapaxes(-1, -2)  # the small one of the two is turned
        d_v = _transposed_product(d_out, probabilities.astype(v.dtype)).swapaxes(-1, -2)
        return _product(d_scores, k), d_k, d_v, ops.zeros_like(bias)


_mixed = _Mixed()


def attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """Attention of q [B,S,H,D] over k and v [B,S,G,D]; bias [B,H,S,S] (or 1 for H), see `document_bias`,
    is added to the scores -> [B,S,H*D]. The softmax is computed in float32."""
    rows, length, heads, size = q.shape
    # The H/G queries that share a key head stand one below the other: keys are never repeated.
    queries = (q * (1.0 / math.sqrt(size))).transpose(0, 2, 1, 3)
    queries = queries.reshape((rows, k.shape[2], heads // k.shape[2] * length, size))
    mixed = _mixed(queries, k.transpose(0, 2, 1, 3), v.transpose(0, 2, 1, 3), bias)
    return mixed.reshape((rows, heads, length, size)).transpose(0, 2, 1, 3).reshape((rows, length, -1))


def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """Attention of scaled queries [B,S,H,D] over keys and values [B,G,L,D]; bias [B,1,1,S,L] is added to the
    scores -> [B,S,H*D]. The softmax is computed in float32."""
    rows, length, heads, size = q.shape
    groups = k.shape[1]
    # The H/G queries that share a key head stand one below the other: keys are never repeated.
    shared = (rows, groups, heads // groups * length, -1)
    scores = _product_of_transposed(q.transpose(0, 2, 1, 3).reshape(shared), k)
    scores = scores.reshape((rows, groups, heads // groups, length, -1)).astype(float32) + bias
    mixed = _product(ops.softmax(scores, -1).astype(v.dtype).reshape(shared), v)
    return mixed.reshape((rows, heads, length, size)).transpose(0, 2, 1, 3).reshape((rows, length, -1))


def document_bias(segment: Tensor, copies: int) -> Tensor:
    """[B,copies,S,S]: 0 where a query (next to last axis) may look, NEVER elsewhere: causal attention that
    never leaves a document. Padding (segment 0) sees padding only, so that no row of scores is empty."""
    return ops.tile((hidden_from(segment).astype(float32) * NEVER).expand_dims(1), (1, copies, 1, 1))


def hidden_from(segment: Tensor) -> Tensor:
    """[B,S,S], true where a query (next to last axis) may not look: later tokens, other documents."""
    place = ops.arange(segment.shape[1])
    later = place.expand_dims(1) < place.expand_dims(0)
    other = segment.expand_dims(2) != segment.expand_dims(1)
    return ops.logical_or(later, other)


def rotary_frequencies(size: int, theta: float) -> Tensor:
    """Radians that pair i of a head of `size` D turns per token, theta^(-2i/D): float32 [D/2]."""
    return Tensor((theta ** -(np.arange(0, size, 2) / size)).astype(np.float32))


def rotary_angles(positions: Tensor, frequencies: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines at the positions [B,S], each [B,S,1,D/2]."""
    angles = positions.astype(frequencies.dtype).expand_dims(2).expand_dims(3) * frequencies
    return ops.cos(angles), ops.sin(angles)


def rotate(heads: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Turn heads [B,S,*,D] by their positions; dimension i is paired with i + D/2."""
    half = heads.shape[-1] // 2
    cosine, sine = cosine.astype(heads.dtype), sine.astype(heads.dtype)
    first, second = heads[..., :half], heads[..., half:]
    return ops.cat((first * cosine - second * sine, second * cosine + first * sine), -1)
