"""Qwen1 on texts longer than it was trained at; the formulas are in models/spec.py.

Evaluation and answers only: training never stretches.

Legend: T tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tengtune.models.spec import ModelSpec

Piece = tuple[range, int]
"""Positions of tokens of one text, and how many tokens the text has where RoPE's base is chosen."""


@dataclass(frozen=True)
class Stretched:
    """bases: RoPE's base for each token; queries: what its query is multiplied by. Both [T,1,1], float32."""

    bases: Tensor
    queries: Tensor


def stretched(spec: ModelSpec, pieces: Sequence[Piece], device: torch.device) -> Stretched | None:
    """What the pieces laid end to end need; None where no text is longer than the model was trained at."""
    stretch = spec.stretch
    if stretch is None or all(max(piece.stop, tokens) <= stretch.length for piece, tokens in pieces):
        return None
    bases, queries = [], []
    for piece, tokens in pieces:
        bases += [spec.rope_theta * stretch.base_factor(tokens, spec.head_dim)] * len(piece)
        queries += [stretch.query_factor(position) for position in piece]
    found = (torch.tensor(values, dtype=torch.float32, device=device) for values in (bases, queries))
    return Stretched(*(values.view(-1, 1, 1) for values in found))
