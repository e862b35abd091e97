"""Rows that are longer than what a model was made for."""

from __future__ import annotations

from tengtune.models.spec import ModelSpec


def beyond(spec: ModelSpec, row_tokens: int) -> list[tuple[str, dict[str, object]]]:
    """What to tell of rows of so many tokens, as codes of texts with their values: nothing for a length that
    the model was made for. (Qwen1 stretches positions where it answers, not in training.)"""
    if row_tokens <= spec.max_positions:
        return []
    values: dict[str, object] = {"seq_len": row_tokens, "positions": spec.max_positions}
    return [("data.beyond_positions_qwen1" if spec.family == "qwen1" else "data.beyond_positions", values)]
