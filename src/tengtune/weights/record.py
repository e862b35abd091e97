"""`weights.json` in a converted folder: what names and shapes do not tell, so that the way back is exact."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tengtune import __version__, files
from tengtune.json_file import read_object
from tengtune.models.layouts import WRITTEN
from tengtune.ui.problems import Problem
from tengtune.weights.companions import BPE_FILES

NAME = "weights.json"


@dataclass(frozen=True)
class Record:
    """A MindSpore layout as it was written. made: companions that were not there before; adapter_config:
    PEFT's, as it was, of an adapter."""

    layout: str
    made: tuple[str, ...] = ()
    adapter_config: dict[str, Any] | None = None


def read_record(folder: Path) -> Record | None:
    """The record in a folder; None where there is none. Problem where it cannot be read."""
    path = folder / NAME
    if not path.is_file():
        return None
    raw = read_object(path, "convert.bad_record")
    layout, made, config = raw.get("layout"), raw.get("made"), raw.get("adapter_config")
    sound = layout in WRITTEN and isinstance(made, list) and all(name in BPE_FILES for name in made)
    if not sound or not isinstance(config, dict | None):
        raise Problem("convert.bad_record", where=path, reason=str(raw)[:200])
    return Record(str(layout), tuple(made or ()), config)


def write_record(folder: Path, record: Record) -> None:
    values = {"tengtune": __version__, **asdict(record)}
    files.write_text(folder / NAME, json.dumps(values, ensure_ascii=False, indent=1) + "\n")
