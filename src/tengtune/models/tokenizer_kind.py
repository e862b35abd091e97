"""What kind of tokenizer a tokenizer.json describes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def is_byte_level(document: Mapping[str, Any]) -> bool:
    """Whether a parsed tokenizer.json is a BPE over bytes, as every Qwen's is: its decoder tells, as pieces
    of text may be cut in several ways before. KeyError, TypeError or AttributeError where it is malformed."""
    decoder = document.get("decoder") or {}
    parts = decoder.get("decoders", [decoder])
    return document["model"]["type"] == "BPE" and any(part.get("type") == "ByteLevel" for part in parts)
