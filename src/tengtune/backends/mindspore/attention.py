"""Attention inside documents, and rotary positions, as graph functions of plain operators.

Legend: B rows, S tokens per row, L keys per row, H query heads, G key-value heads, D head size.
"""

from __future__ import annotations

import math

import numpy as np
from mindspore import Tensor, float32, ops

NEVER = -1e30
"""Added to a score, this makes its probability exactly 0."""

# Not ops.matmul: on a CPU the gradient of its general form takes several times as long.
_product, _product_of_transposed = ops.BatchMatMul(), ops.BatchMatMul(transpose_b=True)


def attention(q: Tensor, k: Tensor, v: Tensor, segment: Tensor) -> Tensor:
    """Causal attention that never leaves a document: q [B,S,H,D], k and v [B,S,G,D], segment [B,S]
    -> [B,S,H*D]. Padding (segment 0) sees padding only, so that no row of scores is empty."""
    q = q * (1.0 / math.sqrt(q.shape[-1]))
    return attend(q, k.transpose(0, 2, 1, 3), v.transpose(0, 2, 1, 3), _mask(segment))


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


def _mask(segment: Tensor) -> Tensor:
    """[B,1,1,S,S]: 0 where a query (next to last axis) may look, NEVER elsewhere."""
    return (hidden_from(segment).astype(float32) * NEVER).expand_dims(1).expand_dims(1)


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
