"""What a run has trained, written where the merge finds it: `adapter/` (PEFT) or `full/` (whole weights)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tengtune import files
from tengtune.models.spec import ModelSpec
from tengtune.models.targets import find_targets, target_modules
from tengtune.recipe import Lora
from tengtune.weights.adapter import write_adapter
from tengtune.weights.safetensors_io import write_folder
from tengtune.weights.source import open_source
from tengtune.weights.stacks import put_together
from tengtune.weights.stream import Array, stream


def write_lora(folder: Path, spec: ModelSpec, lora: Lora, tensors: Mapping[str, Array], base: Path) -> None:
    """The trained tensors, by canonical name, as a PEFT adapter for the model in `base`."""
    write_adapter(
        folder,
        tensors,
        rank=lora.rank,
        alpha=lora.alpha,
        targets=target_modules(spec, find_targets(spec, lora.targets)),
        base=str(base),
        family=spec.family,
    )


def write_full(folder: Path, spec: ModelSpec, tensors: Mapping[str, Array], base: Path) -> None:
    """All tensors, by canonical name, in the base's names and dtypes."""
    source = open_source(base, spec)
    streams = [stream(name, tensors[name], old.dtype) for name, old in source.items()]
    with files.atomic_folder(folder) as partial:
        write_folder(partial, put_together(spec, streams))
