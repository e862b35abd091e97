"""The store: packed rows of tokens on disk, mapped into memory; what both back ends train from.

A folder with ids.npy int32 [T] and train.npy bool [T] (tokens of all documents in row order, without
padding), documents.npy int64 [D+1] and rows.npy int64 [R+1] (token where each begins), labels.npy int32
[R] (labels in each row), source.npy int64 [D,2] (file and record number), and store.json.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tengtune import files
from tengtune.data.documents import Documents, Int32, Int64, starts
from tengtune.data.pack import Plan
from tengtune.recipe import LabelPolicy
from tengtune.text.conversation import Example
from tengtune.train.batch import NO_LABEL, Batch
from tengtune.ui.problems import Problem, os_errors

VERSION = 1
COPY_TOKENS = 1 << 18
"""Tokens gathered at a time while a store is written."""


@dataclass(frozen=True)
class About:
    """How the tokens were made. tokenizer: its fingerprint (Tokenizer.fingerprint)."""

    tokenizer: str
    policy: LabelPolicy
    seq_len: int


def write_store(folder: Path, documents: Documents, plan: Plan, about: About) -> None:
    """Write the rows of `plan` as a store at `folder`, which is there whole or not at all.

    A document's first token is nobody's label and is cleared in the mask.
    """
    doc_starts = starts(documents.lengths[plan.documents])
    row_starts = doc_starts[plan.starts]
    tokens = int(row_starts[-1])
    labels = np.zeros(plan.rows, np.int32)
    with files.atomic_folder(folder) as partial:
        with open(partial / "ids.npy", "wb") as ids, open(partial / "train.npy", "wb") as train:
            for stream, descr in ((ids, "<i4"), (train, "|b1")):
                header = {"descr": descr, "fortran_order": False, "shape": (tokens,)}
                np.lib.format.write_array_header_1_0(stream, header)  # type: ignore[no-untyped-call]
            for first, last in _ranges(row_starts):
                chosen = plan.documents[plan.starts[first] : plan.starts[last]]
                index = documents.tokens_of(chosen)
                mask = documents.train[index]
                base = row_starts[first]
                mask[doc_starts[plan.starts[first] : plan.starts[last]] - base] = False
                labels[first:last] = np.add.reduceat(mask, row_starts[first:last] - base, dtype=np.int32)
                ids.write(documents.ids[index].astype("<i4", copy=False).tobytes())
                train.write(mask.tobytes())
        np.save(partial / "documents.npy", doc_starts)
        np.save(partial / "rows.npy", row_starts)
        np.save(partial / "labels.npy", labels)
        np.save(partial / "source.npy", documents.source[plan.documents])
        counts = {
            "rows": plan.rows,
            "documents": len(plan.documents),
            "tokens": tokens,
            "trained_tokens": int(labels.sum()),
        }
        about_it = {"format": "tengtune store", "version": VERSION, **asdict(about), **counts}
        about_it["files"] = documents.file_names
        text = json.dumps(about_it, ensure_ascii=False, indent=1)
        (partial / "store.json").write_text(text + "\n", encoding="utf-8")


def open_store(folder: Path) -> Store:
    """Open a store; Problem when the folder is none, is damaged, or comes from another version."""
    path = folder / "store.json"
    with os_errors(path), files.open_plain(path) as stream:
        raw = stream.read()
    try:
        about = json.loads(raw)
        if about["format"] != "tengtune store" or about["version"] != VERSION:
            raise Problem("data.store_foreign", where=path, version=VERSION)
        store = Store(folder, about)
    except (
        ValueError, KeyError, TypeError, EOFError, OSError, IndexError, RecursionError, OverflowError,
    ) as error:  # fmt: skip
        reason = f"{type(error).__name__}: {error}"
        raise Problem("data.store_broken", where=folder, reason=reason) from error
    return store


class Store:
    """A store opened for reading: `rows` rows of at most `seq_len` tokens, `documents` documents.

    labels_per_row int32 [rows]; trained_tokens: their sum. about: how the tokens were made.
    """

    def __init__(self, folder: Path, about: dict[str, Any]) -> None:
        self.folder = folder
        self.about = About(about["tokenizer"], about["policy"], int(about["seq_len"]))
        self.seq_len = self.about.seq_len
        self.rows, self.documents = int(about["rows"]), int(about["documents"])
        self.tokens, self.trained_tokens = int(about["tokens"]), int(about["trained_tokens"])
        self._documents = Documents(
            _load(folder / "ids.npy", np.int32, (self.tokens,)),
            _load(folder / "train.npy", np.bool_, (self.tokens,)),
            _load(folder / "documents.npy", np.int64, (self.documents + 1,)),
            _load(folder / "source.npy", np.int64, (self.documents, 2)),
            tuple(about["files"]),
        )
        self._row_starts: Int64 = _load(folder / "rows.npy", np.int64, (self.rows + 1,))
        self.labels_per_row: Int32 = _load(folder / "labels.npy", np.int32, (self.rows,))
        self._check()
        self._first_document = np.searchsorted(self._documents.starts, self._row_starts)

    def _check(self) -> None:
        """The arrays against each other: a file of another store shows here."""
        begins, rows = self._documents.starts, self._row_starts
        whole = int(begins[0]) == int(rows[0]) == 0 and int(begins[-1]) == int(rows[-1]) == self.tokens
        sound = whole and bool(np.all(np.diff(begins) > 0))
        sound = sound and bool(np.all(begins[np.searchsorted(begins, rows)] == rows))
        lengths = np.diff(rows)
        sound = sound and bool(np.all((lengths > 0) & (lengths <= self.seq_len)))
        if not sound or int(self.labels_per_row.sum()) != self.trained_tokens:
            raise ValueError("documents, rows and labels do not agree")

    @property
    def fill(self) -> float:
        """Share of the rows' slots that hold a token."""
        return self.tokens / (self.rows * self.seq_len) if self.rows else 0.0

    def batch(self, rows: Sequence[int], buckets: Sequence[int] | None = None) -> Batch:
        """These rows as a batch [B, seq_len]; K is the smallest of `buckets` that holds every row's labels.

        Raises ValueError when no bucket does.
        """
        shape = (len(rows), self.seq_len)
        most = int(self.labels_per_row[list(rows)].max(initial=1))
        slots = next((k for k in buckets or default_buckets(self.seq_len) if k >= most), None)
        if slots is None:
            raise ValueError(f"no bucket holds {most} labels")
        ids, positions, segment = (np.zeros(shape, np.int32) for _ in range(3))
        label_index = np.zeros((len(rows), slots), np.int32)
        label = np.full((len(rows), slots), NO_LABEL, np.int32)
        for i, row in enumerate(rows):
            start, end = self._row_starts[row], self._row_starts[row + 1]
            first, last = self._first_document[row], self._first_document[row + 1]
            lengths = np.diff(self._documents.starts[first : last + 1])
            n = end - start
            ids[i, :n] = self._documents.ids[start:end]
            begins = self._documents.starts[first:last] - start
            positions[i, :n] = np.arange(n) - np.repeat(begins, lengths)
            segment[i, :n] = np.repeat(np.arange(1, last - first + 1), lengths)
            labelled = np.flatnonzero(self._documents.train[start:end])
            label_index[i, : len(labelled)] = labelled - 1
            label[i, : len(labelled)] = ids[i, labelled]
        return Batch(ids, positions, segment, label_index, label)

    def example(self, number: int) -> Example:
        """Document `number`, counted from 0 in the order of the data files."""
        document = self._reading_order[number]
        place = slice(self._documents.starts[document], self._documents.starts[document + 1])
        return Example(self._documents.ids[place], self._documents.train[place], self.source(number))

    def source(self, number: int) -> str:
        """ "file:record" of document `number`."""
        return self._documents.source_of(int(self._reading_order[number]))

    @functools.cached_property
    def _reading_order(self) -> Int64:
        file, record = self._documents.source.T
        order: Int64 = np.lexsort((record, file))
        return order


def default_buckets(seq_len: int) -> tuple[int, ...]:
    """Label slots a batch may have: an eighth, a quarter, half of seq_len, and all of it."""
    return tuple(sorted({max(seq_len >> shift, 1) for shift in (3, 2, 1, 0)}))


def _ranges(row_starts: Int64) -> Iterator[tuple[int, int]]:
    """Ranges of rows of about COPY_TOKENS tokens."""
    row, rows = 0, len(row_starts) - 1
    while row < rows:
        end = int(np.searchsorted(row_starts, row_starts[row] + COPY_TOKENS, side="right")) - 1
        end = min(max(end, row + 1), rows)
        yield row, end
        row = end


def _load(path: Path, dtype: type[np.generic], shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """An array mapped from its file; ValueError when it is not what store.json says."""
    array: npt.NDArray[Any] = np.load(path, mmap_mode="r" if shape[0] else None, allow_pickle=False)
    if array.dtype != dtype or array.shape != shape:
        raise ValueError(f"{path.name}: {array.dtype} {array.shape}, expected {np.dtype(dtype)} {shape}")
    return array
