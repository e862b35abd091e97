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
"""Upper bound of one chunk's logits in float32."""


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
        wide = torch.promote_types(hidden.dtype, torch.float32)
        total = torch.zeros((), dtype=wide, device=hidden.device)
        rows = max(CHUNK_BYTES // (4 * weight.shape[0]), 16)
        for start in range(0, hidden.shape[0], rows):
            part, label = hidden[start : start + rows], labels[start : start + rows]
            logits = torch.mm(part, head.T).to(wide)
            losses, gradient = _cross_entropy(logits, label, gradient_scale)
            total += losses.sum()
            if not (wants_hidden or wants_weight):
                continue
            gradient = gradient.to(hidden.dtype)
            if hidden_gradient is not None:
                torch.mm(gradient, head, out=hidden_gradient[start : start + rows])
            if weight_gradient is not None:
                weight_gradient += torch.mm(gradient.T, part)
        ctx.gradients = hidden_gradient, weight_gradient
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        hidden_gradient, weight_gradient = (None if g is None else g * gradient for g in ctx.gradients)
        return hidden_gradient, weight_gradient, None, None


def _cross_entropy(logits: Tensor, labels: Tensor, gradient_scale: float) -> tuple[Tensor, Tensor]:
    """Losses [C], and the gradient of their sum x gradient_scale, made in the memory of logits [C,V]."""
    counts = (labels >= 0).to(logits.dtype)
    labels = labels.clamp_min(0).unsqueeze(1)
    wanted = logits.gather(1, labels).squeeze(1)
    highest, place = logits.max(1, keepdim=True)
    probabilities = torch.softmax(logits, 1, out=logits)
    # log of the sum of exponentials: the highest logit less the log of its own probability, which is never 0.
    log_sum = (highest - probabilities.gather(1, place).log()).squeeze(1)
    losses = (log_sum - wanted) * counts
    probabilities.scatter_add_(1, labels, torch.full_like(labels, -1, dtype=logits.dtype))
    return losses, probabilities.mul_((counts * gradient_scale).unsqueeze(1))
