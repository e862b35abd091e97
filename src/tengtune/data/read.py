"""Files to conversations: every record becomes a Conversation, or a Fault that says why not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tengtune.data import formats
from tengtune.data.fault import Fault, Note, Unfit
from tengtune.data.json_stream import Record, read_records
from tengtune.text.conversation import Conversation, Message

Judge = Callable[[Sequence[Message], Note], None]
"""judge(messages, note): raises Unfit where a conversation must not be used."""


def accept(messages: Sequence[Message], note: Note) -> None:
    """The judge that takes everything."""


class Reader:
    """Reads data files. While it goes it counts records, the keys it saw and those it did not use."""

    def __init__(self, files: Mapping[str, Path], format: str = "auto", judge: Judge = accept) -> None:
        """`files`: name in reports -> path. `format`: a name of formats.FORMATS, or "auto" (by each
        record's keys). `judge` has the last word on every conversation: see data/judge.py."""
        self.files, self.format, self.judge = files, format, judge
        self.records = 0
        self.keys: Counter[str] = Counter()
        self.unused: Counter[str] = Counter()

    def read(self, advance: Callable[[int], None] = lambda count: None) -> Iterator[Conversation | Fault]:
        """All records of all files in order; `advance` is told how many bytes were read.

        Raises Problem where a file as a whole cannot be read (see json_stream.read_records).
        """
        for name, path in self.files.items():
            for item in read_records(path, name, advance):
                if isinstance(item, Fault):
                    self.records += item.record is not None
                    yield item
                else:
                    self.records += 1
                    yield from self._convert(item, name)

    def _convert(self, record: Record, name: str) -> Iterator[Conversation | Fault]:
        remarks: list[Fault] = []

        def remark(code: str, dropped: bool = False, **values: Any) -> None:
            remarks.append(Fault(name, record.number, record.line, code, values, dropped))

        if isinstance(record.value, dict):
            self.keys.update(map(str, record.value))
        try:
            form = formats.choose(record.value, self.format)
            messages = form.read(record.value, remark)
            self.judge(messages, remark)
        except Unfit as unfit:
            remark(unfit.code, True, **unfit.values)
        else:
            self.unused.update(form.unused(record.value))
            yield Conversation(messages, source=f"{name}:{record.number}")
        yield from remarks
