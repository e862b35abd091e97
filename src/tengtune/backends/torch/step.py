"""The PyTorch back end: a whole optimizer step, evaluation, states in and out, answers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from tengtune.backends import answers
from tengtune.backends.base import Array, Asked, Sampling, Shard, ShardKind, Source, StepHandles
from tengtune.backends.torch import device, kernels
from tengtune.backends.torch.device import Placement
from tengtune.backends.torch.generate import Texts
from tengtune.backends.torch.kernels import Kernels
from tengtune.backends.torch.model import Maker, Method, Qwen, tensor_of
from tengtune.backends.torch.optimizer import AdamW
from tengtune.backends.torch.parallel import Group
from tengtune.backends.torch.rows import lay_out
from tengtune.backends.torch.stretch import stretched
from tengtune.memory import return_large_blocks
from tengtune.models.spec import ModelSpec
from tengtune.recipe import Recipe
from tengtune.train.batch import Batch
from tengtune.train.ranks import Alone, Ranks
from tengtune.ui.problems import Problem


def build(spec: ModelSpec, source: Source, recipe: Recipe, trainable: bool = True) -> TorchBackend:
    """The model of `spec` with the tensors of `source`; with `trainable` False for answering only.

    Problem when the device lacks the compute type of the run file, or the memory.
    """
    placement = device.place(recipe.model.dtype)
    method: Method = recipe.train.method if trainable else "frozen"
    if trainable and placement.device.type == "cpu":
        return_large_blocks()
    with device.memory_faults(placement.device):
        maker = Maker(source, placement, method, recipe.lora, recipe.seed)
        chosen = kernels.choose(placement, spec)
        model = Qwen(spec, maker, chosen, recompute=recipe.train.recompute == "full")
        return TorchBackend(spec, model, placement, chosen, recipe)


def join(recipe: Recipe) -> Ranks:
    """Meet the other ranks; see base.BackendModule."""
    return Group(device.choose_device(), recipe.train.stall_minutes)


class TorchBackend:
    """Fulfils backends.base.Backend on one device."""

    sharded = False

    def __init__(
        self, spec: ModelSpec, model: Qwen, placement: Placement, kernels: Kernels, recipe: Recipe
    ) -> None:
        self.spec, self.model, self._placement, self._kernels = spec, model, placement, kernels
        self.dtype, self.device = str(placement.dtype).removeprefix("torch."), str(placement.device)
        self.slowdown = device.slowdown(placement)
        trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._names = list(trained)
        self._optimizer = AdamW(trained.values(), recipe.train) if trained else None
        self._group = Group(placement.device, recipe.train.stall_minutes) if trained else None
        self.ranks: Ranks = self._group or Alone()

    def train_step(
        self, micro_batches: Sequence[Batch], trained_tokens: int, lr: float, scale: float
    ) -> StepHandles:
        """One optimizer step over the micro batches; see base.Backend."""
        assert self._optimizer is not None, "built with trainable=False"
        with device.memory_faults(self._placement.device):
            loss_sum = torch.zeros((), dtype=self._placement.master, device=self._placement.device)
            for batch in micro_batches:
                loss = self.loss(batch, scale / trained_tokens)
                torch.autograd.backward(loss)
                loss_sum += loss.detach()
            if self._group is not None:
                self._group.sum_([*self._optimizer.gradients(), loss_sum])
            norm, finite = self._optimizer.step(lr, scale)
        return StepHandles(loss_sum, norm, finite)

    def eval_step(self, batch: Batch) -> Tensor:
        """Sum of cross entropy over the batch's labels, without gradients."""
        with device.memory_faults(self._placement.device), torch.no_grad():
            return self.loss(batch, 1.0, evaluating=True)

    def first_overflow(self, batch: Batch) -> str | None:
        """The first module whose output is not finite; see base.Backend."""
        found: list[str] = []

        def look(name: str, module: nn.Module, inputs: object, output: Tensor) -> None:
            if not found and not output.isfinite().all():
                found.append(name)

        named = [(name, module) for name, module in self.model.named_modules() if name]
        hooks = [module.register_forward_hook(partial(look, name)) for name, module in named]
        try:
            self.eval_step(batch)
        finally:
            for hook in hooks:
                hook.remove()
        return found[0] if found else None

    def loss(self, batch: Batch, gradient_scale: float, evaluating: bool = False) -> Tensor:
        """Sum of cross entropy over the batch's labels; its gradients come x gradient_scale. Evaluating,
        texts that are longer than the model was trained at are stretched where its family does so."""
        rows = lay_out(batch, self._placement)

        pieces = [(range(length), length) for length in rows.lengths] if evaluating else []
        long = stretched(self.spec, pieces, self._placement.device)

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            q = q if long is None else q * long.queries.to(q.dtype)
            return self._kernels.attention(q, k, v, rows.lengths)

        return self.model.loss(
            rows.ids,
            rows.positions,
            lambda layer: attend,
            rows.label_index,
            rows.labels,
            gradient_scale,
            None if long is None else long.bases,
        )

    def peak_bytes(self) -> int | None:
        """See base.Backend."""
        return device.peak_bytes(self._placement.device)

    def named_shards(self) -> Iterator[Shard]:
        """Trained parameters and optimizer states, one at a time, as float32 copies on the host; every rank
        holds them whole, so that they are rank 0's."""
        if self._optimizer is None or self.ranks.rank > 0:
            return
        for kind, tensors in self._states(self._optimizer).items():
            for name, tensor in zip(self._names, tensors, strict=True):
                # In one expression: a name would hold this copy while the next is made.
                yield Shard(_canonical(name), kind, _on_host(_outer(name, tensor.detach())))

    def load_shards(self, shards: Iterable[Shard], step: int) -> None:
        """Take back what named_shards gave; Problem if a tensor is missing, foreign or of another shape."""
        assert self._optimizer is not None, "built with trainable=False"
        waiting = {
            (_canonical(name), kind): _outer(name, tensor.detach())
            for kind, tensors in self._states(self._optimizer).items()
            for name, tensor in zip(self._names, tensors, strict=True)
        }
        for shard in shards:
            tensor = waiting.pop((shard.name, shard.kind), None)
            if tensor is None or tuple(tensor.shape) != shard.array.shape:
                raise Problem("device.foreign_shard", where=f"{shard.name} ({shard.kind})")
            tensor.copy_(tensor_of(shard.array))
        if waiting:
            name, kind = next(iter(waiting))
            raise Problem("device.missing_shard", where=f"{name} ({kind})", count=len(waiting))
        self._optimizer.applied.fill_(step)

    def _states(self, optimizer: AdamW) -> dict[ShardKind, Sequence[Tensor]]:
        return {
            "param": optimizer.parameters,
            "exp_avg": optimizer.exp_avg,
            "exp_avg_sq": optimizer.exp_avg_sq,
        }

    def generate(
        self,
        prompt: Sequence[int],
        max_new_tokens: int,
        stop_ids: Iterable[int],
        sampling: Sampling = Sampling(),  # noqa: B008 (immutable)
    ) -> Iterator[int]:
        """New token ids one by one, the stop id not included."""
        with device.memory_faults(self._placement.device):
            yield from answers.generate(Texts(self.model), prompt, max_new_tokens, stop_ids, sampling)

    def generate_many(self, asked: Iterable[Asked], stop_ids: Iterable[int]) -> Iterator[int]:
        """Several answers at a time; see base.Backend."""
        with device.memory_faults(self._placement.device):
            yield from answers.generate_many(Texts(self.model), asked, stop_ids)


def _canonical(name: str) -> str:
    """PEFT's name of an adapter's matrix; any other parameter has its canonical name already."""
    return f"{name}.weight" if name.endswith((".lora_A", ".lora_B")) else name


def _on_host(tensor: Tensor) -> Array:
    return tensor.to("cpu", copy=True).contiguous().numpy()


def _outer(name: str, tensor: Tensor) -> Tensor:
    """The tensor as files have it: B is [R,O] inside and PEFT's [O,R] outside."""
    return tensor.T if name.endswith(".lora_B") else tensor
