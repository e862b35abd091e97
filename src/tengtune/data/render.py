"""Conversations, a batch at a time, to documents that fit into a row: judged, rendered, shortened."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tengtune.data.documents import Bool, Int32, Int64, ranges, starts
from tengtune.data.fault import Fault, Notes
from tengtune.data.formats.plain import PLAIN
from tengtune.data.judge import Judge
from tengtune.data.read import Outcome
from tengtune.data.shorten import Shortened, last_labels, shorten, split_plain
from tengtune.models.spec import ModelSpec
from tengtune.recipe import LabelPolicy, TooLong
from tengtune.text.chatml import default_system, render_flat, render_many
from tengtune.text.conversation import Conversation, Example
from tengtune.text.template import Template, of_folder
from tengtune.text.tokenizer import Tokenizer, open_tokenizer

BATCH = 512
BATCH_CHARACTERS = 1 << 18
"""Conversations rendered at a time: so many, or so much text."""


@dataclass
class Batch:
    """Conversations of one file, with the number and line of each one's record; all plain texts, or none."""

    file: str
    plain: bool
    talks: list[Conversation] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    lines: list[int | None] = field(default_factory=list)

    def usable(self, found: Mapping[int, Notes]) -> list[int]:
        """Which of the conversations can be used, after what was `found` on them (see judge.Judge.batch): a
        record is used as a whole or not at all, so that what is dropped can be counted in records."""
        rejected = {self.numbers[i] for i, notes in found.items() if notes.rejected}
        return [i for i, number in enumerate(self.numbers) if number not in rejected]


class Rendered(NamedTuple):
    """The documents of a batch: ids int32 [T] and train bool [T] one after the other, and for each document
    its length, its record's number and a hash of the whole conversation (equal for equal ones), int64 [n].

    tokens: the length of every conversation that was rendered, before it was shortened. faults: what was
    found, cut or dropped.
    """

    file: str
    ids: Int32
    train: Bool
    lengths: Int64
    records: Int64
    hashes: Int64
    tokens: Int64
    faults: list[Fault]


def batches(items: Iterable[Outcome | Fault], fault: Callable[[Fault], None]) -> Iterator[Batch]:
    """What was read in batches of about BATCH conversations, a record's together; faults go to `fault`."""
    batch = Batch("", False)
    size = 0
    for item in items:
        if isinstance(item, Fault):
            fault(item)
            continue
        file, record, talks, faults = item
        for each in faults:
            fault(each)
        for number, talk in enumerate(talks):
            plain = talk[0][0][0] == PLAIN
            full = size >= BATCH_CHARACTERS or len(batch.talks) >= BATCH
            if not number and (full or (batch.file, batch.plain) != (file, plain)):
                if batch.talks:
                    yield batch
                batch, size = Batch(file, plain), 0
            batch.talks.append(talk)
            batch.numbers.append(record[1])
            batch.lines.append(record[2])
            for message in talk[0]:
                size += len(message[1])
    if batch.talks:
        yield batch


@dataclass(frozen=True)
class Style:
    """How conversations are written. `system`: the text of the system turn of those that bring none."""

    tokenizer: Tokenizer
    template: Template
    policy: LabelPolicy
    system: str

    def flat(self, talks: Sequence[Conversation]) -> tuple[Int32, Bool, Int64]:
        """ids, mask and where each conversation begins; see chatml.render_flat."""
        return render_flat(talks, self.tokenizer, self.policy, self.system, self.template)

    def many(self, talks: Sequence[Conversation]) -> list[Example]:
        """The same as examples."""
        return render_many(talks, self.tokenizer, self.policy, self.system, self.template)

    def plain(self, talks: Sequence[Conversation]) -> tuple[Int32, Bool, Int64]:
        """Plain texts, each closed by the end-of-text token; all of it is trained."""
        ids, sizes = self.tokenizer.encode_flat([talk.messages[0].content for talk in talks])
        ids = np.insert(ids, np.cumsum(sizes), self.tokenizer.endoftext)
        return ids, np.ones(len(ids), np.bool_), starts(sizes + 1)


