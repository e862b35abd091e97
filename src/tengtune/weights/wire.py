"""Protobuf's wire format by hand: what a MindSpore checkpoint or strategy file is made of.

Format: the Protocol Buffers encoding reference. A message is a row of fields; a field is a varint key
(number << 3 | wire type) and a varint, 8 bytes, 4 bytes, or a varint length and as many bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_FIXED = {FIXED64: 8, FIXED32: 4}
_MAX_VARINT = 10
"""Bytes of the longest varint: 64 bits, 7 in each."""


class Buffer(Protocol):
    """Bytes in memory or in a mapped file."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> int: ...


class WireError(ValueError):
    """Bytes that are no message. reason: varint, key, length."""

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(f"{reason} at byte {offset}")
        self.offset, self.reason = offset, reason


def fields(data: Buffer, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """The fields of the message in data[start:end], in order: (offset, key, begin, end).

    For a varint, `begin` is its value (unsigned, 64 bits) and `end` where it ends; otherwise the two
    bound the payload. Nothing but keys and lengths is read. Raises WireError.
    """
    position = start
    while position < end:
        offset = position
        key, position = read_varint(data, position, end)
        kind = key & 7
        if key >> 3 == 0 or key >= 2**32 or kind not in (VARINT, BYTES, *_FIXED):
            raise WireError(offset, "key")
        value, length = position, _FIXED.get(kind, 0)
        if kind == VARINT:
            value, position = read_varint(data, position, end)
        elif kind == BYTES:
            length, position = read_varint(data, position, end)
            value = position
        if length > end - position:
            raise WireError(offset, "length")
        position += length
        yield offset, key, value, position


def read_varint(data: Buffer, position: int, end: int) -> tuple[int, int]:
    """(value, position after it): 7 bits a byte, least significant first, in its shortest form."""
    value = 0
    for count in range(min(_MAX_VARINT, end - position)):
        byte = data[position + count]
        value |= (byte & 0x7F) << (7 * count)
        if byte < 0x80:
            if value >= 2**64 or (byte == 0 and count > 0):
                break
            return value, position + count + 1
    raise WireError(position, "varint")


def packed(data: Buffer, start: int, end: int) -> Iterator[int]:
    """The varints of a packed repeated field."""
    while start < end:
        value, start = read_varint(data, start, end)
        yield value


def signed(value: int) -> int:
    """A varint as the int32 or int64 it stands for (negative numbers take all 64 bits)."""
    return value - 2**64 if value >= 2**63 else value


def varint(value: int) -> bytes:
    """An integer from -2**63 to 2**64 - 1 as a varint."""
    value &= 2**64 - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def number(field: int, value: int) -> bytes:
    """A varint field."""
    return varint(field << 3 | VARINT) + varint(value)


def message(field: int, *parts: bytes) -> bytes:
    """A field of bytes, a text or a message, its payload in parts."""
    return head(field, sum(map(len, parts))) + b"".join(parts)


def head(field: int, length: int) -> bytes:
    """Key and length of a field whose payload follows."""
    return varint(field << 3 | BYTES) + varint(length)


def repeated(field: int, values: Sequence[int]) -> bytes:
    """A repeated integer field as proto2 writes it: unpacked."""
    return b"".join(number(field, value) for value in values)
