"""The Qwen decoder (Qwen1 to Qwen3, dense), on rows laid end to end: no batch axis, no mask.

Legend: T tokens, H width, N query heads, G key-value heads, D head size, F feed-forward width.
Module names spell the canonical tensor names, so `named_parameters()` needs no table.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from tengtune.backends.base import Array, Source
from tengtune.backends.torch.device import Placement
from tengtune.backends.torch.kernels import PLAIN, Kernels
from tengtune.backends.torch.lora import Joined, Linear, LoraLinear, SharedLora
from tengtune.backends.torch.loss import head_loss
from tengtune.models.spec import ModelSpec
from tengtune.recipe import Lora
from tengtune.train.lora_init import initial_a

Method = Literal["frozen", "lora", "full"]

EMBEDDINGS = ("model.embed_tokens.weight", "lm_head.weight")

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""q [T,N,D], k and v [T,G,D] of one layer -> [T,N,D]: inside documents, or over a cache."""


class Maker:
    """Makes the parameters from the source, one tensor at a time: frozen ones stay on the mapped file
    where type and device fit, trained ones are copies in the master type."""

    def __init__(
        self, source: Source, placement: Placement, method: Method, lora: Lora | None = None, seed: int = 0
    ) -> None:
        self.source, self.placement, self.method, self.lora, self.seed = source, placement, method, lora, seed

    def weight(self, name: str) -> nn.Parameter:
        """A matrix or a bias."""
        return self._parameter(name, self.placement.dtype)

    def norm(self, name: str) -> nn.Parameter:
        """A norm's weight: small, so always in the master type."""
        return self._parameter(name, self.placement.master)

    def linear(self, name: str, bias: bool = False, adapted: bool = True) -> Linear:
        """The linear `name`, with its adapter if it is one of LoRA's targets and may be `adapted`."""
        weight = self.weight(f"{name}.weight")
        offset = self.weight(f"{name}.bias") if bias else None
        if not adapted or not self.adapts(name):
            return Linear(weight, offset)
        return LoraLinear(weight, offset, *self._adapter(name, *weight.shape))

    def shared(self, name: str, linears: Sequence[Linear]) -> SharedLora:
        """One adapter `name` for several linears of the same input."""
        outputs = sum(linear.weight.shape[0] for linear in linears)
        return SharedLora(*self._adapter(name, outputs, linears[0].weight.shape[1]))

    def adapts(self, name: str) -> bool:
        """Whether the linear `name` is one of LoRA's targets."""
        return self.method == "lora" and self.lora is not None and name.split(".")[-1] in self.lora.targets

    def _adapter(self, name: str, outputs: int, inputs: int) -> tuple[nn.Parameter, nn.Parameter, float]:
        """A [R,I], drawn; B [R,O], zero; the scale."""
        assert self.lora is not None
        placement, rank = self.placement, self.lora.rank
        first = initial_a(self.seed, f"{name}.lora_A.weight", rank, inputs)
        a = nn.Parameter(torch.from_numpy(first).to(placement.device, placement.master))
        b = nn.Parameter(torch.zeros(rank, outputs, dtype=placement.master, device=placement.device))
        return a, b, self.lora.alpha / rank

    def _parameter(self, name: str, dtype: torch.dtype) -> nn.Parameter:
        tensor, placement = tensor_of(self.source[name]), self.placement
        if not self._trained(name):
            return nn.Parameter(self._laid_out(tensor.to(placement.device, dtype)), requires_grad=False)
        return nn.Parameter(tensor.to(placement.device, placement.master, copy=True))

    def joined(self, linears: Sequence[Linear]) -> Joined | None:
        """The linears, all of one input, as one product, where that is faster; they become its parts."""
        if not self._answers_in(linears[0].weight.dtype):
            return None
        weights: list[Tensor] = [linear.weight for linear in linears]
        weight = self._laid_out(torch.cat(weights))
        sizes = [linear.weight.shape[0] for linear in linears]
        for linear, part in zip(linears, weight.split_with_sizes(sizes), strict=True):
            linear.weight = nn.Parameter(part, requires_grad=False)
        biases: list[Tensor] = [linear.bias for linear in linears if linear.bias is not None]
        return Joined(weight, torch.cat(biases) if biases else None, sizes)

    def _answers_in(self, dtype: torch.dtype) -> bool:
        """Whether the model only answers, on a CPU in float32: how its matrices lie is then worth a copy."""
        return self.method == "frozen" and self.placement.device.type == "cpu" and dtype == torch.float32

    def _laid_out(self, tensor: Tensor) -> Tensor:
        """A matrix that only answers lies along its shorter side: one row times it then takes up to half
        the time less, and many rows take the same."""
        if not self._answers_in(tensor.dtype) or tensor.dim() != 2 or tensor.shape[0] <= tensor.shape[1]:
            return tensor
        return tensor.t().contiguous().t()

    def _trained(self, name: str) -> bool:
        """Whether the tensor itself is trained: all are, or with LoRA embedding and head if asked for."""
        with_lora = self.method == "lora" and self.lora is not None and self.lora.train_embeddings is True
        return self.method == "full" or (with_lora and name in EMBEDDINGS)


