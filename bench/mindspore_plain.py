"""A Qwen2 with LoRA as MindSpore's own building blocks make it: one nn.Cell for the whole model, padded rows,
logits of every position. The peer of bench/mindspore_train.py."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from tengtune.models.spec import ModelSpec
from tengtune.train.lora_init import initial_a
from tengtune.weights.source import open_source


class Linear(nn.Cell):
    """A frozen nn.Dense and its adapter."""

    def __init__(self, dense: nn.Dense, name: str, rank: int, scaling: float) -> None:
        super().__init__()
        for parameter in dense.get_parameters():
            parameter.requires_grad = False
        self.dense, self.scaling = dense, scaling
        a = initial_a(0, f"{name}.lora_A.weight", rank, dense.in_channels)
        self.a = Parameter(Tensor(a), name="a")
        self.b = Parameter(Tensor(np.zeros((dense.out_channels, rank), np.float32)), name="b")

    def construct(self, x: Tensor) -> Tensor:
        return self.dense(x) + ops.dense(ops.dense(x, self.a), self.b) * self.scaling


class Norm(nn.Cell):
    """RMSNorm, which has no kernel of its own on a CPU."""

    def __init__(self, weight: np.ndarray, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = Parameter(Tensor(weight), name="w", requires_grad=False), eps

    def construct(self, x: Tensor) -> Tensor:
        return x * ops.rsqrt(ops.square(x).mean(-1, True) + self.eps) * self.weight


class Block(nn.Cell):
    """One decoder layer."""

    def __init__(self, spec: ModelSpec, linears: dict[str, Linear], norms: list[Norm]) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (linears[f"self_attn.{n}_proj"] for n in "qkvo")
        self.gate, self.up, self.down = (linears[f"mlp.{n}_proj"] for n in ("gate", "up", "down"))
        self.before, self.after = norms
        self.size, self.repeats = spec.head_dim, spec.heads // spec.kv_heads

    def _heads(self, x: Tensor) -> Tensor:
        return x.reshape((x.shape[0], x.shape[1], -1, self.size)).transpose((0, 2, 1, 3))

    def _turned(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        half = self.size // 2
        turned = ops.cat((-x[..., half:], x[..., :half]), -1)
        return x * cosine + turned * sine

    def construct(self, x: Tensor, cosine: Tensor, sine: Tensor, mask: Tensor) -> Tensor:
        h = self.before(x)
        q = self._turned(self._heads(self.q(h)), cosine, sine)
        k = self._turned(self._heads(self.k(h)), cosine, sine)
        v = self._heads(self.v(h))
        k, v = ops.repeat_interleave(k, self.repeats, 1), ops.repeat_interleave(v, self.repeats, 1)
        scores = ops.matmul(q, k.transpose((0, 1, 3, 2))) / math.sqrt(self.size) + mask
        mixed = ops.matmul(ops.softmax(scores, -1), v).transpose((0, 2, 1, 3))
        x = x + self.o(mixed.reshape((x.shape[0], x.shape[1], -1)))
        h = self.after(x)
        return x + self.down(ops.silu(self.gate(h)) * self.up(h))


class Network(nn.Cell):
    """(ids [B,S], labels [B,S], -100 where there is none) -> mean loss over the labels."""

    def __init__(self, spec: ModelSpec, folder: Path, rank: int, alpha: float) -> None:
        super().__init__()
        source = open_source(folder, spec)

        def values(name: str) -> np.ndarray:
            return np.asarray(source[name], np.float32)

        def dense(name: str) -> Linear:
            out, into = source[f"{name}.weight"].shape
            biased = f"{name}.bias" in source
            cell = nn.Dense(into, out, weight_init=Tensor(values(f"{name}.weight")), has_bias=biased)
            if biased:
                cell.bias.set_data(Tensor(values(f"{name}.bias")))
            return Linear(cell, name, rank, alpha / rank)

        blocks = []
        for layer in (f"model.layers.{i}" for i in range(spec.layers)):
            linears = {name: dense(f"{layer}.{name}") for name in spec.linears()}
            names = ("input_layernorm", "post_attention_layernorm")
            norms = [Norm(values(f"{layer}.{name}.weight"), spec.rms_eps) for name in names]
            blocks.append(Block(spec, linears, norms))
        self.blocks = nn.CellList(blocks)
        self.norm = Norm(values("model.norm.weight"), spec.rms_eps)
        table = values("model.embed_tokens.weight")
        self.embedding = Parameter(Tensor(table), name="embedding", requires_grad=False)
        head = table if spec.tie else values("lm_head.weight")
        self.head = Parameter(Tensor(head), name="head", requires_grad=False)
        self.frequencies = Tensor(
            np.concatenate(2 * [spec.rope_theta ** -(np.arange(0, spec.head_dim, 2) / spec.head_dim)]),
            dtype=self.embedding.dtype,
        )

    def construct(self, ids: Tensor, labels: Tensor) -> Tensor:
        length = ids.shape[1]
        places = ops.arange(length)
        angles = places.astype(self.frequencies.dtype).expand_dims(1) * self.frequencies
        mask = (places.expand_dims(1) < places.expand_dims(0)).astype(angles.dtype) * -1e30
        x = ops.gather(self.embedding, ids, 0)
        for block in self.blocks:
            x = block(x, ops.cos(angles), ops.sin(angles), mask)
        logits = ops.dense(self.norm(x), self.head)[:, :-1]
        return ops.cross_entropy(logits.reshape((-1, logits.shape[-1])), labels[:, 1:].reshape(-1))
