"""Writing MindRecord files through MindSpore: what stands under the name is whole and was read back."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from mindspore.mindrecord import FileWriter

from tengtune import files
from tengtune.data.documents import Int32
from tengtune.data.mindrecord import INDEX, MindRecord, check_name, family, first_shard
from tengtune.data.record_rows import Form
from tengtune.data.recorded import IDS, MASK
from tengtune.ui.problems import FAILED_RUN, Problem, os_errors

AT_ONCE = 500
"""Records handed to MindSpore in one call."""
_REASON = re.compile(r"Dataset Pipeline Error Message: *\n-+\n(?:\[ERROR\] )?(.+)")
"""What an error of MindSpore's says behind its heading."""


def write(out: Path, rows: Iterable[tuple[Int32, Int32]], form: Form, shards: int = 1) -> int:
    """Write batches of rows, ids and labels int32 [n, form.length], as a MindRecord at `out`, which is
    replaced if it is there; returns how many rows that were.

    A MindRecord can move but not change its name, so it is written under its own in a folder aside, compared
    with what was given, and moved; the first shard, without which nothing reads the others, comes last.

    Problem for a name that would not be loaded; when MindSpore fails, or has written something else.
    """
    check_name(out)
    columns = (IDS, form.label, MASK)
    aside, _ = files.working_names(out)
    with os_errors(out):
        files.remove(aside)
        aside.mkdir(parents=True)
        try:
            given, read = _Sum(), _Sum()
            with _faults(out):
                writer = FileWriter(str(aside / out.name), shard_num=shards)
                writer.add_schema({name: {"type": "int32", "shape": [-1]} for name in columns}, "")
            for ids, labels in rows:
                _write(out, writer, columns, ids, labels, form, given)
            with _faults(out):
                writer.commit()
            for values in MindRecord(first_shard(aside / out.name)).rows(columns):
                read.add([each.astype(np.int32) for each in values])
            if (read.count, read.total) != (given.count, given.total):
                counts = {"written": given.count, "read": read.count}
                raise Problem("mindrecord.not_same", where=out, exit_code=FAILED_RUN, **counts)
            _move(aside, out)
        finally:
            files.remove(aside)
    return given.count


class _Sum:
    """How many records, and a sum over them in which their order does not count: shards mix them."""

    def __init__(self) -> None:
        self.count, self.total = 0, 0

    def add(self, columns: list[Int32]) -> None:
        record = hashlib.blake2b(digest_size=16)
        for values in columns:
            record.update(len(values).to_bytes(8, "little") + values.tobytes())
        self.total = (self.total + int.from_bytes(record.digest(), "little")) % (1 << 128)
        self.count += 1


def _write(
    out: Path,
    writer: FileWriter,
    columns: tuple[str, ...],
    ids: Int32,
    labels: Int32,
    form: Form,
    given: _Sum,
) -> None:
    """Hand a batch to MindSpore, which leaves out in silence what is not of the schema's type."""
    for array in (ids, labels):
        if array.dtype != np.int32 or array.shape != (len(ids), form.length):
            raise ValueError(f"rows are int32 [n, {form.length}], not {array.dtype} {array.shape}")
    mask = (ids != form.pad).astype(np.int32)
    for start in range(0, len(ids), AT_ONCE):
        records = []
        for row in zip(*(array[start : start + AT_ONCE] for array in (ids, labels, mask)), strict=True):
            given.add(list(row))
            records.append(dict(zip(columns, row, strict=True)))
        with _faults(out):
            writer.write_raw_data(records)


@contextmanager
def _faults(out: Path) -> Iterator[None]:
    """MindSpore's errors, whose classes have nothing but Exception in common, as a Problem."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        text = str(error).strip() or type(error).__name__
        found = _REASON.search(text)
        reason = (found[1] if found else text).splitlines()[0][:300]
        free = files.free_bytes(out.parent) // 10**6
        raise Problem(
            "mindrecord.failed", where=out, exit_code=FAILED_RUN, reason=reason, free=free
        ) from error


def _move(aside: Path, out: Path) -> None:
    """What is in the folder in the place of what stands there: at no time does the first shard of one stand
    beside parts of the other."""
    _remove(out)
    first = first_shard(aside / out.name)
    parts = sorted(aside.iterdir(), key=lambda each: (each == first, not each.name.endswith(INDEX)))
    try:
        for part in parts:
            files.sync_file(part)
            os.replace(part, out.with_name(part.name))
    except BaseException:
        _remove(out)
        raise
    files.sync_folder(out.parent)


def _remove(out: Path) -> None:
    for part in family(out):
        part.unlink()
    files.sync_folder(out.parent)
