"""Cross entropy at label positions only, in chunks of rows, each chunk with its own backward.

The logits exist for one chunk at a time: one compiled chunk is called in a loop, which bounds memory
without trusting a scheduler. Rows and head are of one type; from the logits on it is float32.

Legend: B rows, S tokens per row, K label slots per row, C chunks of R label rows, h hidden, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from mindspore import Tensor, float32, ops

from tengtune.backends.mindspore.kernels import Function, rms_norm
from tengtune.backends.mindspore.model import gradient
from tengtune.train.batch import NO_LABEL, Batch

CHUNK_LOGITS = 2**24
"""Most logits of a chunk: 64 MiB in float32."""


@dataclass(frozen=True)
class Labels:
    """A batch's labels in chunks: place [C,R], the row in the hidden states as [B x S, h]; label, C x [R]."""

    place: Tensor
    label: list[Tensor]


def chunks(batch: Batch, vocab: int) -> Labels:
    """The label slots of a batch in equal chunks, filled up with unused slots. K decides their shape."""
    rows, length = batch.ids.shape
    place = (batch.label_index + length * np.arange(rows, dtype=np.int32)[:, None]).reshape(-1)
    count = -(-place.size // max(CHUNK_LOGITS // vocab, 1))
    size = -(-place.size // count)
    missing = count * size - place.size
    place = np.pad(place, (0, missing)).reshape(count, size)
    label = np.pad(batch.label.reshape(-1), (0, missing), constant_values=NO_LABEL).reshape(count, size)
    return Labels(Tensor(place), [Tensor(each) for each in label])


def label_rows(eps: float) -> tuple[Function, Function]:
    """Forward (hidden [B,S,h], norm [h], place [C,R]) -> C x [R,h], normed; and backward
    (hidden, norm, place, *d_rows, C x [R,h]) -> (d_hidden, d_norm)."""

    def normed(hidden: Tensor, norm: Tensor, place: Tensor) -> Tensor:
        rows = ops.gather(hidden.reshape((-1, hidden.shape[-1])), place, 0)
        return rms_norm(rows, norm, eps)

    def forward(hidden: Tensor, norm: Tensor, place: Tensor) -> tuple[Tensor, ...]:
        rows = normed(hidden, norm, place)
        return tuple([rows[i] for i in range(place.shape[0])])

    def backward(hidden: Tensor, norm: Tensor, place: Tensor, *d_rows: Tensor) -> tuple[Tensor, Tensor]:
        gradients = gradient(normed)(hidden, norm, place, ops.stack(d_rows))
        return gradients[0], gradients[1]

    return forward, backward


def chunk_loss(rows: Tensor, label: Tensor, head: Tensor, loss: Tensor) -> Tensor:
    """`loss` plus the cross entropy of one chunk: rows [R,h], label [R], head [V,h]."""
    return loss + _cross_entropy(_logarithms(rows, head), label)


def chunk_gradient(
    rows: Tensor, label: Tensor, head: Tensor, weight: Tensor, loss: Tensor
) -> tuple[Tensor, Tensor]:
    """(`loss` plus the chunk's cross entropy, d_rows [R,h] of the cross entropy times `weight`)."""
    loss, d_logits = _logits_gradient(rows, label, head, weight, loss)
    return loss, ops.matmul(d_logits, head)


def chunk_gradient_head(
    rows: Tensor, label: Tensor, head: Tensor, weight: Tensor, loss: Tensor, total: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """As `chunk_gradient`, and `total` [V,h] with the head's gradient added."""
    loss, d_logits = _logits_gradient(rows, label, head, weight, loss)
    d_head = ops.MatMul(transpose_a=True)(d_logits, rows)
    return loss, ops.matmul(d_logits, head), total + d_head.astype(total.dtype)


def _logits_gradient(
    rows: Tensor, label: Tensor, head: Tensor, weight: Tensor, loss: Tensor
) -> tuple[Tensor, Tensor]:
    """d_logits [R,V] = (softmax - one_hot) x weight, 0 in unused slots, in the type of `rows`."""
    logarithms = _logarithms(rows, head)
    used = (label != NO_LABEL).astype(logarithms.dtype).expand_dims(1)
    target = ops.maximum(label, 0).expand_dims(1)
    d_logits = ops.tensor_scatter_elements(ops.exp(logarithms), target, -ops.ones_like(used), 1, "add")
    return loss + _cross_entropy(logarithms, label), (d_logits * (used * weight)).astype(rows.dtype)


def _logarithms(rows: Tensor, head: Tensor) -> Tensor:
    """Log-probabilities [R,V], in float32."""
    return ops.log_softmax(ops.dense(rows, head).astype(float32), -1)


def _cross_entropy(logarithms: Tensor, label: Tensor) -> Tensor:
    """Sum of cross entropy over the used slots, from log-probabilities [R,V]."""
    target = ops.maximum(label, 0).expand_dims(1)
    used = (label != NO_LABEL).astype(logarithms.dtype).expand_dims(1)
    return -(ops.gather_elements(logarithms, 1, target) * used).sum()
