"""The published Qwen models by name: facts/models.csv, read as ModelSpecs."""

from __future__ import annotations

import functools
import re
from typing import Literal, cast

from tengtune import facts
from tengtune.models.hub_id import SAME_SHAPE, joined, nearest
from tengtune.models.spec import Family, ModelSpec
from tengtune.ui import lists

_SUFFIXES = ("-chat", "-instruct", "-base")


@functools.cache
def table() -> dict[str, ModelSpec]:
    """Every model of facts/models.csv by name."""
    return {row["name"]: _spec(row) for row in facts.rows("models.csv")}


def spec(text: str) -> ModelSpec | None:
    """The spec of a model by its name, with or without its owner and -Chat, -Instruct or -Base, in any case
    and however its parts are joined: Qwen14B, qwen_14b, qwen1.8b."""
    wanted = joined(text.rstrip("/").split("/")[-1])
    wanted = next((joined(base) for name, base in SAME_SHAPE.items() if joined(name) == wanted), wanted)
    for suffix in _SUFFIXES:
        wanted = wanted.removesuffix(joined(suffix))
    return next((each for name, each in table().items() if joined(name) == wanted), None)


Unfit = Literal["quantized", "moe", "media"]
_UNFIT: dict[Unfit, re.Pattern[str]] = {
    "quantized": re.compile(
        r"gptq|awq|gguf|(?<![a-z])(?:int[48]|fp8|[48]bit|w\d+a\d+|bnb|nf4|mlx)(?![a-z\d])"
    ),
    "moe": re.compile(r"(?<![a-z])moe(?![a-z])|(?<![a-z\d])a\d+(?:\.\d+)?b(?![a-z\d])"),
    "media": re.compile(r"(?<![a-z])(?:vl|audio|omni|image|tts|asr|qvq)(?![a-z])"),
}


def unfit(text: str) -> Unfit | None:
    """What a published model's name says of it that is not trained here: weights in few bits, experts of
    which a token uses some (30B-A3B), or images and sound."""
    name = text.rstrip("/").split("/")[-1].lower()
    return next((kind for kind, pattern in _UNFIT.items() if pattern.search(name)), None)


def near(text: str) -> str:
    """Known names that look like `text`."""
    return lists.joined(nearest(text) or ["Qwen/Qwen-14B-Chat", "Qwen/Qwen2.5-7B-Instruct"])


def _spec(row: dict[str, str]) -> ModelSpec:
    family = row["family"] if row["family"] in ("qwen1", "qwen3") else "qwen2"
    return ModelSpec(
        family=cast(Family, family),
        hidden=int(row["hidden"]),
        layers=int(row["layers"]),
        heads=int(row["heads"]),
        kv_heads=int(row["kv_heads"]),
        head_dim=int(row["head_dim"]),
        ffn=int(row["ffn"]),
        vocab=int(row["vocab"]),
        rope_theta=float(row["rope_theta"]),
        rms_eps=float(row["rms_eps"]),
        max_positions=int(row["max_pos"]),
        tie=row["tie"] == "1",
        qkv_bias=row["qkv_bias"] == "1",
        qk_norm=row["qk_norm"] == "1",
    )
