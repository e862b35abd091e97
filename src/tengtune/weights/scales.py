"""The scale of each of an adapter's linears, as the adapter_config.json beside it tells."""

from __future__ import annotations

import math
from collections.abc import Mapping

from tengtune.json_file import read_object
from tengtune.models import layouts, names
from tengtune.ui.problems import Problem
from tengtune.weights.adapter import CONFIG, scale_by_module
from tengtune.weights.found import Found


def scales(found: Found) -> dict[str, float] | None:
    """By the linear's canonical name, of Qwen1's c_attn by those of its parts; None where no config tells."""
    path = (found.path if found.path.is_dir() else found.path.parent) / CONFIG
    if found.family is None or found.layout is None or not path.is_file():
        return None
    try:
        scale = scale_by_module(read_object(path, "adapter.bad_json"), path)
    except Problem:
        return None
    result: dict[str, float] = {}
    for stored in found.lora:
        own = names.from_peft(stored)
        module = names.peft_module(stored) if own else stored
        own = own or layouts.canonical_name(stored, found.family, found.layout)
        if own is not None and (lora := names.split_lora(own)) is not None:
            result |= dict.fromkeys(names.parts_of(lora[0]), scale(module))
    return result


def other_scales(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, tuple[float, float]]:
    """The linears that both have, but for scales that are the same."""
    both = {linear: (scale, other[linear]) for linear, scale in one.items() if linear in other}
    return {linear: pair for linear, pair in both.items() if not math.isclose(*pair, rel_tol=1e-6)}
