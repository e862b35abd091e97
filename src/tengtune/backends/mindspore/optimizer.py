"""AdamW on whole vectors, as graph functions: norm, clipping and skipping without asking the device."""

from __future__ import annotations

import math

from mindspore import Tensor, ops

from tengtune.backends.mindspore.kernels import Function
from tengtune.recipe import Train


def adamw(train: Train) -> tuple[Function, Function, Function]:
    """AdamW as torch computes it, or with `train.optimizer: mindformers` nn.AdamWeightDecay, the same without
    bias correction; over gradients of a scaled loss that are clipped to a global norm.

    add_square (square, total) -> square plus the squares of a group's gradient, still scaled.
    plan (square, applied, lr, unscale) -> norm, finite (1 or 0), applied (steps so far), and the numbers
    of update: gradient factor, step size, root of the second bias correction, decay of this step.
    update (param, exp_avg, exp_avg_sq, total, decays, finite, *numbers) -> the first three anew; bit for
    bit the old ones where finite is 0.
    """
    corrected = train.optimizer == "adamw"
    beta1, beta2, eps, clip, decay = train.beta1, train.beta2, train.eps, train.clip_norm, train.weight_decay
    # 1 - beta^t by expm1: in float32 the plain difference would lose digits at the first steps.
    log1, log2 = (math.log(beta) if beta else -math.inf for beta in (beta1, beta2))
    # On a CPU, `/` and a select that broadcasts its condition take 4 and 6 vectors of scratch; these none.
    divide, choose = ops.RealDiv(), ops.Select()

    def add_square(square: Tensor, total: Tensor) -> Tensor:
        return square + ops.square(total).sum()

    def plan(square: Tensor, applied: Tensor, lr: Tensor, unscale: Tensor) -> tuple[Tensor, ...]:
        norm = ops.sqrt(square) * unscale
        finite = ops.isfinite(norm).astype(norm.dtype)
        applied = applied + finite
        factor = unscale * ops.minimum(clip / (norm + 1e-6), 1.0) if clip > 0 else unscale
        if not corrected:
            return norm, finite, applied, factor, lr, ops.ones_like(norm), lr * decay
        root = ops.sqrt(-ops.expm1(applied * log2))
        return norm, finite, applied, factor, lr / -ops.expm1(applied * log1), root, lr * decay

    def update(
        param: Tensor,
        exp_avg: Tensor,
        exp_avg_sq: Tensor,
        total: Tensor,
        decays: Tensor,
        finite: Tensor,
        factor: Tensor,
        step_size: Tensor,
        root: Tensor,
        shrink: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        gradient = total * factor
        first = exp_avg + (gradient - exp_avg) * (1 - beta1)
        second = exp_avg_sq * beta2 + ops.square(gradient) * (1 - beta2)
        denominator = ops.sqrt(second) * (1 / root) + eps
        moved = param * (1 - shrink * decays) - divide(step_size * first, denominator)
        apply = ops.broadcast_to(finite > 0, param.shape)
        return choose(apply, moved, param), choose(apply, first, exp_avg), choose(apply, second, exp_avg_sq)

    return add_square, plan, update
