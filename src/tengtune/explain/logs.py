"""From paths to a diagnosis."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import get_args

from tengtune.explain import known, streams
from tengtune.explain.cause import Diagnosis, diagnose
from tengtune.explain.known import Error
from tengtune.explain.scan import Content, Hit, scan
from tengtune.explain.streams import BLOCK, Source

NEWEST = 32 * BLOCK
"""Bytes of a rank's log, from its end, that the launcher looks at."""


@dataclass(frozen=True)
class Account:
    """What was read, and what it says. content: text, if any of the logs is one."""

    diagnosis: Diagnosis
    logs: int
    lines: int
    bytes: int
    content: Content = "text"


def explain(paths: Iterable[str], errors: Mapping[str, Error], warn: Callable[..., object]) -> Account:
    """Read all logs of these paths. A log of a folder that cannot be read, and a packed one that breaks off,
    are told by warn(code, **values); Problem for a path that is none."""
    logs: dict[str, Source] = {}
    several = False
    for path in paths:
        found = streams.sources(path)
        several = several or len(found) > 1 or bool(logs)
        logs |= {source.name: source for source in found}
    hits: list[Hit] = []
    contents: set[Content] = set()
    lines = size = 0
    for source in logs.values():
        try:
            damaged = partial(warn, "explain.damaged", file=source.name)
            reading = scan(streams.blocks(source, damaged), errors, source.name)
        except OSError as error:
            if not several:
                raise
            warn("explain.left_out", file=source.name, reason=error.strerror or error)
            continue
        hits += reading.hits
        contents.add(reading.content)
        lines, size = lines + reading.lines, size + reading.bytes
    content: Content = next((each for each in get_args(Content)[::-1] if each in contents), "empty")
    return Account(diagnose(hits), len(logs), lines, size, content)


def newest(log: Path) -> Diagnosis | None:
    """The diagnosis of a rank's log, from its last part; None where there is none, or no log."""
    try:
        with log.open("rb") as stream:
            stream.seek(max(log.stat().st_size - NEWEST, 0))
            reading = scan(iter(lambda: stream.read(BLOCK), b""), known.load(), str(log))
    except OSError:
        return None
    found = diagnose(reading.hits)
    return found if found.error else None
