"""facts/docker.yaml and facts/images.yaml."""

from __future__ import annotations

import functools
from importlib import resources
from typing import Any

import yaml


@functools.cache
def read(name: str) -> dict[str, Any]:
    """facts/<name>.yaml, parsed."""
    text = resources.files("tengtune.facts").joinpath(f"{name}.yaml").read_text(encoding="utf-8")
    loaded: dict[str, Any] = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return loaded
