"""Merging: base + LoRA adapter -> a Hugging Face folder, tensor by tensor at constant memory.

W + scale x B A is computed in float32 (float64 for a float64 base) and rounded once to the base's dtype,
to nearest even. Finite values beyond that dtype become its largest.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from tengtune import files
from tengtune.models import spec as specs
from tengtune.models.names import stored_tensors
from tengtune.models.spec import ModelSpec
from tengtune.ui import language
from tengtune.ui.lists import first_few, size
from tengtune.ui.problems import FAILED_RUN, UNFIT_MACHINE, Problem
from tengtune.weights.adapter import Adapter, read_adapter
from tengtune.weights.cast import cast, to_dtype
from tengtune.weights.companions import companions, copy_companions
from tengtune.weights.output import refuse_input
from tengtune.weights.pairs import Pair
from tengtune.weights.safetensors_io import INDEX, SHARD_BYTES, Advance, write_folder
from tengtune.weights.source import open_source, weight_files
from tengtune.weights.stacks import put_together
from tengtune.weights.stream import Array, TensorStream, blocks, non_finite, stream


@dataclass
class Merge:
    """A merge that was checked and is not yet written.

    base, folder: where model and adapter lie. Once written: saturated, tensors that the base's dtype was too
    small for; spoilt, those that came with NaN or infinite values from the base, unchanged.
    """

    base: Path
    folder: Path
    spec: ModelSpec
    source: Mapping[str, Array]
    adapter: Adapter
    saturated: list[str] = field(default_factory=list)
    spoilt: list[str] = field(default_factory=list)

    @property
    def nbytes(self) -> int:
        """Bytes of the weights that will be written."""
        return sum(array.nbytes for array in self.source.values())

    @property
    def changed(self) -> list[str]:
        """The tensors that will differ from the base's."""
        adapted = {f"{linear}.weight" for linear in self.adapter.pairs} | self.adapter.whole.keys()
        return [name for name in self.source if name in adapted]


def open_merge(base: Path, adapter: Path) -> Merge:
    """Read both folders' headers and check that they belong together; nothing is written. Raises Problem."""
    spec = specs.from_folder(base)
    merge = Merge(base, adapter, spec, open_source(base, spec), read_adapter(adapter))
    faults = list(_misfits(merge))
    if faults:
        named = merge.adapter.base or "-"
        raise Problem("merge.does_not_fit", where=adapter, faults=first_few(faults), base=named)
    return merge


def write_merge(
    merge: Merge, out: Path, shard_bytes: int = SHARD_BYTES, advance: Advance | None = None
) -> None:
    """Write the merged model to `out` atomically: weights, config.json, tokenizer files.

    `out` is replaced if it exists. The result is read back: names, shapes, and that all changed tensors
    are finite. Raises Problem: no space (before anything is written), NaN or infinite values.
    """
    refuse_input("merge.out_is_input", out, merge.base, merge.folder)
    # What a killed merge left would count as used space.
    files.remove(out.with_name(out.name + files.PARTIAL))
    need = merge.nbytes + sum(path.stat().st_size for path in companions(merge.base)) + 2**20
    free = files.free_bytes(out)
    if need > free:
        raise Problem("merge.no_space", where=out, exit_code=UNFIT_MACHINE, need=size(need), free=size(free))
    with files.atomic_folder(out) as folder:
        write_folder(folder, put_together(merge.spec, _tensors(merge)), shard_bytes, advance)
        copy_companions(merge.base, folder)
        _verify(folder, merge.spec, merge.changed, out)


def place_full(base: Path, full: Path, out: Path) -> bool:
    """Make `out` of fully tuned weights in `full` and the base's config and tokenizer, atomically.

    Weights are hard links where the file system has them, otherwise copies; True for links. All tensors
    are read and checked. Raises Problem as write_merge.
    """
    refuse_input("merge.out_is_input", out, base, full)
    paths, weight_map = weight_files(full)
    linked = True
    with files.atomic_folder(out) as folder:
        for path in [*paths, *([full / INDEX] if weight_map else [])]:
            linked = _link(path, folder / path.name) and linked
        copy_companions(base, folder)
        spec = specs.from_folder(folder)
        _verify(folder, spec, [name for name, _ in spec.tensors()], out)
    return linked


