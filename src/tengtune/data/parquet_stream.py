"""Records out of parquet files, a batch of rows at a time, by pyarrow (an extra of its own)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from tengtune.data.json_value import Record
from tengtune.ui.problems import UNFIT_MACHINE, Problem

ROWS = 256


def read_parquet(path: Path, advance: Callable[[int], None]) -> Iterator[Record]:
    """The rows as records. Problem: pyarrow is not installed, the file is damaged."""
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise Problem("data.no_pyarrow", where=path, exit_code=UNFIT_MACHINE) from error
    size, number = path.stat().st_size, 0
    try:
        with parquet.ParquetFile(path) as file:
            rows = max(file.metadata.num_rows, 1)
            for batch in file.iter_batches(batch_size=ROWS):
                for value in batch.to_pylist():
                    yield Record(value, number, None)
                    number += 1
                advance(size * number // rows - size * (number - batch.num_rows) // rows)
    except (ArrowException, OSError, ValueError) as error:
        raise Problem("data.bad_parquet", where=path, reason=str(error).splitlines()[0][:200]) from error
