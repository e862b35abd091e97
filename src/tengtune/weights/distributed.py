"""torch.distributed.checkpoint folders: `.metadata`, a pickle, says where in the files *.distcp the parts of
every tensor lie; a part is a torch.save archive of its own. Read by memory map, part by part."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from tengtune.ui.lists import first_few
from tengtune.ui.problems import Problem
from tengtune.weights import torch_zip
from tengtune.weights.inert_pickle import load_metadata
from tengtune.weights.stream import Array, Counted, Rows
from tengtune.weights.torch_pickle import is_text

METADATA = ".metadata"
_WRAPPERS = re.compile(r"(_fsdp_wrapped_module|_checkpoint_wrapped_module|_orig_mod)\.")
_EMBEDDING = re.compile(r"(.*?)(model\.embed_tokens|transformer\.wte)\.weight")
_OWN = re.compile(r"(model|transformer|lm_head)\.")


class Chunks(Counted):
    """A tensor over its parts, each at its offsets; only the rows asked for are copied."""

    def __init__(self, shape: tuple[int, ...], chunks: list[tuple[tuple[int, ...], Array]]) -> None:
        self.shape, self._chunks, self.dtype = shape, chunks, chunks[0][1].dtype

    def __getitem__(self, rows: slice) -> Array:
        start, stop = self.bounds(rows)
        result: Array = np.empty((stop - start, *self.shape[1:]), self.dtype)
        for offsets, part in self._chunks:
            low, high = max(start, offsets[0]), min(stop, offsets[0] + len(part))
            if low < high:
                across = tuple(slice(o, o + n) for o, n in zip(offsets[1:], part.shape[1:], strict=True))
                result[(slice(low - start, high - start), *across)] = part[
                    low - offsets[0] : high - offsets[0]
                ]
        return result


def open_checkpoint(folder: Path) -> tuple[list[Path], dict[str, Rows]]:
    """The files and, by name, the tensors of a checkpoint folder. Raises Problem: not whole, or damaged."""
    metadata = load_metadata(folder / METADATA)
    try:
        wanted = _tensors(metadata)
        places = {
            (index.fqn, tuple(index.offset or ())): info for index, info in metadata.storage_data.items()
        }
        files: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for name, (_, offsets) in wanted.items():
            for offset in offsets:
                info = places[name, offset]
                if getattr(info, "transform_descriptors", None):
                    raise Problem("convert.dist_transformed", where=folder, tensor=name)
                files[str(info.relative_path)].append((int(info.offset), int(info.length)))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise Problem("convert.bad_pickle", where=folder / METADATA, reason=repr(error)[:200]) from error
    if outside := [name for name in files if Path(name).name != name]:
        raise Problem("convert.bad_pickle", where=folder / METADATA, reason=outside[0][:200])
    parts = {file: torch_zip.open_items(folder / file, items) for file, items in files.items()}
    result: dict[str, Rows] = {}
    holes = []
    for name, (shape, offsets) in wanted.items():
        infos = [(offset, places[name, offset]) for offset in offsets]
        chunks = [(offset, parts[info.relative_path][info.offset]) for offset, info in infos]
        if chunks and _inside(shape, chunks) and _tile(shape, chunks):
            result[name] = Chunks(shape, chunks) if shape else chunks[0][1]
        else:
            holes.append(name)
    if holes:
        raise Problem("convert.dist_holes", where=folder, names=first_few(holes))
    return [folder / name for name in sorted(files)], model_names(result, folder)


def _tensors(metadata: Any) -> dict[str, tuple[tuple[int, ...], list[tuple[int, ...]]]]:
    """The tensors' shapes, and the offsets of their parts; entries of other kinds are left out."""
    return {
        name: (tuple(entry.size), [tuple(chunk.offsets) for chunk in entry.chunks])
        for name, entry in metadata.state_dict_metadata.items()
        if hasattr(entry, "chunks")
    }


def _inside(shape: tuple[int, ...], chunks: list[tuple[tuple[int, ...], Array]]) -> bool:
    """Whether all parts lie within the tensor and are of one dtype."""
    return len({part.dtype for _, part in chunks}) == 1 and all(
        len(offset) == part.ndim == len(shape)
        and all(o >= 0 and o + n <= length for o, n, length in zip(offset, part.shape, shape, strict=True))
        for offset, part in chunks
    )


def _tile(shape: tuple[int, ...], chunks: list[tuple[tuple[int, ...], Array]]) -> bool:
    """Whether parts that lie within the tensor fill it, every value once."""
    if sum(part.size for _, part in chunks) != prod(shape):
        return False
    begins = np.array([offset for offset, part in chunks if part.size], np.int64)
    ends = begins + np.array([part.shape for _, part in chunks if part.size], np.int64).reshape(begins.shape)
    overlaps = (
        (np.maximum(begins[n], begins[n + 1 :]) < np.minimum(ends[n], ends[n + 1 :])).all(axis=1).any()
        for n in range(len(begins) - 1)
    )
    return not any(overlaps)


def model_names(tensors: Mapping[str, Rows], where: Path) -> dict[str, Rows]:
    """A training's tensors by the names in the model: without what wraps it, without the optimizer's. Problem
    where two of them then have one name."""
    plain: dict[str, Rows] = {}
    stored: dict[str, str] = {}
    for name, rows in tensors.items():
        own = _WRAPPERS.sub("", name)
        if not is_text(name):
            raise Problem("convert.bad_pickle", where=where, reason=repr(name)[:200])
        if own in plain:
            raise Problem("convert.same_name", where=where, name=own, names=f"{stored[own]}\n{name}")
        plain[own], stored[own] = rows, name
    prefix = next((match[1] for name in plain if (match := _EMBEDDING.fullmatch(name))), "")
    inner = {name[len(prefix) :]: rows for name, rows in plain.items() if name.startswith(prefix)}
    return {name: rows for name, rows in inner.items() if _OWN.match(name)}
