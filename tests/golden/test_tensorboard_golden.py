"""The TensorBoard event file against one that TensorBoard's own classes wrote, byte for byte."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tengtune.report.tensorboard import crc32c, write_events

GOLDEN = Path(__file__).parent / "tensorboard" / "events.tfevents"

LINES: list[dict[str, Any]] = [
    {"step": 1, "loss": 2.5, "lr": 3e-4, "grad_norm": None, "seconds": 1.25},
    {"step": 100, "event": "spike", "loss": 9.0, "seconds": 50.0},  # no figure of a step
    {"step": 200, "loss": 1.25, "seconds": 2.25},
    {"step": 200, "heldout_loss": 1.0, "heldout_tokens": 5},
]


def test_every_byte_is_tensorboards(tmp_path: Path) -> None:
    path = tmp_path / "new" / "events"
    assert write_events(path, LINES, 1700000000.25) == 4
    assert path.read_bytes() == GOLDEN.read_bytes()


@pytest.mark.parametrize(
    ("data", "crc"),
    [  # RFC 3720, appendix B.4
        (b"\0" * 32, 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (b"123456789", 0xE3069283),
    ],
)
def test_crc32c(data: bytes, crc: int) -> None:
    assert crc32c(data) == crc