def tensor_of(array: Array) -> Tensor:
    """A tensor on the array's own memory (torch has no ml_dtypes: bfloat16 goes through its bits)."""
    array = np.require(array, requirements=["C", "A"])
    bits = array.view(np.int16) if array.dtype.name == "bfloat16" else array
    with warnings.catch_warnings():
        # A read-only map: torch warns that writing would be undefined. Frozen weights are never written.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        tensor = torch.from_numpy(bits)
    return tensor if bits is array else tensor.view(torch.bfloat16)


class Norm(nn.Module):
    """RMS norm over the last axis."""

    def __init__(self, weight: nn.Parameter, eps: float, kernels: Kernels) -> None:
        super().__init__()
        self.weight, self.eps, self.kernels = weight, eps, kernels

    def forward(self, x: Tensor) -> Tensor:
        return self.kernels.rms_norm(x, self.weight, self.eps)


class Attention(nn.Module):
    """Grouped-query attention with rotary positions; q and k normed first where the model has that."""

    def __init__(self, spec: ModelSpec, name: str, maker: Maker, kernels: Kernels) -> None:
        super().__init__()
        self.head_dim, self.kernels = spec.head_dim, kernels
        shared = spec.family == "qwen1" and maker.adapts(f"{name}.q_proj")
        parts = [maker.linear(f"{name}.{part}_proj", spec.qkv_bias, adapted=not shared) for part in "qkv"]
        self.q_proj, self.k_proj, self.v_proj = parts
        self.qkv_proj = maker.shared(f"{name}.qkv_proj", parts) if shared else None
        self.joined = maker.joined(parts)
        self.o_proj = maker.linear(f"{name}.o_proj")
        self.q_norm = self.k_norm = None
        if spec.qk_norm:
            self.q_norm = Norm(maker.norm(f"{name}.q_norm.weight"), spec.rms_eps, kernels)
            self.k_norm = Norm(maker.norm(f"{name}.k_norm.weight"), spec.rms_eps, kernels)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor, attend: Attend) -> Tensor:
        parts = self._project(x)
        q, k, v = (part.unflatten(1, (-1, self.head_dim)) for part in parts)  # type: ignore[no-untyped-call]
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = self.kernels.rotary(q, cosine, sine), self.kernels.rotary(k, cosine, sine)
        mixed: Tensor = self.o_proj(attend(q, k, v).flatten(1))
        return mixed

    def _project(self, x: Tensor) -> Sequence[Tensor]:
        linears = (self.q_proj, self.k_proj, self.v_proj)
        if self.joined is not None:
            return self.joined.forward(x)
        return [f(x) for f in linears] if self.qkv_proj is None else self.qkv_proj(x, linears)


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, name: str, maker: Maker, kernels: Kernels) -> None:
        super().__init__()
        self.kernels = kernels
        self.gate_proj = maker.linear(f"{name}.gate_proj")
        self.up_proj = maker.linear(f"{name}.up_proj")
        self.down_proj = maker.linear(f"{name}.down_proj")
        self.joined = maker.joined((self.gate_proj, self.up_proj))

    def forward(self, x: Tensor) -> Tensor:
        gate, up = (self.gate_proj(x), self.up_proj(x)) if self.joined is None else self.joined(x)
        out: Tensor = self.down_proj(self.kernels.swiglu(gate, up))
        return out


