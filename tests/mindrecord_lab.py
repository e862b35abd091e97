"""MindRecord files for tests: mindformers' own, and such as no script should write, put together by hand."""

from __future__ import annotations

import json
import sqlite3
import tarfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).parent / "golden" / "mindrecord"
START, PAGE = 8192, 65536
Records = Sequence[dict[str, list[int]]]


def unpack(archive: str, folder: Path) -> Path:
    """One of mindformers' archives in `folder`, holes and all; the path of its first file."""
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(GOLDEN / archive) as tar:
        tar.extractall(folder, filter="data")
    return next(path for path in sorted(folder.iterdir()) if path.suffix != ".db")


def compose(path: Path, records: Records, **header: Any) -> Path:
    """A MindRecord in one file by the layout MindSpore's own have, its header and pages kept small; `header`
    replaces keys of its header."""
    columns = sorted(records[0])
    rows, blob = [], b""
    for number, record in enumerate(records):
        parts = [_packed(record[name]) for name in columns]
        body = b"".join(len(part).to_bytes(8, "big") + part for part in parts)
        start = len(blob)
        blob += len(body).to_bytes(8, "little") + body
        rows.append((number, 1, 0, 0, 0, 0, start, len(blob)))
    page = {"page_type": "BLOB_DATA", "page_id": 0, "page_size": len(blob), "end_row_id": len(records)}
    about = {
        "schema": [
            {
                "blob_fields": columns,
                "schema": {name: {"type": "int32", "shape": [-1]} for name in columns},
            }
        ],
        "page": [page],
        "header_size": START,
        "page_size": PAGE,
        "shard_addresses": [path.name],
        "shard_id": 0,
        "version": "3.0",
        **header,
    }
    text = json.dumps(about).encode()
    assert len(text) < START
    assert len(blob) < PAGE
    path.write_bytes((len(text).to_bytes(8, "little") + text).ljust(START, b"\0") + blob)
    index = path.with_name(path.name + ".db")
    index.unlink(missing_ok=True)
    with closing(sqlite3.connect(index)) as database:
        database.execute(
            "CREATE TABLE INDEXES(ROW_ID INT, PAGE_ID_RAW INT, PAGE_OFFSET_RAW INT, PAGE_OFFSET_RAW_END INT,"
            " ROW_GROUP_ID INT, PAGE_ID_BLOB INT, PAGE_OFFSET_BLOB INT, PAGE_OFFSET_BLOB_END INT)"
        )
        database.execute("CREATE TABLE SHARD_NAME(NAME TEXT)")
        database.executemany("INSERT INTO INDEXES VALUES(?,?,?,?,?,?,?,?)", rows)
        database.execute("INSERT INTO SHARD_NAME VALUES(?)", (path.name,))
        database.commit()
    return path


def _packed(values: list[int]) -> bytes:
    """A count, 2 bits for each value's size, and the values in as few bytes as each needs."""
    sizes = [next(k for k in range(4) if -(1 << 8 * 2**k - 1) <= v < 1 << 8 * 2**k - 1) for v in values]
    bits = [0] * ((len(values) + 3) // 4)
    for place, size in enumerate(sizes):
        bits[place // 4] |= size << 2 * (3 - place % 4)
    data = b"".join(v.to_bytes(2**k, "little", signed=True) for v, k in zip(values, sizes, strict=True))
    return len(values).to_bytes(4, "big") + bytes(bits) + data
