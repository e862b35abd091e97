"""LoRA pairs of linears that stand for several: Qwen1's c_attn, with one A for q, k and v.

Taken apart, the three have the same A and each its rows of B. Put together, three that have different A make
one pair of three times the rank, whose A stacks theirs and whose B is block-diagonal: the same product. Three
whose A are the same make one pair again, and one pair that is block-diagonal is taken apart into three again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tengtune.models import names
from tengtune.weights.stream import Array, same_bits


@dataclass(frozen=True)
class Pair:
    """One linear's adapter: its weight becomes W + scale x B A. a [rank, in], b [out, rank]."""

    a: Array
    b: Array
    scale: float


def split_parts(linear: str, pair: Pair) -> dict[str, Pair]:
    """The pairs of the linear's parts, as views: equal shares of B's rows, and A for each."""
    parts = names.parts_of(linear)
    rows = len(pair.b) // len(parts)
    return {part: Pair(pair.a, pair.b[i * rows : (i + 1) * rows], pair.scale) for i, part in enumerate(parts)}


def own_block(pair: Pair, number: int, count: int) -> Pair:
    """Of the pair of part `number` of `count` its own block, if it comes from a block-diagonal one; otherwise
    the pair as it is."""
    rank = len(pair.a) // count
    own = slice(number * rank, (number + 1) * rank)
    outside = pair.b[:, : own.start], pair.b[:, own.stop :]
    if len(pair.a) % count or any(block.any() for block in outside):
        return pair
    return Pair(pair.a[own], np.ascontiguousarray(pair.b[:, own]), pair.scale)


def join_parts(tensors: Mapping[str, Array]) -> tuple[dict[str, Array], dict[str, int]]:
    """Adapter tensors with every group of parts made one linear; and the ranks of those that are
    block-diagonal.

    A part without an adapter gets rows of zeros. Tensors of no group stay as they are.
    """
    joined, ranks = dict(tensors), {}
    for linear in dict.fromkeys(
        names.whole_linear(lora[0]) for n in tensors if (lora := names.split_lora(n))
    ):
        parts = names.parts_of(linear)
        own = [part for part in parts if part != linear and part + names.LORA_A in tensors]
        if not own:
            continue
        each = [joined.pop(part + names.LORA_A) for part in own]
        blocks = {part: joined.pop(part + names.LORA_B) for part in own}
        if len(own) == len(parts) and all(same_bits(a, each[0]) for a in each):
            joined[linear + names.LORA_A] = each[0]
            joined[linear + names.LORA_B] = np.concatenate([blocks[part] for part in parts])
            continue
        a = np.concatenate(each)
        rows, column = len(blocks[own[0]]), 0
        b = np.zeros((rows * len(parts), len(a)), blocks[own[0]].dtype)
        for part, block in blocks.items():
            place = parts.index(part) * rows
            b[place : place + rows, column : column + block.shape[1]] = block
            column += block.shape[1]
        joined[linear + names.LORA_A], joined[linear + names.LORA_B], ranks[linear] = a, b, len(a)
    return joined, ranks
