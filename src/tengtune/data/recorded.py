"""Records of MindRecord files as documents to train on: ids and labels are taken as they are stored."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from tengtune.data.documents import Int64
from tengtune.data.fault import Fault, place
from tengtune.data.mindrecord import MindRecord
from tengtune.data.render import BATCH, Rendered
from tengtune.data.shorten import fit
from tengtune.recipe import TooLong
from tengtune.text.conversation import Example
from tengtune.text.tokenizer import Tokenizer
from tengtune.train.batch import NO_LABEL
from tengtune.ui.lists import joined
from tengtune.ui.problems import Problem

IDS, MASK = "input_ids", "attention_mask"
LABELS, TARGETS = "labels", "target_ids"
"""What the label column is called by Qwen's scripts, and by those of Qwen1.5 and later."""


class Vocabulary(NamedTuple):
    """What a record's ids may be: how many there are, and the one that pads."""

    size: int
    pad: int

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Vocabulary:
        """Those of a model's tokenizer."""
        return cls(tokenizer.vocab_size, tokenizer.endoftext)


@dataclass
class _Batch:
    """What is known of the records so far."""

    examples: list[Example] = field(default_factory=list)
    records: list[int] = field(default_factory=list)
    hashes: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)

    def add(self, number: int, example: Example, kept: Example | None) -> None:
        """Record `number` without its padding, and what of it fits into a row."""
        self.tokens.append(len(example.ids))
        if kept is not None:
            self.examples.append(kept)
            self.records.append(number)
            self.hashes.append(hash(example.ids.tobytes()))

    def rendered(self, file: str) -> Rendered:
        """The documents of one file."""
        none = Example(np.empty(0, np.int32), np.empty(0, np.bool_))
        parts = [none, *self.examples]
        return Rendered(
            file,
            np.concatenate([part.ids for part in parts]),
            np.concatenate([part.train for part in parts]),
            np.array([len(part.ids) for part in self.examples], np.int64),
            np.array(self.records, np.int64),
            np.array(self.hashes, np.int64),
            np.array(self.tokens, np.int64),
            self.faults,
        )


def columns_of(file: MindRecord) -> list[str]:
    """The names of a MindRecord's ids, labels and, where it has one, mask. Problem without ids or labels."""
    label = TARGETS if TARGETS in file.columns and LABELS not in file.columns else LABELS
    columns = [IDS, label, *([MASK] if MASK in file.columns else [])]
    file.require(columns)
    return columns


def lengths_of(file: MindRecord) -> tuple[int, int]:
    """How many ids its records hold, padding included: the fewest, the most; zeros where there is none."""
    file.require([IDS])
    lengths = {len(ids) for (ids,) in file.rows([IDS])} or {0}
    return min(lengths), max(lengths)


class Recorded:
    """The records of a MindRecord as documents of at most `seq_len` tokens. There are no turns, so that a
    longer one is cut where a conversation would be split.

    records: how many there are; bytes: how much they take.
    """

    def __init__(self, file: MindRecord, vocabulary: Vocabulary, seq_len: int, too_long: TooLong) -> None:
        """Problem when a column is not there."""
        self.file, self.vocabulary, self.seq_len, self.too_long = file, vocabulary, seq_len, too_long
        self.records, self.bytes = file.records, file.bytes
        self.columns = columns_of(file)
        self.label = self.columns[1]

    def read(self, name: str, advance: Callable[[int], None] = lambda count: None) -> Iterator[Rendered]:
        """The documents in batches; `name` goes into faults, `advance` is told how many bytes were read.

        Problem for what cannot be meant for this model: ids beyond its vocabulary, labels that are not the
        ids they stand at, columns of different lengths.
        """
        batch, told = _Batch(), 0
        for number, values in enumerate(self.file.rows(self.columns)):
            _check(name, number, self.columns, values, self.vocabulary)
            example, padded = _unpadded(values, self.vocabulary.pad, self.label == LABELS)
            kept, outcome = fit(example, self.seq_len, self.too_long)
            batch.add(number, example, kept)
            if padded:
                labels = {"count": padded}
                batch.faults.append(Fault(name, number, None, "padding_labels", labels, dropped=False))
            if outcome != "whole":
                lengths = {"tokens": len(example.ids), "seq_len": self.seq_len}
                batch.faults.append(Fault(name, number, None, outcome, lengths, dropped=kept is None))
            if len(batch.tokens) == BATCH or number + 1 == self.records:
                share = self.bytes * (number + 1) // self.records
                advance(share - told)
                yield batch.rendered(name)
                batch, told = _Batch(), share


def _check(name: str, number: int, columns: list[str], values: list[Int64], vocabulary: Vocabulary) -> None:
    """Problem where a record is none of ids and of labels that are these ids or -100."""
    ids, labels = values[:2]
    where = place(name, number)
    lengths = [len(column) for column in values]
    if len(set(lengths)) > 1:
        told = joined(f"{column} {length}" for column, length in zip(columns, lengths, strict=True))
        raise Problem("mindrecord.lengths", where=where, lengths=told)
    beyond = np.flatnonzero((ids < 0) | (ids >= vocabulary.size))
    if len(beyond):
        at = int(beyond[0])
        raise Problem(
            "mindrecord.beyond_vocabulary", where=where, id=int(ids[at]), at=at, size=vocabulary.size
        )
    other = np.flatnonzero((labels != NO_LABEL) & (labels != ids))
    if len(other):
        at = int(other[0])
        found = {"at": at, "label": int(labels[at]), "id": int(ids[at])}
        code = "labels_shifted" if _are_shifted(ids, labels) else "labels"
        raise Problem(f"mindrecord.{code}", where=where, **found)


def _are_shifted(ids: Int64, labels: Int64) -> bool:
    """Whether the labels stand one place before their ids, as where a model does not shift them itself."""
    labelled = labels[:-1] != NO_LABEL
    return bool(np.all(labels[:-1][labelled] == ids[1:][labelled]))


def _unpadded(values: list[Int64], pad: int, as_stored: bool) -> tuple[Example, int]:
    """A record without its right tail of padding, and how many labels were in that tail and are left out.

    The pad id may be a token of the text as well, <|endoftext|>, so nothing but the tail is padding, and the
    labels there count if they are `as_stored`, unless there are several: then the padding was labelled.
    """
    ids, labels, *mask = values
    text = np.flatnonzero((mask[0] != 0) if mask else (ids != pad))
    end = int(text[-1]) + 1 if len(text) else 0
    train = labels != NO_LABEL
    tail = int(np.count_nonzero(train[end:]))
    closing = as_stored and tail == 1
    if closing:
        end += int(np.flatnonzero(train[end:])[0]) + 1
    return Example(ids[:end].astype(np.int32), train[:end]), 0 if closing else tail
