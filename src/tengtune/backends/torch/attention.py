"""Causal attention that never leaves a document.

Legend: T tokens, N query heads, G key-value heads, D head size, L tokens of one document.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from tengtune.train.batch import Int32


def document_lengths(segment: Int32) -> list[int]:
    """Lengths of the runs of equal document number in segment [B,S], row after row; padding is a run."""
    starts = np.ones(segment.shape, bool)
    starts[:, 1:] = segment[:, 1:] != segment[:, :-1]
    edges = np.append(np.flatnonzero(starts), segment.size)
    return [int(length) for length in np.diff(edges)]


def attention(q: Tensor, k: Tensor, v: Tensor, lengths: Sequence[int]) -> Tensor:
    """q [T,N,D], k and v [T,G,D] -> [T,N,D]; `lengths` of the documents, T in all.

    Document by document: a mask for the whole row costs 2 to 4 times as much on a CPU.
    """
    parts = zip(*(torch.split_with_sizes(x, list(lengths)) for x in (q, k, v)), strict=True)
    return torch.cat([causal(*part) for part in parts])


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention in one document: q [L,N,D], k and v [L,G,D] -> [L,N,D]."""
    length, heads, size = q.shape
    groups = k.shape[1]
    # Each key head is a batch entry, seen by its N/G query heads through a view: no copy.
    queries = q.view(length, groups, heads // groups, size).permute(1, 2, 0, 3)
    keys, values = (
        x.permute(1, 0, 2).unsqueeze(1).expand(groups, heads // groups, length, size) for x in (k, v)
    )
    out = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
    return out.permute(2, 0, 1, 3).reshape(length, heads, size)
