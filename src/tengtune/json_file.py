"""Reading JSON that may be damaged: an object from elsewhere, bounded and strict, with a Problem instead of a
traceback; and our own files of one object a line, of which a bad line costs itself."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tengtune.files import open_plain
from tengtune.ui.problems import Problem, os_errors

MAX_BYTES = 64 * 2**20

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def read_object(path: Path, code: str) -> dict[str, Any]:
    """The JSON object in `path`; otherwise Problem `code`, whose text has the placeholder {reason}."""
    with os_errors(path), open_plain(path) as stream:
        raw = stream.read(MAX_BYTES + 1)
    if len(raw) > MAX_BYTES:
        raise Problem(code, where=path, reason=f"> {MAX_BYTES} bytes")
    return parse_object(raw, path, code)


def objects(path: Path, fits: Callable[[dict[str, Any]], bool]) -> Iterator[dict[str, Any] | None]:
    """The objects of a JSON Lines file, None for a line that holds none or one that does not fit. A number
    that is none (NaN, 1e999) and half a character are damage: our own lines hold neither.

    A last line without its end is left out: it is being written, or was cut by a kill. Raises OSError;
    Problem for a pipe or a device.
    """
    with open_plain(path) as stream:
        for line in stream:
            if not line.endswith(b"\n"):
                return
            try:
                value = json.loads(line, parse_constant=_finite_float, parse_float=_finite_float)
                _refuse_half_characters(line, value)
            except (ValueError, RecursionError):
                value = None
            yield value if isinstance(value, dict) and fits(value) else None


def finite(value: Any) -> Any:
    """JSON values with null in place of each number that is none: no JSON parser has to take NaN."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(each) for key, each in value.items()}
    return [finite(each) for each in value] if isinstance(value, (list, tuple)) else value


def parse_object(raw: bytes, where: object, code: str) -> dict[str, Any]:
    """The JSON object in `raw` (UTF-8, a byte-order mark allowed). A key that stands twice is refused:
    which of the two counts is for the reader to guess. So is half a character (an escape like \\ud800
    alone): no file and no screen takes it."""
    try:
        value = json.loads(raw.decode("utf-8-sig"), object_pairs_hook=_unique)
        _refuse_half_characters(raw, value)
    except (ValueError, RecursionError) as error:
        raise Problem(code, where=where, reason=str(error)) from error
    if not isinstance(value, dict):
        raise Problem(code, where=where, reason=f"a {type(value).__name__}, not an object")
    return value


def digest(value: Any) -> str:
    """SHA-256 of JSON values, whatever the order of their keys and the blanks between them."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _refuse_half_characters(raw: bytes, value: Any) -> None:
    """UnicodeEncodeError, a ValueError, where half of a pair stands alone."""
    if _SURROGATE.search(raw):
        json.dumps(value, ensure_ascii=False).encode()


def _finite_float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is no number")
    return number


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        twice, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise ValueError(f"the key {twice[:100]!r} stands twice")
    return result
