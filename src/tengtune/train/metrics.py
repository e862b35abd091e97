"""metrics.jsonl: one line a logged step, the truth from which every curve is drawn."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class Metrics:
    """Appends records to `metrics.jsonl`, each flushed, so that a killed run keeps what it logged."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._stream = open(path, "w", encoding="utf-8")  # noqa: SIM115 (closed by close())

    def write(self, **record: Any) -> None:
        """Append one record."""
        self._stream.write(json.dumps(record) + "\n")
        self._stream.flush()

    def close(self) -> None:
        """Close the file."""
        self._stream.close()


def read(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a metrics file; a last line cut by a kill is left out."""
    with open(path, encoding="utf-8") as stream:
        for line in stream:
            if line.endswith("\n"):
                yield json.loads(line)
