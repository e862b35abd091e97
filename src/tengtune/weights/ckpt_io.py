"""MindSpore .ckpt files, read as memory maps and written as streams.

The format (checkpoint.proto of MindSpore, and mindspore.save_checkpoint): Checkpoint{1: repeated Value},
Value{1: tag, 2: TensorProto}, TensorProto{1: dims, 2: tensor_type, 3: tensor_content}, all in protobuf's
wire format; contents little endian, C order. A tensor above 512 MiB stands as several Values of the same
tag, each with all dims and a part of the bytes. crc_check=True adds "crc_num" and 10 bytes, big endian:
the CRC-32 of all before. A text has type "str", dims [0] and UTF-32 content.
"""

from __future__ import annotations

import mmap
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby, islice
from pathlib import Path
from typing import IO, Any

import ml_dtypes
import numpy as np

from tengtune import files
from tengtune.ui import language
from tengtune.ui.lists import joined
from tengtune.ui.problems import Problem, os_errors
from tengtune.weights import wire
from tengtune.weights.safetensors_io import LFS, MAX_DIMS, Advance, file_size
from tengtune.weights.stream import PIECE_BYTES, Array, Counted, Rows, TensorStream, bytes_of

SLICE_BYTES = 512 * 2**20
"""MindSpore's own limit of one Value's content."""

TYPES: dict[str, np.dtype[Any]] = {
    "Float64": np.dtype("<f8"),
    "Float32": np.dtype("<f4"),
    "Float16": np.dtype("<f2"),
    "BFloat16": np.dtype(ml_dtypes.bfloat16),
    "Int64": np.dtype("<i8"),
    "Int32": np.dtype("<i4"),
    "Int16": np.dtype("<i2"),
    "Int8": np.dtype("i1"),
    "UInt64": np.dtype("<u8"),
    "UInt32": np.dtype("<u4"),
    "UInt16": np.dtype("<u2"),
    "UInt8": np.dtype("u1"),
    "Bool": np.dtype("?"),
}
_NAMES = {dtype: name for name, dtype in TYPES.items()}
_TEXT = "str"

_MAGIC = b"crc_num"
_TRAILER = len(_MAGIC) + 10
_MAX_NAME, _MAX_TEXT = 1000, 2**20
_MAX_VALUES = 100_000
"""Far above any model; a file of empty Values must not fill the memory."""

# Keys on the wire: field number << 3 | wire type.
_VALUE, _TAG, _TENSOR, _MAP = 0x0A, 0x0A, 0x12, 0x1A
_DIM, _PACKED_DIMS, _TYPE, _CONTENT = 0x08, 0x0A, 0x12, 0x1A


@dataclass
class _Value:
    """One Value: where it begins in the file, and its content's bytes (begin included, end not)."""

    offset: int
    tag: str = ""
    dims: list[int] = field(default_factory=list)
    kind: str = ""
    begin: int = 0
    end: int = 0