class Block(nn.Module):
    """One layer: x [T,H] -> [T,H]."""

    def __init__(self, spec: ModelSpec, name: str, maker: Maker, kernels: Kernels) -> None:
        super().__init__()
        self.input_layernorm = Norm(maker.norm(f"{name}.input_layernorm.weight"), spec.rms_eps, kernels)
        self.self_attn = Attention(spec, f"{name}.self_attn", maker, kernels)
        after = f"{name}.post_attention_layernorm.weight"
        self.post_attention_layernorm = Norm(maker.norm(after), spec.rms_eps, kernels)
        self.mlp = FeedForward(f"{name}.mlp", maker, kernels)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor, attend: Attend) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cosine, sine, attend)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class Trunk(nn.Module):
    """Embedding and layers: ids and positions [T] -> hidden states [T,H] before the last norm. `bases` as
    for rotary_angles."""

    def __init__(self, spec: ModelSpec, maker: Maker, kernels: Kernels, recompute: bool) -> None:
        super().__init__()
        self.spec, self.dtype, self.recompute = spec, maker.placement.dtype, recompute
        self.embed_tokens = Embedding(maker.weight("model.embed_tokens.weight"))
        blocks = (Block(spec, f"model.layers.{i}", maker, kernels) for i in range(spec.layers))
        self.layers = nn.ModuleList(blocks)
        self.norm = Norm(maker.norm("model.norm.weight"), spec.rms_eps, kernels)

    def forward(
        self, ids: Tensor, positions: Tensor, attend: Callable[[int], Attend], bases: Tensor | None = None
    ) -> Tensor:
        x: Tensor = self.embed_tokens(ids).to(self.dtype)
        cosine, sine = rotary_angles(positions, self.spec, self.dtype, bases)
        for number, block in enumerate(self.layers):
            run: Callable[..., Tensor] = block
            if self.recompute and torch.is_grad_enabled():
                run = partial(checkpoint, block, use_reentrant=False, preserve_rng_state=False)
            x = run(x, cosine, sine, attend(number))
        return x


class Embedding(nn.Module):
    """ids [T] -> [T,H]."""

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self.weight)


class Qwen(nn.Module):
    """The whole model. A tied head is the embedding's matrix, not a copy."""

    def __init__(
        self, spec: ModelSpec, maker: Maker, kernels: Kernels = PLAIN, recompute: bool = False
    ) -> None:
        super().__init__()
        self.model = Trunk(spec, maker, kernels, recompute)
        self.lm_head = None if spec.tie else Linear(maker.weight("lm_head.weight"), None)

    @property
    def head(self) -> nn.Parameter:
        """The LM head's matrix [V,H]."""
        return self.model.embed_tokens.weight if self.lm_head is None else self.lm_head.weight

    def loss(
        self,
        ids: Tensor,
        positions: Tensor,
        attend: Callable[[int], Attend],
        label_index: Tensor,
        labels: Tensor,
        gradient_scale: float,
        bases: Tensor | None = None,
    ) -> Tensor:
        """Sum of cross entropy of the labels [K], predicted at label_index [K]; its gradients come
        multiplied by gradient_scale."""
        hidden = self.model(ids, positions, attend, bases).index_select(0, label_index)
        return head_loss(self.model.norm(hidden), self.head, labels, gradient_scale)

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [K,V] for hidden states [K,H] of the trunk."""
        normed = self.model.norm(hidden)
        return F.linear(normed, self.head.to(normed.dtype))


def rotary_angles(
    positions: Tensor, spec: ModelSpec, dtype: torch.dtype, bases: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Cosines and sines [T,1,D/2] for positions [T]; computed in float32 whatever `dtype`, as the
    models were trained. `bases` [T,1,1]: RoPE's base for each token, where it is not the model's own."""
    even = torch.arange(0, spec.head_dim, 2, dtype=torch.float32, device=positions.device)
    frequencies = 1.0 / (spec.rope_theta if bases is None else bases) ** (even / spec.head_dim)
    angles = positions.to(torch.float32)[:, None, None] * frequencies
    return angles.cos().to(dtype), angles.sin().to(dtype)
