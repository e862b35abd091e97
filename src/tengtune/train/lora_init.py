"""The start of a LoRA adapter, made without a framework so that both back ends begin at the same numbers.

B starts at zero, so the tuned model starts as the base model; only A needs a draw.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt


def initial_a(seed: int, name: str, rank: int, in_features: int) -> npt.NDArray[np.float32]:
    """The first A of one linear, [rank, in_features] float32.

    PEFT's default, Kaiming uniform with a = sqrt(5): uniform in +-sqrt(6 / ((1 + 5) x in)) = +-1/sqrt(in).
    `name` is the tensor's canonical name (`model.layers.0.self_attn.q_proj.lora_A.weight`); the draw
    depends on the run's seed and on it alone, not on the order in which adapters are made.
    """
    words = np.frombuffer(hashlib.sha256(name.encode()).digest(), dtype="<u4")
    generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, *map(int, words)])))
    bound = np.float32(1.0 / np.sqrt(in_features))
    return (generator.random((rank, in_features), dtype=np.float32) * 2 - 1) * bound