class Joined(Counted):
    """A tensor that lies in the file as several runs of bytes: only the rows asked for are copied."""

    def __init__(self, runs: list[Array], dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        self._runs, self.dtype, self.shape = runs, dtype, shape

    def __getitem__(self, rows: slice) -> Array:
        start, stop = self.bounds(rows)
        row = self.nbytes // len(self)
        begin, end = start * row, stop * row
        parts, offset = [], 0
        for run in self._runs:
            if offset < end and begin < offset + run.size:
                parts.append(run[max(0, begin - offset) : end - offset])
            offset += run.size
        data = parts[0] if len(parts) == 1 else np.concatenate([*parts, np.empty(0, np.uint8)])
        return data.view(self.dtype).reshape(-1, *self.shape[1:])


def open_file(path: Path) -> dict[str, Rows]:
    """The tensors of a file by name, in its order: read-only views of one memory map.

    A tensor in several pieces is a `Joined`; a text is a 0-d array of dtype U. Where the file has a CRC its
    bytes are read and checked; otherwise nothing is read before it is used, and damaged data or a file cut
    between two tensors cannot be seen. Raises Problem, naming file, tensor and offset, where the file does
    not keep to the format.
    """
    with os_errors(path):
        if not file_size(path, "ckpt.not_ckpt"):
            raise Problem("ckpt.not_ckpt", where=path)
        with open(path, "rb") as stream:
            mapped = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    if mapped[: len(LFS)] == LFS:
        raise Problem("weights.lfs_pointer", where=path, there=len(mapped))
    if mapped[0] != _VALUE:
        raise Problem("ckpt.not_ckpt", where=path)
    values = list(_scan(path, mapped))
    data = np.frombuffer(mapped, dtype=np.uint8)
    tensors: dict[str, Rows] = {}
    for tag, group in groupby(values, lambda value: value.tag):
        pieces = list(group)
        if tag in tensors:
            raise _fault(path, tag, pieces[0].offset, "twice")
        tensors[tag] = _tensor(path, data, pieces)
    return tensors


def has_crc(path: Path) -> bool:
    """Whether a file that was opened without a Problem ends with a CRC, which is then right."""
    with os_errors(path), open(path, "rb") as stream:
        stream.seek(-min(_TRAILER, path.stat().st_size), 2)
        return stream.read(len(_MAGIC)) == _MAGIC


def _scan(path: Path, mapped: mmap.mmap) -> Iterator[_Value]:
    """The Values of a file, each checked on its own; at the end the CRC, if there is one."""
    position, size, tag = 0, len(mapped), "-"
    for count in range(_MAX_VALUES + 1):
        if position == size:
            return
        if size - position == _TRAILER and mapped[position : position + len(_MAGIC)] == _MAGIC:
            _check_crc(path, mapped, position)
            return
        if mapped[position] != _VALUE or count == _MAX_VALUES:
            raise _fault(path, tag, position, "key")
        try:
            length, begin = wire.read_varint(mapped, position + 1, size)
            if length > size - begin:
                raise Problem("ckpt.truncated", where=path, there=size, declared=begin + length, tensor=tag)
            value = _value(path, mapped, position, begin, begin + length)
        except wire.WireError as error:
            raise _fault(path, tag, error.offset, error.reason) from error
        position, tag = begin + length, value.tag
        yield value


def _value(path: Path, mapped: mmap.mmap, offset: int, begin: int, end: int) -> _Value:
    """One Value: its two fields, each once and in order, as every protobuf library writes them."""
    value, seen = _Value(offset), 0
    for place, key, start, stop in wire.fields(mapped, begin, end):
        if key == _MAP and seen == _TAG:
            raise Problem("ckpt.hash_table", where=path, tensor=value.tag)
        if key != {0: _TAG, _TAG: _TENSOR}.get(seen):
            raise _fault(path, value.tag or "-", place, "key")
        seen = key
        if key == _TAG:
            value.tag = _text(path, mapped, start, stop)
        else:
            _read_tensor(path, mapped, value, start, stop)
    if seen != _TENSOR:
        raise _fault(path, value.tag or "-", offset, "fields")
    return value


def _read_tensor(path: Path, mapped: mmap.mmap, value: _Value, begin: int, end: int) -> None:
    """dims (each on its own, or packed), type, content."""
    seen = 0
    for place, key, start, stop in wire.fields(mapped, begin, end):
        if key in (_DIM, _PACKED_DIMS) and seen in (0, key):
            found = iter([start]) if key == _DIM else wire.packed(mapped, start, stop)
            value.dims += islice(found, MAX_DIMS + 1)
            if len(value.dims) > MAX_DIMS or max(value.dims, default=0) >= 2**62:
                raise _fault(path, value.tag, place, "dims")
        elif key == _TYPE and seen in (0, _DIM, _PACKED_DIMS):
            value.kind = _text(path, mapped, start, stop)
        elif key == _CONTENT and seen == _TYPE:
            value.begin, value.end = start, stop
        else:
            raise _fault(path, value.tag, place, "key")
        seen = key
    if seen != _CONTENT:
        raise _fault(path, value.tag, value.offset, "fields")


def _text(path: Path, mapped: mmap.mmap, begin: int, end: int) -> str:
    try:
        text = mapped[begin : min(end, begin + _MAX_NAME)].decode()
    except UnicodeDecodeError as error:
        raise _fault(path, "-", begin, "name") from error
    if not 0 < end - begin <= _MAX_NAME:
        raise _fault(path, "-", begin, "name")
    return text


def _tensor(path: Path, data: Array, pieces: list[_Value]) -> Rows:
    """The tensor that consecutive Values of one tag make."""
    first = pieces[0]
    if any((piece.dims, piece.kind) != (first.dims, first.kind) for piece in pieces):
        raise _fault(path, first.tag, first.offset, "pieces")
    runs = [data[piece.begin : piece.end] for piece in pieces]
    nbytes = sum(run.size for run in runs)
    if first.kind == _TEXT:
        return _unicode(path, first, b"".join(run[: _MAX_TEXT + 1].tobytes() for run in runs))
    dtype = TYPES.get(first.kind)
    if dtype is None:
        known = joined(TYPES)
        raise Problem("weights.unknown_dtype", where=path, tensor=first.tag, dtype=first.kind, known=known)
    # A scalar has no dims; MindSpore also takes dims [0] for one.
    shape = () if first.dims == [0] and nbytes else tuple(first.dims)
    wanted = extent = dtype.itemsize
    for length in shape:
        wanted, extent = wanted * length, extent * max(1, length)
    if extent >= 2**62:  # NumPy refuses such a shape even where a zero makes the tensor empty
        raise _fault(path, first.tag, first.offset, "dims")
    if wanted != nbytes:
        raise _fault(path, first.tag, first.offset, "size")
    if len(runs) == 1:
        return runs[0].view(dtype).reshape(shape)
    if not shape or not nbytes:
        whole: Array = np.concatenate(runs).view(dtype).reshape(shape)
        return whole
    return Joined(runs, dtype, shape)


def _unicode(path: Path, value: _Value, content: bytes) -> Array:
    try:
        text = content.decode("utf-32-le")
    except UnicodeDecodeError as error:
        raise _fault(path, value.tag, value.offset, "text") from error
    if value.dims != [0] or len(content) > _MAX_TEXT:
        raise _fault(path, value.tag, value.offset, "text")
    return np.array(text)


def _check_crc(path: Path, mapped: mmap.mmap, end: int) -> None:
    wanted, crc = int.from_bytes(mapped[end + len(_MAGIC) :], "big"), 0
    with memoryview(mapped) as view:
        for start in range(0, end, PIECE_BYTES):
            crc = zlib.crc32(view[start : min(end, start + PIECE_BYTES)], crc)
    if crc != wanted:
        raise Problem("weights.bad_crc", where=path, wanted=wanted, found=crc)


def _fault(path: Path, tag: str, offset: int, reason: str) -> Problem:
    text = language.say(f"ckpt.fault_{reason}")
    return Problem("ckpt.bad_record", where=path, tensor=tag[:200], offset=offset, reason=text)


class _Sink:
    """A file and the CRC of what went into it."""

    def __init__(self, stream: IO[bytes], crc: bool) -> None:
        self.stream, self.wanted, self.crc = stream, crc, 0

    def write(self, data: bytes | memoryview) -> None:
        self.stream.write(data)
        if self.wanted:
            self.crc = zlib.crc32(data, self.crc)


def write_file(
    path: Path,
    tensors: Iterable[TensorStream],
    advance: Advance | None = None,
    *,
    crc: bool = False,
    limit: int = SLICE_BYTES,
) -> None:
    """Write one file, atomically, byte for byte as mindspore.save_checkpoint does (crc: crc_check=True).

    A tensor of more than `limit` bytes is cut at every multiple of it. Raises Problem for a tensor without
    values, which the format cannot hold, and ValueError for two tensors of one name.
    """
    names: set[str] = set()
    with files.atomic_file(path) as stream:
        sink = _Sink(stream, crc)
        for tensor in tensors:
            if tensor.name in names:
                raise ValueError(f"{tensor.name} comes twice")
            names.add(tensor.name)
            if not tensor.nbytes:
                raise Problem("ckpt.empty_tensor", where=path, tensor=tensor.name)
            _write_tensor(sink, tensor, limit, advance)
        if crc:
            stream.write(_MAGIC + sink.crc.to_bytes(_TRAILER - len(_MAGIC), "big"))


def _write_tensor(sink: _Sink, tensor: TensorStream, limit: int, advance: Advance | None) -> None:
    rest, room = tensor.nbytes, 0
    for piece in bytes_of(tensor):
        left = piece.data
        while left:
            if not room:
                room = min(limit, rest)
                rest -= room
                sink.write(_head(tensor, room))
            sink.write(left[:room])
            left, room = left[room:], max(0, room - len(left))
        if advance:
            advance(piece.size)


def _head(tensor: TensorStream, content: int) -> bytes:
    """What stands before the content: Value, tag, TensorProto, dims, type, the content's key and length."""
    text = tensor.dtype.kind == "U"
    kind = _TEXT if text else _NAMES[tensor.dtype]
    before = wire.repeated(1, [0] if text else tensor.shape) + wire.message(2, kind.encode())
    before += wire.head(3, content)
    tag = wire.message(1, tensor.name.encode())
    proto = wire.head(2, len(before) + content)
    return wire.head(1, len(tag) + len(proto) + len(before) + content) + tag + proto + before
