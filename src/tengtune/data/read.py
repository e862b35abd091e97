"""Files to conversations: every record becomes one (or several), or is told with the reasons why not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tengtune.data import formats
from tengtune.data.fault import Fault, Notes, Unfit
from tengtune.data.formats import Format, tools
from tengtune.data.formats.values import as_object
from tengtune.data.json_value import Record
from tengtune.data.records import read_records
from tengtune.data.rename import Names, inverted, renamed
from tengtune.text.conversation import Conversation
from tengtune.ui.lists import joined

MOST_SHAPES = 1000


class Shape:
    """What is known of all records with the same keys in the same order."""

    def __init__(self, keys: tuple[str, ...], wanted: str) -> None:
        self.keys, self.count = keys, 0
        self.names: Names = {}
        self.form = formats.choose(keys, wanted)
        if self.form is None:  # the header of a table may be in capitals, or have blanks around its names
            lower = {key: key.strip().lower() for key in keys}
            self.form = formats.choose(lower.values(), wanted)
            self.names = {key: name for key, name in lower.items() if self.form and key != name}
        known = [self.names.get(key, key) for key in keys]
        self.unused = [key for key in known if self.form and key not in self.form.keys]
        self.misspelt = formats.misspelt(known, self.form) if self.form else None


class Outcome(NamedTuple):
    """What became of a record: its conversations (none when it is dropped), and its faults."""

    file: str
    record: Record
    conversations: list[Conversation]
    faults: list[Fault]


class Reader:
    """Reads data files. While it goes it counts the records and the keys it did not use."""

    def __init__(
        self,
        files: Mapping[str, Path],
        format: str = "auto",
        mapping: Mapping[str, str] | None = None,
        where: object = None,
        lenient: bool = False,
    ) -> None:
        """`files`: name in reports -> path. `format`: a name of formats.FORMATS, or "auto" (by each record's
        keys). `mapping`: our names -> the files' (data.map); Problem, at `where`, if it makes no sense.
        `lenient`: see data/records.py."""
        self.files, self.format, self.lenient = files, format, lenient
        self.names = inverted(mapping or {}, where)
        self.records = 0
        self._unused_inside: Counter[str] = Counter()
        self._shapes: dict[tuple[str, ...], Shape] = {}

    @property
    def keys(self) -> Counter[str]:
        """The keys of the records, as they are called after mapping, and how often they were seen."""
        seen: Counter[str] = Counter()
        for shape in self._shapes.values():
            seen.update(dict.fromkeys(shape.keys, shape.count))
        return seen

    @property
    def unused(self) -> Counter[str]:
        """The keys that were not looked at, and how often they were seen."""
        seen = Counter(self._unused_inside)
        for shape in self._shapes.values():
            seen.update(dict.fromkeys(shape.unused, shape.count))
        return seen

    def read(self, advance: Callable[[int], None] = lambda count: None) -> Iterator[Outcome | Fault]:
        """All records of all files in order, and the faults of files as a whole and of what could not even be
        made out as a record; `advance` is told how many bytes were read.

        Raises Problem where a file as a whole cannot be read (see records.read_records).
        """
        for name in self.files:
            yield from self.read_file(name, advance)

    def read_file(
        self, name: str, advance: Callable[[int], None] = lambda count: None
    ) -> Iterator[Outcome | Fault]:
        """`read` for one of the files."""
        for item in read_records(self.files[name], name, advance, self.is_record, self.lenient):
            if isinstance(item, Record):
                self.records += 1
                yield self.outcome(item, name)
            else:
                self.records += item.record is not None
                yield item

    def is_record(self, value: Any) -> bool:
        """Whether a value has the keys of a record."""
        if not isinstance(value, dict):
            return False
        keys = [str(self.names.get(key, key)).strip().lower() for key in value]
        return formats.choose(keys, self.format) is not None

    def outcome(self, record: Record, name: str) -> Outcome:
        """What becomes of one record of the file called `name`."""
        value = record.value
        notes = Notes()
        found: list[Conversation] = []
        source = f"{name}:{record.number}"
        try:
            if self.names:
                value = renamed(value, self.names)
            if type(value) is list and value and all(type(turn) is dict for turn in value):
                value = {"messages": value}
            value, form = self._shaped(value)
            offered = self._tools(value, notes) if form.tools and "tools" in value else ()
            read = form.read(value, notes)
            found = [Conversation(tuple(each), offered, source) for each in (read if form.many else (read,))]
            if not notes.rejected and not all(talk[0] for talk in found):
                raise Unfit("no_turns", key="record")
        except Unfit as unfit:
            notes.reject(unfit)
        if notes.unused:
            self._unused_inside.update(notes.unused)
        if not notes.found and not record.mended:
            return Outcome(name, record, found, [])
        faults = [*record.mended, *notes.faults(name, record.number, record.line)]
        return Outcome(name, record, [] if any(f.dropped for f in faults) else found, faults)

    def _tools(self, value: dict[str, Any], notes: Notes) -> tuple[dict[str, Any], ...]:
        try:
            return tools.offered(value.get("tools"))
        except Unfit as unfit:
            notes.reject(unfit)
            return ()

    def _shaped(self, value: Any) -> tuple[dict[str, Any], Format]:
        """The record with names we know, and its format. Unfit when it is no object or of no format."""
        record = as_object(value, "record")
        keys = tuple(record)
        shape = self._shapes.get(keys)
        if shape is None:
            shape = Shape(keys, self.format)
            if len(self._shapes) < MOST_SHAPES:
                self._shapes[keys] = shape
        shape.count += 1
        if shape.form is None:
            raise _no_format(keys, self.format)
        if shape.misspelt:
            key, near = shape.misspelt
            raise Unfit("misspelt", key=key, near=near)
        return (renamed(record, shape.names) if shape.names else record), shape.form


def one_conversation(value: Any) -> Conversation:
    """The conversation a single record holds. Unfit, with the first reason, when it holds none or several."""
    outcome = Reader({}).outcome(Record(value, 0, None), "")
    for fault in outcome.faults:
        if fault.dropped:
            raise Unfit(fault.code, **fault.values)
    if len(outcome.conversations) != 1:
        raise Unfit("several", count=len(outcome.conversations))
    return outcome.conversations[0]


def _no_format(keys: tuple[str, ...], wanted: str) -> Unfit:
    """Why a record with these keys is of no format."""
    shown = joined(sorted(key[:40] for key in keys)[:12]) or "-"
    if {"chosen", "rejected"} <= set(keys):
        return Unfit("preference", keys=shown)
    if len(keys) > 1 and formats.turns.TURN_KEYS.issuperset(keys):
        return Unfit("bare_turn", keys=shown)
    probable = formats.probable(keys, wanted)
    if probable:
        return Unfit("misspelt", key=probable[0], near=probable[1])
    return Unfit("no_format", keys=shown, expected=formats.expected(wanted))
