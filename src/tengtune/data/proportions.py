"""Row length, batch, epochs and held-out share that suit the data: what a new run file begins with."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tengtune.data.documents import Int64
from tengtune.data.fault import Fault
from tengtune.data.judge import Judge
from tengtune.data.mindrecord import MindRecord, is_mindrecord
from tengtune.data.pack import pack
from tengtune.data.read import Outcome, Reader
from tengtune.data.recorded import Recorded, Vocabulary
from tengtune.data.render import Rendered, Renderer, Style, batches
from tengtune.data.split import groups_of, heldout_split
from tengtune.recipe import Data, Recipe, Train
from tengtune.report.verdict import ENOUGH_TOKENS

SEED: int = Recipe.model_fields["seed"].default
LOOK_BYTES = 1_000_000
LOOK_RECORDS = 20_000
"""How much of the data is looked at, of all files together. More than that is no small file."""
GOAL = 60
"""Optimizer steps below which the warm-up and the falling learning rate leave hardly anything learned."""
SHORTEST, LONGEST = 128, 4096
"""Rows: a shorter one saves nothing, a longer one may not fit into a card's memory."""
SMALLEST_BATCH = 2
MOST_EPOCHS = 20
HELD_OUT_SHARES = (0.1, 0.15)
"""What is held out at most, where the default share holds too few labels to judge by."""
FIT = 0.99
"""Share of the records that are to fit into a row whole."""


@dataclass(frozen=True)
class Sample:
    """The beginning of the data. lengths: tokens of each document, int64 [n]; labels: those of them that are
    trained on; groups: equal for equal ones; share: how much of the data that is."""

    lengths: Int64
    labels: Int64
    groups: Int64
    share: float


@dataclass(frozen=True)
class Proportions:
    """What the run file says, and what it leads to (estimated where not all of the data was looked at)."""

    seq_len: int
    global_batch: int
    epochs: int
    heldout: float
    records: int
    rows: int
    held_records: int
    held_labels: int

    @property
    def steps(self) -> int:
        """Optimizer steps of the whole run."""
        return self.epochs * -(-self.rows // self.global_batch)


def defaults() -> Proportions:
    """What the run file's keys are when they are left out, with nothing known of the data."""
    train = Train()
    data = Data(files=["-"])
    return Proportions(data.seq_len, train.global_batch, int(train.epochs), data.heldout, 0, 0, 0, 0)


def look(files: Mapping[str, Path], style: Style) -> Sample:
    """The first records of each file as the data step will have them; Problem where a file cannot be read."""
    renderer = Renderer(
        style, Judge(style.policy, style.tokenizer.control, style.template.tools), 1 << 30, "cut"
    )
    total = seen = 0
    lengths, labels, hashes = ([np.empty(0, np.int64)] for _ in range(3))
    for name, path in files.items():
        beginning: _Beginning | _StoredBeginning
        if is_mindrecord(path):
            stored = Recorded(MindRecord(path), Vocabulary.of(style.tokenizer), 1 << 30, "cut")
            beginning = _StoredBeginning(stored, len(files))
            documents = beginning.documents(name)
        else:
            beginning = _Beginning(Reader({name: path}), path.stat().st_size, len(files))
            documents = map(renderer, batches(beginning.items(), lambda fault: None))
        for made in documents:
            lengths.append(made.lengths)
            ends = np.cumsum(made.lengths)
            sums = np.concatenate([[0], np.cumsum(made.train, dtype=np.int64)])
            labels.append(sums[ends] - sums[ends - made.lengths])
            hashes.append(made.hashes)
        total += beginning.size
        seen += beginning.size if beginning.whole else beginning.bytes
    groups = groups_of(np.concatenate(hashes))
    return Sample(np.concatenate(lengths), np.concatenate(labels), groups, min(seen / max(total, 1), 1.0))


class _Beginning:
    """The first records of a file of `size` bytes, of `among` files; `bytes`: how much of it they are."""

    def __init__(self, reader: Reader, size: int, among: int) -> None:
        self.reader, self.size, self.among = reader, size, among
        self.bytes, self.whole = 0, False
        self._read = 0

    def items(self) -> Iterator[Outcome | Fault]:
        """Outcomes until there are enough."""
        for item in self.reader.read(self._advance):
            if self.bytes * self.among >= LOOK_BYTES:
                return
            yield item
            if self.reader.records * self.among >= LOOK_RECORDS:
                self.bytes = self._read
                return
        self.whole = True

    def _advance(self, count: int) -> None:
        self.bytes = self._read  # what was read before has been gone through when more is read
        self._read += count


class _StoredBeginning:
    """The same of a MindRecord, whose size is that of its records: the files are mostly holes."""

    def __init__(self, stored: Recorded, among: int) -> None:
        self.stored, self.among = stored, among
        self.size, self.bytes, self.whole = stored.bytes, 0, False

    def documents(self, name: str) -> Iterator[Rendered]:
        """Documents until there are enough."""
        for made in self.stored.read(name, self._advance):
            yield made
            if self.bytes * self.among >= LOOK_BYTES:
                return
        self.whole = True

    def _advance(self, count: int) -> None:
        self.bytes += count


def suit(sample: Sample, positions: int) -> Proportions:
    """The defaults, with longer rows where records need them; where that gives fewer than GOAL steps, in this
    order: shorter rows, as long as the records fit; a smaller batch; more epochs. More is held out where the
    default holds fewer than ENOUGH_TOKENS.

    positions: the longest row the model knows.
    """
    usual = defaults()
    if not len(sample.lengths):
        return usual
    seq_len = min(usual.seq_len, 1 << int(math.log2(positions)))
    while not _fits(sample, seq_len) and 2 * seq_len <= min(LONGEST, positions):
        seq_len *= 2
    records = round(len(sample.lengths) / sample.share)
    held = _held_out(sample, usual)
    chosen = replace(held, seq_len=seq_len, records=records, rows=_rows(sample, seq_len, held.heldout))
    while chosen.steps < GOAL and chosen.seq_len > SHORTEST and _fits(sample, chosen.seq_len // 2):
        shorter = chosen.seq_len // 2
        chosen = replace(chosen, seq_len=shorter, rows=_rows(sample, shorter, held.heldout))
    while chosen.steps < GOAL and chosen.global_batch > SMALLEST_BATCH:
        chosen = replace(chosen, global_batch=chosen.global_batch // 2)
    while chosen.steps < GOAL and chosen.epochs < MOST_EPOCHS:
        chosen = replace(chosen, epochs=chosen.epochs + 1)
    return chosen


def _fits(sample: Sample, seq_len: int) -> bool:
    return float(np.mean(sample.lengths <= seq_len)) >= FIT


def _held_out(sample: Sample, usual: Proportions) -> Proportions:
    """`usual` with the smallest share that holds ENOUGH_TOKENS, the largest where none does."""
    chosen = usual
    for share in (usual.heldout, *HELD_OUT_SHARES):
        _, held = heldout_split(sample.groups, share, SEED)
        labels = round(int(sample.labels[held].sum()) / sample.share)
        records = round(len(held) / sample.share)
        chosen = replace(usual, heldout=share, held_records=records, held_labels=labels)
        if labels >= ENOUGH_TOKENS:
            break
    return chosen


def _rows(sample: Sample, seq_len: int, heldout: float) -> int:
    """Rows of the training part."""
    train, _ = heldout_split(sample.groups, heldout, SEED)
    rows = len(pack(np.minimum(sample.lengths[train], seq_len), seq_len, SEED).starts) - 1
    return math.ceil(rows / sample.share)
