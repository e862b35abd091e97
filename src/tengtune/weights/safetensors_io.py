"""safetensors files, read as memory maps and written as streams.

The format (as the safetensors README gives it): 8 bytes, little endian, the header's length N; N bytes of
JSON, {name: {"dtype", "shape", "data_offsets": [begin, end]}} with offsets into the data, and "__metadata__"
with texts; then the data, little endian, C order, without holes.
"""

from __future__ import annotations

import json
import mmap
import stat
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import ml_dtypes
import numpy as np

from tengtune import files
from tengtune.json_file import parse_object
from tengtune.ui import language
from tengtune.ui.lists import joined
from tengtune.ui.problems import Problem, os_errors
from tengtune.weights.stream import Array, TensorStream, blocks, bytes_of

SHARD_BYTES = 5 * 10**9
"""Hugging Face's own size of one file of a large model."""

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
METADATA = "__metadata__"

MAX_HEADER = 16 * 2**20
"""Room for 100,000 tensors. The format allows 100 MB, which as Python objects would take gigabytes."""

_DTYPES: dict[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "I16": np.dtype("<i2"),
    "I8": np.dtype("i1"),
    "U64": np.dtype("<u8"),
    "U32": np.dtype("<u4"),
    "U16": np.dtype("<u2"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
}
_CODES = {dtype: code for code, dtype in _DTYPES.items()}
LFS = b"version https://git-lfs"
MAX_DIMS = 8

Advance = Callable[[int], None]
"""Called with the bytes just written."""


@dataclass(frozen=True)
class _Entry:
    """One tensor in the data: bytes begin (included) to end (not included)."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    begin: int
    end: int


def open_file(path: Path) -> dict[str, Array]:
    """The tensors of a file by name: read-only views of one memory map, nothing is read before it is used.

    The map is shared and read-only, so that a file larger than the memory can be mapped.
    Raises Problem, naming file and tensor, where the file does not keep to the format, or its data to the
    checksum that MindSpore may have put into the header.
    """
    with os_errors(path):
        size = file_size(path, "weights.not_safetensors")
        with open(path, "rb") as stream:
            entries, start, crc = _read_header(path, stream, size)
            data = np.frombuffer(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ), dtype=np.uint8)
    raw = {e.name: data[start + e.begin : start + e.end] for e in entries}
    if crc is not None:
        _check_crc(path, raw, crc)
    return {e.name: raw[e.name].view(e.dtype).reshape(e.shape) for e in entries}


def write_file(path: Path, tensors: Iterable[TensorStream], advance: Advance | None = None) -> None:
    """Write one file, atomically. Wide dtypes go first, so that every tensor is aligned to its own size.
    Problem, before anything is written, for a tensor of the name that the format keeps for itself."""
    tensors = list(tensors)
    if any(tensor.name == METADATA for tensor in tensors):
        raise Problem("weights.reserved_name", where=path, name=METADATA)
    ordered = sorted(tensors, key=lambda t: -t.dtype.itemsize)
    header: dict[str, Any] = {METADATA: {"format": "pt"}}  # transformers refuses a file without it
    offset = 0
    for tensor in ordered:
        header[tensor.name] = {
            "dtype": _CODES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + tensor.nbytes],
        }
        offset += tensor.nbytes
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with files.atomic_file(path) as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        for tensor in ordered:
            _write_tensor(stream, tensor, advance)


def _write_tensor(stream: IO[bytes], tensor: TensorStream, advance: Advance | None) -> None:
    """Nothing of the tensor is held any more when the next one's pieces are made."""
    for data in bytes_of(tensor):
        stream.write(data.data)
        if advance:
            advance(data.size)


def write_folder(
    folder: Path,
    tensors: Sequence[TensorStream],
    shard_bytes: int = SHARD_BYTES,
    advance: Advance | None = None,
    index_name: str = INDEX,
) -> list[str]:
    """Write a model's tensors into `folder`: one file, or `model-0000i-of-0000n.safetensors` of at most
    `shard_bytes` (more where a single tensor is larger) and the index, written last. The names written."""
    shards = list(_shards(tensors, shard_bytes))
    if len(shards) == 1:
        write_file(folder / SINGLE, shards[0], advance)
        return [SINGLE]
    names = [f"model-{i:05}-of-{len(shards):05}.safetensors" for i in range(1, len(shards) + 1)]
    for name, shard in zip(names, shards, strict=True):
        write_file(folder / name, shard, advance)
    index = {
        "metadata": {"total_size": sum(t.nbytes for t in tensors)},
        "weight_map": {t.name: name for name, shard in zip(names, shards, strict=True) for t in shard},
    }
    files.write_text(folder / index_name, json.dumps(index, ensure_ascii=False, indent=1) + "\n")
    return [*names, index_name]


def _shards(tensors: Sequence[TensorStream], shard_bytes: int) -> Iterator[list[TensorStream]]:
    """The tensors in order, cut before the one that would exceed the size."""
    shard: list[TensorStream] = []
    filled = 0
    for tensor in tensors:
        if shard and filled + tensor.nbytes > shard_bytes:
            yield shard
            shard, filled = [], 0
        shard.append(tensor)
        filled += tensor.nbytes
    yield shard


def _check_crc(path: Path, raw: dict[str, Array], wanted: str) -> None:
    """Compare with `crc_num` of mindspore.save_checkpoint(crc_check=True): over names and data, by name."""
    crc = 0
    for name in sorted(raw):
        crc = zlib.crc32(name.encode(), crc)
        for block in blocks(raw[name]):
            crc = zlib.crc32(raw[name][block].data, crc)
    if str(crc) != wanted:
        raise Problem("weights.bad_crc", where=path, wanted=wanted[:20], found=crc)


def _read_header(path: Path, stream: IO[bytes], size: int) -> tuple[list[_Entry], int, str | None]:
    """The checked entries in the order of their data, where the data begins, MindSpore's checksum if any."""
    prefix = stream.read(8)
    length = int.from_bytes(prefix, "little")
    begin = stream.read(min(length, 1))
    if prefix + begin == LFS[:9] and (prefix + begin + stream.read(len(LFS))).startswith(LFS):
        raise Problem("weights.lfs_pointer", where=path, there=size)
    cut = 0 < length <= MAX_HEADER and 8 + length > size and begin in (b"", b"{")
    if size < 8 or cut:
        raise Problem("weights.truncated", where=path, there=size, declared=8 + length if cut else 8)
    if begin != b"{" or length > MAX_HEADER:
        raise Problem("weights.not_safetensors", where=path, length=length)
    header = parse_object(begin + stream.read(length - 1), path, "weights.bad_json")
    metadata = header.pop(METADATA, None)
    crc = metadata.get("crc_num") if isinstance(metadata, dict) else None
    entries = sorted((_entry(path, *item) for item in header.items()), key=lambda e: (e.begin, e.end))
    end = 0
    for entry in entries:
        if entry.begin != end:
            raise _fault(path, entry.name, "hole" if entry.begin > end else "overlap")
        end = entry.end
    if 8 + length + end > size:
        raise Problem("weights.truncated", where=path, there=size, declared=8 + length + end)
    if 8 + length + end < size:
        raise Problem("weights.too_long", where=path, there=size, declared=8 + length + end)
    return entries, 8 + length, None if crc is None else str(crc)


def file_size(path: Path, code: str) -> int:
    """The size of a file; a pipe or a device, which cannot be mapped and may block, is Problem `code`."""
    info = path.stat()
    if not stat.S_ISREG(info.st_mode) and not stat.S_ISDIR(info.st_mode):
        raise Problem(code, where=path, length=0)
    return info.st_size


def _entry(path: Path, name: str, fields: object) -> _Entry:
    """One entry of the header, checked on its own."""
    if not isinstance(fields, dict) or not {"dtype", "shape", "data_offsets"} <= fields.keys():
        raise _fault(path, name, "fields")
    code, shape, offsets = fields["dtype"], fields["shape"], fields["data_offsets"]
    dtype = _DTYPES.get(code) if isinstance(code, str) else None
    if dtype is None:
        raise Problem(
            "weights.unknown_dtype",
            where=path,
            tensor=name[:200],
            dtype=str(code)[:50],
            known=joined(_DTYPES),
        )
    if not _naturals(shape) or len(shape) > MAX_DIMS:
        raise _fault(path, name, "shape")
    if not _naturals(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise _fault(path, name, "offsets")
    nbytes = extent = dtype.itemsize
    for length in shape:
        nbytes, extent = nbytes * length, extent * max(1, length)
    if extent >= 2**62:  # NumPy refuses such a shape even where a zero makes the tensor empty
        raise _fault(path, name, "shape")
    if offsets[1] - offsets[0] != nbytes:
        raise _fault(path, name, "size")
    return _Entry(name, dtype, tuple(shape), offsets[0], offsets[1])


def _naturals(value: object) -> bool:
    """Whether a JSON value is a list of integers from 0 to 2**62."""
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 2**62 for item in value)


def _fault(path: Path, name: str, reason: str) -> Problem:
    text = language.say(f"weights.fault_{reason}")
    return Problem("weights.bad_tensor", where=path, tensor=name[:200], reason=text)
