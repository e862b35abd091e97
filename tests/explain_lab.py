"""Log excerpts with what they must be read as, and logs that are made."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tengtune.explain import known
from tengtune.explain.cause import Diagnosis, diagnose
from tengtune.explain.scan import Reading, scan

LOGS = Path(__file__).resolve().parent / "fixtures" / "logs"
INDEX: list[dict[str, Any]] = json.loads((LOGS / "index.json").read_text("utf-8"))
NAMES = [entry["file"] for entry in INDEX]
WRAPPERS = {
    *("err00100", "err01100", "err02200", "err00008", "err99999"),
    *("ez9999", "ee9999", "ei9999", "e19999", "e39999"),
}
"""General codes: what CANN and torch_npu put around any error."""
STEP = b"2026-01-01 00:00:00,123 [INFO] step 17/9000 loss 1.2345 lr 1.000e-05 tokens/s 11000 mem 45.2 GiB\n"


def content(entry: dict[str, Any]) -> bytes:
    return (LOGS / entry["file"]).read_bytes()


def read(data: bytes | Iterable[bytes], name: str = "x.log") -> Reading:
    return scan([data] if isinstance(data, bytes) else data, known.load(), name)


def diagnosis(*logs: bytes, names: Iterable[str] = ()) -> Diagnosis:
    """The diagnosis of logs, named x0.log ... by default."""
    named = list(names) or [f"x{i}.log" for i in range(len(logs))]
    return diagnose([hit for name, log in zip(named, logs, strict=True) for hit in read(log, name).hits])


def found(*logs: bytes) -> str | None:
    """The id of the diagnosis."""
    error = diagnosis(*logs).error
    return error.id if error else None


def at(time: str, text: str, rank: int = 0) -> bytes:
    """A line of a plog, on 2026-01-15 unless `time` has a date of its own."""
    stamp = time if re.match(r"\d{4}-", time) else f"2026-01-15-{time}"
    return f"[ERROR] X(1,python3):{stamp}.000.000 [f.cc:1] rankId[{rank}] {text}\n".encode()
