"""AdamW on float32 masters: unscaling, the global norm, clipping and skipping without asking the device."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tengtune.recipe import Train


@dataclass(frozen=True)
class _Rates:
    """What one step applies: gradients are divided by `divisor`; `finite` 0 means that nothing moves; `count`
    is the number of steps that the bias correction is for."""

    lr: float
    divisor: Tensor
    finite: Tensor
    count: Tensor


class AdamW:
    """Decoupled weight decay (Loshchilov and Hutter), none on vectors; the formula of torch.optim.AdamW, or
    with `train.optimizer: mindformers` of mindspore.nn.AdamWeightDecay: the same without bias correction.

    exp_avg and exp_avg_sq are the state, in the order of `parameters`; `applied` counts the steps taken,
    on the device.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], train: Train) -> None:
        self.parameters = list(parameters)
        self.exp_avg = [torch.zeros_like(p) for p in self.parameters]
        self.exp_avg_sq = [torch.zeros_like(p) for p in self.parameters]
        device = self.parameters[0].device
        self.applied = torch.zeros((), dtype=torch.float32, device=device)
        self.train = train
        self._update = self._fused if _has_fused(device) else self._plain

    def gradients(self) -> list[Tensor]:
        """The parameters' gradients, in their order; zeros for those that have none yet."""
        for parameter in self.parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        return [p.grad for p in self.parameters if p.grad is not None]

    def step(self, lr: float, scale: float) -> tuple[Tensor, Tensor]:
        """One step from the parameters' gradients, which are those of the loss x scale; they are used up.

        Returns the norm of the unscaled gradient before clipping, and 1 if it is finite and the step was
        applied, else 0: then parameters, states and `applied` keep every bit.
        """
        gradients = self.gradients()
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients))) / scale
        finite = norm.isfinite().to(torch.float32)
        divisor = torch.full_like(norm, scale)
        if self.train.clip_norm > 0:  # the convention of torch.nn.utils.clip_grad_norm_
            divisor = divisor * ((norm + 1e-6) / self.train.clip_norm).clamp_min(1.0)
        self.applied += finite
        # After infinitely many steps the moments need no correction any more.
        corrected = self.train.optimizer == "adamw"
        count = self.applied if corrected else torch.full_like(self.applied, torch.inf)
        rates = _Rates(lr, divisor.to(torch.float32), finite, count)
        for matrices in (True, False):
            chosen = [i for i, p in enumerate(self.parameters) if (p.ndim > 1) == matrices]
            if chosen:
                decay = self.train.weight_decay if matrices else 0.0
                self._update(chosen, [gradients[i] for i in chosen], decay, rates)
        for parameter in self.parameters:
            parameter.grad = None
        return norm, finite

    def _fused(self, chosen: list[int], gradients: list[Tensor], decay: float, rates: _Rates) -> None:
        """One pass over memory; the kernel divides the gradients and skips by itself."""
        torch._fused_adamw_(
            [self.parameters[i] for i in chosen],
            gradients,
            [self.exp_avg[i] for i in chosen],
            [self.exp_avg_sq[i] for i in chosen],
            [],
            [rates.count] * len(chosen),
            lr=rates.lr,
            beta1=self.train.beta1,
            beta2=self.train.beta2,
            weight_decay=decay,
            eps=self.train.eps,
            amsgrad=False,
            maximize=False,
            grad_scale=rates.divisor,
            found_inf=1 - rates.finite,
        )

    @torch.no_grad()
    def _plain(self, chosen: list[int], gradients: list[Tensor], decay: float, rates: _Rates) -> None:
        """The same for devices without that kernel; where finite is 0, all is moved by exactly nothing."""
        beta1, beta2, finite = self.train.beta1, self.train.beta2, rates.finite
        count = rates.count.clamp_min(1)
        size = rates.lr / (1 - beta1**count) * finite
        correction = (1 - beta2**count).sqrt()
        for i, scaled in zip(chosen, gradients, strict=True):
            gradient = torch.where(finite > 0, scaled / rates.divisor, 0)
            self.exp_avg[i].lerp_(gradient, (1 - beta1) * finite)
            self.exp_avg_sq[i].lerp_(gradient.square_(), (1 - beta2) * finite)
            root = (self.exp_avg_sq[i].sqrt() / correction).add_(self.train.eps)
            self.parameters[i].mul_(1 - rates.lr * decay * finite).sub_(self.exp_avg[i] / root * size)


def _has_fused(device: torch.device) -> bool:
    """Whether this torch has the fused kernel for the device: a CPU has it from torch 2.4 on. Other
    devices are not trusted to skip a step the way those two do."""
    key = {"cpu": "CPU", "cuda": "CUDA"}.get(device.type)
    return key is not None and torch._C._dispatch_has_kernel_for_dispatch_key("aten::_fused_adamw_", key)