def style_of(folder: Path, spec: ModelSpec, policy: LabelPolicy, system: str | None) -> Style:
    """How the model in `folder` wants conversations written. Problem when its vocabulary does not fit it."""
    tokenizer = open_tokenizer(folder)
    tokenizer.fits(spec)
    template = of_folder(folder, spec.family, tokenizer)
    return Style(tokenizer, template, policy, default_system(system, policy, template))


class Renderer:
    """renderer(batch) -> Rendered."""

    def __init__(self, style: Style, judge: Judge, seq_len: int, too_long: TooLong) -> None:
        self.style, self.judge, self.seq_len, self.too_long = style, judge, seq_len, too_long

    def __call__(self, batch: Batch) -> Rendered:
        """Judge, render and shorten a batch."""
        kept, faults = self.judged(batch)
        talks = [batch.talks[i] for i in kept]
        ids, train, begins = self.style.plain(talks) if batch.plain else self.style.flat(talks)
        train[begins[:-1][begins[:-1] < begins[1:]]] = False  # the first token is nobody's label
        last = last_labels(train, begins)
        parts: list[_Part] = []
        first = 0
        for i in np.flatnonzero((last < 0) | (last >= self.seq_len)).tolist():
            parts.append(_whole(ids, train, begins[first : i + 1], last[first:i], first))
            document = slice(begins[i], begins[i + 1])
            short = self.shorten(talks[i], Example(ids[document], train[document]), batch.plain)
            parts.append(_shortened(short.examples, i))
            if short.code:
                place = batch.file, batch.numbers[kept[i]], batch.lines[kept[i]]
                faults.append(Fault(*place, short.code, short.values, dropped=not short.examples))
            first = i + 1
        parts.append(_whole(ids, train, begins[first:], last[first:], first))
        hashes, records = _hashes(ids, begins), np.array(batch.numbers, np.int64)[kept]
        ids, train, lengths, of = map(np.concatenate, zip(*parts, strict=True))
        return Rendered(batch.file, ids, train, lengths, records[of], hashes[of], np.diff(begins), faults)

    def judged(self, batch: Batch) -> tuple[Int64, list[Fault]]:
        """Which of a batch's conversations can be used, int64 [n], and what was found on all of them."""
        found = self.judge.batch(batch.talks)
        faults = [
            fault
            for i, notes in found.items()
            for fault in notes.faults(batch.file, batch.numbers[i], batch.lines[i])
        ]
        return np.array(batch.usable(found), np.int64), faults

    def shorten(self, talk: Conversation, example: Example, plain: bool) -> Shortened:
        """What becomes of a conversation that does not fit as it is."""
        if not plain:
            return shorten(talk, example, self.style.many, self.seq_len, self.too_long)
        values = {"tokens": len(example.ids), "seq_len": self.seq_len}
        if self.too_long == "drop":
            return Shortened([], "too_long", values)
        parts = split_plain(example, self.seq_len)
        return Shortened(parts, "split", {**values, "parts": len(parts)})


_Part = tuple[Int32, Bool, Int64, Int64]
"""Documents that follow each other: ids, masks, lengths, and the number of each one's conversation."""


def _whole(ids: Int32, train: Bool, begins: Int64, last: Int64, first: int) -> _Part:
    """Documents that fit, begins int64 [n+1]; what follows the last label of each, last [n], is left out."""
    lengths = last + 1
    tails = np.diff(begins) - lengths
    keep = np.ones(begins[-1] - begins[0], np.bool_)
    keep[ranges(begins[:-1] - begins[0] + lengths, tails)] = False
    span = slice(begins[0], begins[-1])
    return ids[span][keep], train[span][keep], lengths, np.arange(first, first + len(last))


def _shortened(examples: list[Example], number: int) -> _Part:
    """The documents a conversation was made into; its end beyond the last label is gone already."""
    lengths = np.array([len(example.ids) for example in examples], np.int64)
    none = Example(np.empty(0, np.int32), np.empty(0, np.bool_))
    ids = np.concatenate([example.ids for example in (none, *examples)])
    train = np.concatenate([example.train for example in (none, *examples)])
    return ids, train, lengths, np.full(len(examples), number)


def _hashes(ids: Int32, begins: Int64) -> Int64:
    """A hash of each document's ids, int64 [n]."""
    raw = ids.tobytes()
    places = (4 * begins).tolist()
    return np.array([hash(raw[a:b]) for a, b in pairwise(places)], np.int64)
