"""What kind of file this is, told from its first bytes: packed, its encoding, how records lie in it."""

from __future__ import annotations

import bz2
import codecs
import gzip
import json
import lzma
import re
from collections.abc import Callable
from typing import IO, Any, Literal

Layout = Literal["array", "lines", "values"]

PACKED: dict[bytes, Callable[[IO[bytes]], Any]] = {
    b"\x1f\x8b": lambda stream: gzip.GzipFile(fileobj=stream),
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ\x00": lzma.LZMAFile,
}
"""First bytes of a compressed file, and what reads it."""

PACKED_SUFFIXES = (".gz", ".bz2", ".xz")

BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "UTF-8"),
    (codecs.BOM_UTF32_LE, "UTF-32"),  # before UTF-16, whose mark it begins with
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
    (b"\x84\x31\x95\x33", "GB18030"),
)

PARQUET = b"PAR1"
LONGEST_HEADER = 1 << 28
"""Bytes; MindSpore's own limit is 128 MiB."""

_FOREIGN: tuple[tuple[bytes, str, str], ...] = (
    (b"PK\x03\x04", "archive", "zip"),
    (b"7z\xbc\xaf\x27\x1c", "archive", "7z"),
    (b"Rar!\x1a\x07", "archive", "rar"),
    (b"\x28\xb5\x2f\xfd", "archive", "zstd"),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "office", "xls/doc"),
    (b"version https://git-lfs", "lfs_pointer", "Git LFS"),
    (b"%PDF-", "binary", "PDF"),
    (b"ARROW1", "binary", "Arrow"),
    (b"ORC", "binary", "ORC"),
    (b"Obj\x01", "binary", "Avro"),
    (b"\x93NUMPY", "binary", "NumPy"),
    (b"SQLite format 3\x00", "binary", "SQLite"),
    (b"\x89PNG", "binary", "PNG"),
    (b"\xff\xd8\xff", "binary", "JPEG"),
    (b"\x7fELF", "binary", "ELF"),
)
_PAGE = re.compile(
    rb"(?i)\s*(?:<\?xml[^>]*>\s*)?(?:<!--(?:(?!-->).)*-->\s*)*<(!doctype\s+html|html|head|body)\b", re.S
)
_XML = re.compile(rb"\s*<\?xml\b")
_PICKLE = re.compile(rb"\x80[\x02-\x05][\x00-\xff]")
_CONTROL = re.compile("[\x00-\x08\x0e-\x1f]")
_COMMENTS = re.compile(r"(?:\s*(?://|#)[^\n]*\n)+\s*")


def foreign(head: bytes) -> tuple[str, str] | None:
    """(kind, name) of a file without texts: archive, office, lfs_pointer, web_page, mindrecord or binary."""
    for magic, kind, name in _FOREIGN:
        if head.startswith(magic):
            office = name == "zip" and any(mark in head for mark in (b"[Content_Types]", b"xl/", b"word/"))
            return ("office", "xlsx/docx") if office else (kind, name)
    if begins_mindrecord(head):
        return "mindrecord", "MindRecord"
    if head[257:262] == b"ustar":
        return "archive", "tar"
    if _PAGE.match(head.removeprefix(codecs.BOM_UTF8)):
        return "web_page", "HTML"
    if _XML.match(head.removeprefix(codecs.BOM_UTF8)):
        return "binary", "XML"
    if _PICKLE.match(head):
        return "binary", "pickle"
    is_text = head.lstrip()[:1] in (b"[", b"{") or marked_encoding(head) or unmarked_utf16(head)
    return ("binary", "?") if b"\x00" in head and not is_text else None


def begins_mindrecord(head: bytes) -> bool:
    """Whether these are the first bytes of a MindRecord: the length of a JSON header, and the header."""
    length = int.from_bytes(head[:8], "little")
    return 2 < length < LONGEST_HEADER and re.match(rb'\{\s*"', head[8:]) is not None


def marked_encoding(head: bytes) -> tuple[str, bytes] | None:
    """The encoding a byte order mark declares, and the mark."""
    return next(((name, mark) for mark, name in BYTE_ORDER_MARKS if head.startswith(mark)), None)


def unmarked_utf16(head: bytes) -> str | None:
    """UTF-16 without a byte order mark shows by a NUL in every second byte of its ASCII; a character like
    U+4E00 has one in the other."""
    head = head[: len(head) // 2 * 2]
    even, odd = head[::2].count(0), head[1::2].count(0)
    if min(even, odd) * 4 > max(even, odd) or max(even, odd) * 16 <= len(head):
        return None
    name = "UTF-16BE" if even > odd else "UTF-16LE"
    if min(even, odd) and _CONTROL.search(head.decode(name, "replace")):
        return None
    return name


def layout(head: str) -> Layout | None:
    """How records lie in a JSON text that begins with `head`; None when it is no JSON of ours.

    array   one list, whatever its line breaks
    lines   JSON Lines: an object in each line
    values  one object (or several) written over many lines
    """
    text = head.lstrip(" \t\r\n\ufeff")
    if text.startswith("["):
        return "array"
    comments = _COMMENTS.match(text)
    if comments:  # a comment costs JSON Lines its own line only
        return "lines" if text.startswith("{", comments.end()) else None
    if not text.startswith("{"):  # JSON Lines whose first is none?
        return "lines" if _are_objects(re.split("[\r\n]", f"{text}\n", maxsplit=1)[1]) else None
    first, *rest = re.split("[\r\n]", text, maxsplit=1)
    if not rest:
        return "lines"
    first = first.rstrip()
    # A record that is broken off ends anywhere; an object laid out over lines breaks only after these.
    laid_out = first.endswith(("{", "[")) or (first.endswith(",") and not _is_json(first[:-1]))
    return "values" if laid_out and not _are_objects(rest[0]) else "lines"


def _are_objects(text: str) -> bool:
    """Whether the next lines are objects without a comma after them, which no object that goes on has."""
    lines = [line for line in re.split("[\r\n]+", text.lstrip("\r\n"), maxsplit=2)[:2] if line.strip()]
    return bool(lines) and all(line.lstrip().startswith("{") and _is_json(line) for line in lines)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
