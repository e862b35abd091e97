"""Reading JSON that may be damaged: an object from elsewhere, bounded and strict, with a Problem instead of a
traceback; and our own files of one object a line, of which a bad line costs itself."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tengtune.ui.problems import Problem, os_errors

MAX_BYTES = 64 * 2**20

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def read_object(path: Path, code: str) -> dict[str, Any]:
    """The JSON object in `path`; otherwise Problem `code`, whose text has the placeholder {reason}."""
    with os_errors(path), open(path, "rb") as stream:
        raw = stream.read(MAX_BYTES + 1)
    if len(raw) > MAX_BYTES:
        raise Problem(code, where=path, reason=f"> {MAX_BYTES} bytes")
    return parse_object(raw, path, code)


def objects(path: Path, fits: Callable[[dict[str, Any]], bool]) -> Iterator[dict[str, Any] | None]:
    """The objects of a JSON Lines file, None for a line that holds none or one that does not fit.

    A last line without its end is left out: it is being written, or was cut by a kill.
    """
    with open(path, "rb") as stream:
        for line in stream:
            if not line.endswith(b"\n"):
                return
            try:
                value = json.loads(line)
            except (ValueError, RecursionError):
                value = None
            yield value if isinstance(value, dict) and fits(value) else None


def parse_object(raw: bytes, where: object, code: str) -> dict[str, Any]:
    """The JSON object in `raw` (UTF-8, a byte-order mark allowed). A key that stands twice is refused:
    which of the two counts is for the reader to guess. So is half a character (an escape like \\ud800
    alone): no file and no screen takes it."""
    try:
        value = json.loads(raw.decode("utf-8-sig"), object_pairs_hook=_unique)
        if _SURROGATE.search(raw):
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise Problem(code, where=where, reason=str(error)) from error
    if not isinstance(value, dict):
        raise Problem(code, where=where, reason=f"a {type(value).__name__}, not an object")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        twice, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise ValueError(f"the key {twice[:100]!r} stands twice")
    return result
