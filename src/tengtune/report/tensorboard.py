"""metrics.jsonl as a TensorBoard event file, written by hand: the format is small, the package is not.

Format: TFRecord (length, masked CRC-32C of it, data, masked CRC-32C of the data) around messages of
tensorflow/core/util/event.proto: wall_time (1, double), step (2), file_version (3), summary (5) of
values (1) with tag (1) and simple_value (2, float).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tengtune import files
from tengtune.weights import wire

SCALARS = {
    "loss": "train/loss",
    "lr": "train/learning_rate",
    "grad_norm": "train/grad_norm",
    "tokens_per_s": "train/tokens_per_s",
    "memory_bytes": "train/memory_bytes",
    "loss_scale": "train/loss_scale",
    "heldout_loss": "heldout/loss",
}
"""Field of metrics.jsonl -> TensorBoard tag."""

_POLYNOMIAL = 0x82F63B78
"""CRC-32C (Castagnoli), bits reversed."""


def write_events(path: Path, lines: Iterable[Mapping[str, Any]], started: float) -> int:
    """Write every scalar of the lines; the number written. Wall times are `started` (seconds since 1970) and
    the seconds the steps took."""
    written, now = 0, started
    with files.atomic_file(path) as stream:
        stream.write(record(_event(now, 0, wire.message(3, b"brain.Event:2"))))
        for line in lines:
            if "event" in line:
                continue
            now += line.get("seconds", 0.0)
            found = [
                _value(name, line[field]) for field, name in SCALARS.items() if line.get(field) is not None
            ]
            stream.write(record(_event(now, line["step"], wire.message(5, *found))))
            written += len(found)
    return written


def _value(name: str, value: float) -> bytes:
    """One scalar of a summary."""
    number = wire.varint(2 << 3 | wire.FIXED32) + struct.pack("<f", value)
    return wire.message(1, wire.message(1, name.encode()), number)


def record(data: bytes) -> bytes:
    """The data as a TFRecord."""
    length = struct.pack("<Q", len(data))
    return length + _masked_crc(length) + data + _masked_crc(data)


def _event(wall_time: float, step: int, *parts: bytes) -> bytes:
    head = wire.varint(1 << 3 | wire.FIXED64) + struct.pack("<d", wall_time)
    return head + (wire.number(2, step) if step else b"") + b"".join(parts)


def _masked_crc(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def crc32c(data: bytes) -> int:
    """CRC-32C of some bytes."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def _table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
        table.append(value)
    return table


_TABLE = _table()
