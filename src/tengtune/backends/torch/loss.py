"""The LM head and its cross entropy, where a label is and in chunks: all logits never exist together.

Legend: K label slots, H width, V vocabulary, C slots of one chunk.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from tengtune.backends.torch.ops import apply

CHUNK_BYTES = 128 << 20
"""Upper bound of the logits that exist at a time."""
PIECE = 1 << 20
"""Logits that a CPU takes through all passes of the softmax together, so that they stay in its cache."""

IDS = 1 << 15
"""Rows of a trained head whose gradient is made at a time: what is added to it stays small beside it."""


def head_loss(hidden: Tensor, weight: Tensor, labels: Tensor, gradient_scale: float) -> Tensor:
    """Sum of cross entropy of the labels [K], as a scalar: hidden [K,H] (after the last norm), weight [V,H].

    Negative labels count nothing. The gradients are those of the sum x gradient_scale; the forward pass
    makes them, chunk by chunk, so that nothing but them is kept.
    """
    return apply(_HeadLoss, hidden, weight, labels, gradient_scale)


class _HeadLoss(Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, labels: Tensor, gradient_scale: float) -> Tensor:
        wants_hidden, wants_weight = ctx.needs_input_grad[:2]
        head = weight.to(hidden.dtype)
        hidden_gradient = torch.empty_like(hidden) if wants_hidden else None
        weight_gradient = torch.zeros_like(weight) if wants_weight else None
        losses = torch.empty_like(labels, dtype=torch.promote_types(hidden.dtype, torch.float32))
        rows = max(1, min(max(CHUNK_BYTES // (head.element_size() * head.shape[0]), 16), hidden.shape[0]))
        memory = head.new_empty(rows, head.shape[0])  # one for all chunks: new pages are dear
        for start in range(0, hidden.shape[0], rows):
            chunk = slice(start, start + rows)
            part = hidden[chunk]
            logits = torch.mm(part, head.T, out=memory[: part.shape[0]])
            _cross_entropy(logits, labels[chunk], gradient_scale, losses[chunk])
            if hidden_gradient is not None:
                torch.mm(logits, head, out=hidden_gradient[chunk])
            if weight_gradient is not None:
                _add_product(weight_gradient, logits, part)
        ctx.gradients = hidden_gradient, weight_gradient
        return losses.sum()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        # Given away, not kept: autograd copies a gradient that somebody else holds, and the head's is large.
        gradients, ctx.gradients = ctx.gradients, None
        hidden_gradient, weight_gradient = (None if g is None else g.mul_(gradient) for g in gradients)
        return hidden_gradient, weight_gradient, None, None


def _add_product(total: Tensor, logits: Tensor, part: Tensor) -> None:
    """total [V,H] += logits [C,V] transposed x part [C,H]; without a product beside it where types allow."""
    if total.dtype == logits.dtype:
        total.addmm_(logits.T, part)
        return
    for ids in (slice(i, i + IDS) for i in range(0, total.shape[0], IDS)):
        total[ids] += torch.mm(logits[:, ids].T, part)


def _cross_entropy(logits: Tensor, labels: Tensor, gradient_scale: float, losses: Tensor) -> None:
    """Writes the losses [C], and over the logits [C,V] the gradient of the losses' sum x gradient_scale."""
    rows = max(PIECE // logits.shape[1], 1) if logits.device.type == "cpu" else logits.shape[0]
    for start in range(0, logits.shape[0], rows):
        piece = slice(start, start + rows)
        wide = logits[piece].to(losses.dtype)
        counts = (labels[piece] >= 0).to(wide.dtype).unsqueeze(1)
        label = labels[piece].clamp_min(0).unsqueeze(1)
        wanted, highest = wide.gather(1, label), wide.amax(1, keepdim=True)
        probabilities = torch.softmax(wide, 1, out=wide)
        # log of the sum of exponentials: the highest logit less the log of its probability, never 0.
        log_sum = highest - probabilities.amax(1, keepdim=True).log_()
        losses[piece] = ((log_sum - wanted) * counts).squeeze(1)
        probabilities.scatter_add_(1, label, torch.full_like(wanted, -1))
        torch.mul(probabilities, counts * gradient_scale, out=logits[piece])
