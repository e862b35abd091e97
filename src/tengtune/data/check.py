"""The account of `data check`: faults, copies, contradictions, languages, lengths, and what a row cuts."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from tengtune.data.documents import Int64
from tengtune.data.fault import Fault
from tengtune.data.formats.plain import PLAIN
from tengtune.data.judge import Judge
from tengtune.data.ordered import ordered
from tengtune.data.pack import pack
from tengtune.data.read import Outcome, Reader
from tengtune.data.render import Batch, Renderer, Style, batches
from tengtune.data.report import Report
from tengtune.data.scripts import language_of
from tengtune.text.conversation import Conversation
from tengtune.ui.problems import Problem

SHOWN_FAULTS = 10
"""Places named for each kind of fault."""
SHOWN = 5
"""Pairs of records named for copies and contradictions."""
ROWS = (512, 1024, 2048, 4096, 8192, 16384, 32768)
"""Lengths of a row that are compared."""


class Looked(NamedTuple):
    """What was found in a batch: of the conversations that can be used their record numbers, the hashes of
    what is asked and of all, their lengths (tokens; without a tokenizer characters) and languages; faults;
    and how many records are of use to a training."""

    file: str
    records: list[int]
    questions: list[int]
    wholes: list[int]
    lengths: Int64
    languages: list[str]
    faults: list[Fault]
    kept: int


class RowLength(NamedTuple):
    """What rows of `seq_len` tokens mean: conversations that are longer, tokens beyond it, rows, fill."""

    seq_len: int
    longer: int
    beyond: int
    rows: int
    fill: float


Place = tuple[str, int]
"""File and record."""


@dataclass
class Account:
    """What was found in all files."""

    report: Report
    languages: Counter[str] = field(default_factory=Counter)
    _files: list[str] = field(default_factory=list)
    _source: array[int] = field(default_factory=lambda: array("q"))
    _questions: array[int] = field(default_factory=lambda: array("q"))
    _wholes: array[int] = field(default_factory=lambda: array("q"))

    def take(self, looked: Looked) -> None:
        """Add a batch."""
        if looked.file not in self._files:
            self._files.append(looked.file)
        number = self._files.index(looked.file)
        for record in looked.records:
            self._source.extend((number, record))
        self._questions.extend(looked.questions)
        self._wholes.extend(looked.wholes)
        self.languages.update(looked.languages)
        self.report.lengths(looked.lengths)
        self.report.kept += looked.kept
        for fault in looked.faults:
            self.report.fault(fault)

    def copies(self) -> tuple[int, list[tuple[Place, Place]]]:
        """How many conversations repeat an earlier one word for word; the first few, each with that one."""
        _, first, inverse = np.unique(
            np.array(self._wholes, np.int64), return_index=True, return_inverse=True
        )
        original = first[inverse]
        repeats = np.flatnonzero(original != np.arange(len(original)))
        return len(repeats), [(self._place(i), self._place(original[i])) for i in repeats[:SHOWN]]

    def contradictions(self) -> tuple[int, list[tuple[Place, Place]]]:
        """How many questions have different answers; of the first, the places of two of them."""
        questions, wholes = np.array(self._questions, np.int64), np.array(self._wholes, np.int64)
        order = np.lexsort((np.arange(len(questions)), questions))
        same = questions[order][1:] == questions[order][:-1]
        differ = same & (wholes[order][1:] != wholes[order][:-1])
        pairs = np.flatnonzero(differ)
        _, first = np.unique(questions[order][pairs], return_index=True)
        shown = sorted((int(order[pairs[i]]), int(order[pairs[i] + 1])) for i in first)[:SHOWN]
        return len(first), [(self._place(later), self._place(earlier)) for earlier, later in shown]

    def rows(self, seq_len: int, longest: int) -> list[RowLength]:
        """What different lengths of a row would mean, up to `longest` and to where nothing is longer."""
        lengths = self.report.all_lengths()
        found = []
        for length in sorted({*ROWS, seq_len}):
            if length > longest and length != seq_len:
                continue
            fitted = np.minimum(lengths, length)
            rows = pack(fitted[fitted > 0], length, 0).rows
            beyond = int((lengths - fitted).sum())
            fill = float(fitted.sum()) / max(rows * length, 1)
            found.append(RowLength(length, int((lengths > length).sum()), beyond, rows, fill))
            if not beyond and length >= seq_len:
                break
        return found

    def _place(self, number: int) -> Place:
        file, record = self._source[2 * number : 2 * number + 2]
        return self._files[file], record


def check(
    reader: Reader,
    judge: Judge,
    style: Style | None,
    each: Callable[[Fault], object],
    unreadable: Callable[[Problem], object],
    advance: Callable[[int], None] = lambda count: None,
    renderer: Renderer | None = None,
) -> Account:
    """Read everything and look at it. Every fault is handed to `each`, and why a file cannot be read (from
    there on) to `unreadable`. `style`: how the model in question wants conversations written; without one,
    lengths are characters. `advance` is told how many bytes were read. `renderer`: what training would make
    rows with; what it would cut or leave out are faults, too."""
    report = Report(each, SHOWN_FAULTS)
    account = Account(report)

    def look(batch: Batch) -> Looked:
        return _looked(batch, judge, style, renderer)

    items = whatever_is_readable(reader, unreadable, advance)
    for looked in ordered(look, batches(items, report.fault)):
        account.take(looked)
    return account


def whatever_is_readable(
    reader: Reader,
    unreadable: Callable[[Problem], object],
    advance: Callable[[int], None] = lambda count: None,
) -> Iterator[Outcome | Fault]:
    """What the files hold; one that cannot be read does not keep the others from being read."""
    for name in reader.files:
        before = reader.records
        try:
            yield from reader.read_file(name, advance)
        except Problem as problem:
            unreadable(problem)
        else:
            if reader.records == before:
                yield Fault(name, None, None, "no_record", dropped=False)


def _looked(batch: Batch, judge: Judge, style: Style | None, renderer: Renderer | None) -> Looked:
    found = judge.batch(batch.talks)
    faults = [
        fault
        for i, notes in found.items()
        for fault in notes.faults(batch.file, batch.numbers[i], batch.lines[i])
    ]
    usable = batch.usable(found)
    talks = [batch.talks[i] for i in usable]
    records = [batch.numbers[i] for i in usable]
    kept = set(records)
    if renderer is not None:
        made = renderer(batch)
        lengths, faults, kept = made.tokens, made.faults, set(made.records.tolist())
    elif style is None:
        lengths = np.array([sum(len(m.content) for m in talk.messages) for talk in talks], np.int64)
    else:
        _, _, begins = style.plain(talks) if batch.plain else style.flat(talks)
        lengths = np.diff(begins)
    hashes = [_hashes(talk) for talk in talks]
    return Looked(
        batch.file,
        records,
        [question for question, _ in hashes],
        [whole for _, whole in hashes],
        lengths,
        [language_of("\n".join(m.content for m in talk.messages if m.role != "system")) for talk in talks],
        faults,
        len(kept),
    )


def _hashes(talk: Conversation) -> tuple[int, int]:
    """Hashes of what the last answer answers to, and of the whole conversation."""
    parts = [(m.role, m.content, m.reasoning, repr(m.tool_calls)) for m in talk.messages]
    answers = [turn for turn, message in enumerate(talk.messages) if message.role == "assistant"]
    if talk.messages[0].role == PLAIN or not answers:
        whole = hash(tuple(parts))
        return whole, whole
    question = hash((repr(talk.tools), tuple(parts[: answers[-1]])))
    return question, hash((question, tuple(parts[answers[-1] :])))