def _misfits(merge: Merge) -> Iterator[str]:
    """What of the adapter finds no place in the base."""
    shapes = {f"{n}.weight": (len(p.b), p.a.shape[1]) for n, p in merge.adapter.pairs.items()}
    shapes_whole = {name: array.shape for name, array in merge.adapter.whole.items()}
    for name, shape in [*shapes.items(), *shapes_whole.items()]:
        base = merge.source.get(name)
        if merge.spec.tie and name in ("lm_head.weight", "model.embed_tokens.weight"):
            yield language.say("merge.fault_tied", name=name)
        elif base is None:
            yield language.say("merge.fault_no_tensor", name=name)
        elif base.shape != shape:
            yield language.say("merge.fault_shape", name=name, found=list(shape), wanted=list(base.shape))
    yield from (language.say("merge.fault_not_there", name=name) for name in _missing(merge))


def _missing(merge: Merge) -> Iterator[str]:
    """Tensors of the base that the adapter's config says were trained, and for which its file has nothing."""
    claims, shapes = merge.adapter.claims, dict(merge.spec.tensors())
    adapted = {f"{linear}.weight" for linear in merge.adapter.pairs}
    for stored, canonical in stored_tensors(merge.spec).items():
        module, _, last = stored.rpartition(".")
        matrix = last == "weight" and len(shapes[canonical[0]]) == 2
        if claims.saves(module) or (last == "bias" and claims.trains_bias(module)):
            there = bool(merge.adapter.whole.keys() & {stored, *canonical})
        else:
            there = adapted.issuperset(canonical) or not (
                matrix and claims.resolved and claims.adapts(module)
            )
        if not there:
            yield stored


def _tensors(merge: Merge) -> Iterator[TensorStream]:
    """The merged model's canonical tensors in the base's dtypes."""
    pairs = {f"{linear}.weight": pair for linear, pair in merge.adapter.pairs.items()}
    for name, base in merge.source.items():
        value = merge.adapter.whole.get(name, base)
        if name in pairs:
            yield _merged(name, value, base.dtype, pairs[name], merge.saturated)
        elif name in merge.adapter.whole:
            yield cast(name, value, base.dtype, merge.saturated)
        else:
            yield _watched(stream(name, base), merge.spoilt)


def _watched(tensor: TensorStream, spoilt: list[str]) -> TensorStream:
    """The same stream; its name is put to `spoilt` if a value that passes is not finite."""

    def pieces() -> Iterator[Array]:
        for piece in tensor.pieces():
            if tensor.name not in spoilt and non_finite(piece):
                spoilt.append(tensor.name)
            yield piece

    return replace(tensor, pieces=pieces)


def _merged(
    name: str, base: Array, dtype: np.dtype[np.generic], pair: Pair, saturated: list[str]
) -> TensorStream:
    """W + scale x B A in blocks of rows."""
    wide = np.promote_types(base.dtype, np.float32)

    def pieces() -> Iterator[Array]:
        a = pair.a.astype(wide)
        for rows in blocks(base):
            block = pair.b[rows].astype(wide) @ a
            block *= pair.scale
            block += base[rows]
            merged, beyond = to_dtype(block, dtype)
            if beyond and name not in saturated:
                saturated.append(name)
            yield merged

    return TensorStream(name, base.shape, dtype, pieces)


def _link(path: Path, target: Path) -> bool:
    try:
        os.link(path, target)
    except OSError:
        shutil.copyfile(path, target)
        return False
    return True


def _verify(folder: Path, spec: ModelSpec, changed: Iterable[str], out: Path) -> None:
    """Read back what was written: whole, of the right shapes, and finite in the tensors that changed."""
    written = open_source(folder, spec)
    faults = [
        language.say("merge.fault_values", name=name, count=count)
        for name in changed
        if (count := non_finite(written[name]))
    ]
    if faults:
        raise Problem("merge.not_finite", where=out, exit_code=FAILED_RUN, faults=first_few(faults))
