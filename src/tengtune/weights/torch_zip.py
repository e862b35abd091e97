"""PyTorch's own weight files (.bin, .pt), read as memory maps; nothing in them is run.

The format (torch.save since 1.6): a zip archive of uncompressed entries. `<root>/data.pkl` is a pickle that
describes the tensors (torch_pickle.py); `<root>/data/<key>` holds the bytes of one storage, which tensors may
share; `<root>/byteorder` names their order, little where it is missing.
"""

from __future__ import annotations

import math
import mmap
import struct
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import IO, cast

import numpy as np

from tengtune.ui import language
from tengtune.ui.problems import Problem, os_errors
from tengtune.weights.safetensors_io import LFS, MAX_DIMS, MAX_HEADER, file_size
from tengtune.weights.stream import Array
from tengtune.weights.torch_pickle import Fault, Storage, TensorInfo, read_tensor, read_tensors

_ZIP, _LEGACY = b"PK\x03\x04", b"\x80"
_LOCAL_HEADER = 30
_ENCRYPTED = 1


def open_file(path: Path) -> dict[str, Array]:
    """The tensors of a file by name: read-only views of one memory map, nothing is read before it is used.

    Raises Problem, naming file and cause, for anything but a whole archive of a plain dict of tensors.
    """
    with os_errors(path):
        size = file_size(path, "weights.not_torch")
        with open(path, "rb") as stream:
            head = stream.read(64)
            if head.startswith(LFS):
                raise Problem("weights.lfs_pointer", where=path, there=size)
            if not head.startswith(_ZIP):
                raise Problem(
                    "weights.torch_legacy" if head.startswith(_LEGACY) else "weights.not_torch", where=path
                )
            mapped = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    archive = _Archive(path, np.frombuffer(mapped, dtype=np.uint8))
    try:
        tensors = read_tensors(archive.pickle())
    except Fault as fault:
        raise _problem(path, fault) from fault
    return {name: archive.tensor(name, info) for name, info in tensors.items()}


def open_items(path: Path, items: Iterable[tuple[int, int]]) -> dict[int, Array]:
    """The tensors that lie in a file as archives of their own, one each: (where it begins, its length) ->
    by where it begins the tensor, as a read-only view. Raises Problem as open_file."""
    with os_errors(path), open(path, "rb") as stream:
        data = np.frombuffer(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ), dtype=np.uint8)
    tensors = {}
    for begin, length in items:
        if not 0 <= begin <= begin + length <= data.size:
            raise Problem("weights.torch_cut", where=path, there=data.size)
        archive = _Archive(path, data[begin : begin + length])
        try:
            tensors[begin] = archive.tensor(str(begin), read_tensor(archive.pickle()))
        except Fault as fault:
            raise _problem(path, fault) from fault
    return tensors


class _Window:
    """Bytes in memory as a file that a zip can be read from, without a copy of them all."""

    def __init__(self, data: Array) -> None:
        self._data, self._place = data, 0

    def seek(self, offset: int, whence: int = 0) -> int:
        place = offset + (0, self._place, self._data.size)[whence]
        if place < 0:
            raise ValueError("before the beginning")
        self._place = place
        return place

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._place

    def read(self, count: int = -1) -> bytes:
        stop = self._data.size if count < 0 else self._place + count
        piece: bytes = self._data[self._place : stop].tobytes()
        self._place += len(piece)
        return piece


class _Archive:
    """The entries of the zip, as slices of the map."""

    def __init__(self, path: Path, data: Array) -> None:
        self.path, self.data = path, data
        try:
            with zipfile.ZipFile(cast("IO[bytes]", _Window(data))) as archive:
                self.entries = {info.filename: info for info in archive.infolist()}
        except (zipfile.BadZipFile, ValueError, NotImplementedError, struct.error) as error:
            raise Problem("weights.torch_cut", where=path, there=self.data.size) from error
        roots = [name[: -len("data.pkl")] for name in self.entries if name.endswith("/data.pkl")]
        if len(roots) != 1:
            raise Problem("weights.not_torch", where=path)
        self.root = roots[0]
        if f"{self.root}byteorder" in self.entries and self.bytes("byteorder").tobytes() != b"little":
            raise self.damaged("byteorder", "byteorder")

    def pickle(self) -> bytes:
        raw = self.bytes("data.pkl")
        if raw.size > MAX_HEADER:
            raise self.damaged("data.pkl", "entry")
        return raw.tobytes()

    def bytes(self, name: str) -> Array:
        """An entry's bytes. Where they begin, only the entry's own header says."""
        info = self.entries.get(self.root + name)
        if info is None or info.compress_type != zipfile.ZIP_STORED or info.flag_bits & _ENCRYPTED:
            raise self.damaged(name, "entry")
        head = self.data[info.header_offset : info.header_offset + _LOCAL_HEADER].tobytes()
        if len(head) < _LOCAL_HEADER or not head.startswith(_ZIP):
            raise self.damaged(name, "entry")
        lengths = int.from_bytes(head[26:28], "little") + int.from_bytes(head[28:30], "little")
        begin = info.header_offset + _LOCAL_HEADER + lengths
        if begin + info.file_size > self.data.size:
            raise self.damaged(name, "entry")
        return self.data[begin : begin + info.file_size]

    def tensor(self, name: str, info: TensorInfo) -> Array:
        """The view that the pickle describes, after a look at its bounds."""
        shape, strides, width = info.shape, info.strides, info.storage.dtype.itemsize
        if len(shape) != len(strides) or len(shape) > MAX_DIMS or min((*shape, *strides, info.offset)) < 0:
            raise self.damaged(name, "shape")
        values, count = self.values(info.storage), math.prod(shape)
        last = info.offset + sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True))
        if count == 0:
            strides = (0,) * len(shape)
        # More values than the storage has would be one value many times (an expanded tensor).
        if math.prod(max(1, n) for n in shape) >= 2**62 or (
            count and (last >= info.storage.count or count > info.storage.count)
        ):
            raise self.damaged(name, "shape")
        begin = info.offset * width if count else 0
        return np.ndarray(shape, info.storage.dtype, values, begin, tuple(n * width for n in strides))

    def values(self, storage: Storage) -> Array:
        """A storage's bytes, all of them there."""
        entry = self.bytes(f"data/{storage.key}")
        if entry.size < storage.count * storage.dtype.itemsize:
            raise self.damaged(f"data/{storage.key}", "size")
        return entry

    def damaged(self, what: str, kind: str) -> Problem:
        reason = language.say(f"weights.torch_{kind}")
        return Problem("weights.torch_damaged", where=self.path, what=what[:200], reason=reason)


def _problem(path: Path, fault: Fault) -> Problem:
    if fault.kind == "global":
        return Problem("weights.torch_code", where=path, name=fault.found)
    if fault.kind == "opcode":
        return Problem("weights.torch_code", where=path, name=f"pickle {fault.found}")
    return Problem("weights.torch_not_tensors", where=path, reason=fault.found)
