"""Conversations as the rows of a MindRecord, as mindformers' preprocessing scripts make them: one in each,
padded on the right to seq_length + 1 (the model trains [:-1] against [1:])."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tengtune.data.documents import Int32, Int64
from tengtune.data.fault import Fault
from tengtune.data.render import Batch, Renderer
from tengtune.data.shorten import Shortened
from tengtune.text.conversation import Conversation, Example
from tengtune.train.batch import NO_LABEL


class Form(NamedTuple):
    """What a MindRecord's rows are like: how long, the id that pads, what the label column is called."""

    length: int
    pad: int
    label: str


class Rows(NamedTuple):
    """Rows of a batch: ids and labels int32 [n, length]. records: the number of each one's record; tokens:
    the length of each conversation; int64. faults: what was found, cut or dropped."""

    ids: Int32
    labels: Int32
    records: Int64
    tokens: Int64
    faults: list[Fault]


class RowMaker:
    """maker(batch) -> Rows. What is cut is cut at the row's end, whatever stands there, as the scripts do."""

    def __init__(self, renderer: Renderer, form: Form) -> None:
        """`renderer` for rows of form.length."""
        self.renderer, self.form = renderer, form

    def __call__(self, batch: Batch) -> Rows:
        """Judge, render, cut and pad a batch."""
        kept, faults = self.renderer.judged(batch)
        talks = [batch.talks[i] for i in kept]
        style = self.renderer.style
        ids, train, begins = style.plain(talks) if batch.plain else style.flat(talks)
        examples: list[Example] = []
        records: list[int] = []
        for i, talk in enumerate(talks):
            document = slice(begins[i], begins[i + 1])
            place = batch.file, batch.numbers[kept[i]], batch.lines[kept[i]]
            short = self._rows_of(talk, Example(ids[document], train[document]), batch.plain)
            if short.code:
                faults.append(Fault(*place, short.code, short.values, dropped=not short.examples))
            examples += short.examples
            records += [place[1]] * len(short.examples)
        return Rows(*self._padded(examples), np.array(records, np.int64), np.diff(begins), faults)

    def _rows_of(self, talk: Conversation, example: Example, plain: bool) -> Shortened:
        length = self.form.length
        if plain and len(example.ids) <= length:
            return Shortened([example], "", {})
        short = self.renderer.shorten(talk, example, plain)
        if short.code not in ("", "cut"):
            return short
        return short._replace(examples=[Example(example.ids[:length], example.train[:length])])

    def _padded(self, examples: list[Example]) -> tuple[Int32, Int32]:
        shape = len(examples), self.form.length
        ids, labels = np.full(shape, self.form.pad, np.int32), np.full(shape, NO_LABEL, np.int32)
        for row, example in enumerate(examples):
            ids[row, : len(example.ids)] = example.ids
            labels[row, : len(example.ids)] = np.where(example.train, example.ids, NO_LABEL)
        return ids, labels
