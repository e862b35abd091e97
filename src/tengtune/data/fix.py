"""`data check --fix OUT`: the records that can be used, mended where that is beyond doubt, as JSON Lines.

Beside OUT stand OUT.rejected.jsonl, the records that cannot be used with their reasons, and
OUT.changes.jsonl, what was changed. Every record of the input is in OUT or in OUT.rejected.jsonl.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

from tengtune import files
from tengtune.data.fault import Fault, Notes
from tengtune.data.formats import KEYS
from tengtune.data.json_stream import INNER_LISTS
from tengtune.data.json_value import Record, written
from tengtune.data.judge import Judge
from tengtune.data.read import Outcome, Reader
from tengtune.data.rename import renamed
from tengtune.ui import language

TEXT_KEYS = KEYS - INNER_LISTS
REJECTED, CHANGES = ".rejected.jsonl", ".changes.jsonl"


RECODED = ("wrong_encoding", "two_encodings", "other_encoding")
"""Faults of files that are written in another encoding, every record of them."""


def beside(out: Path) -> tuple[Path, Path]:
    """Where what was rejected and what was changed is written."""
    return out.with_name(out.name + REJECTED), out.with_name(out.name + CHANGES)


class Fixer:
    """Takes what a lenient reader gives, file faults included, and writes it sorted. counts: written, mended,
    copies, rejected."""

    def __init__(
        self, reader: Reader, judge: Judge, out: IO[str], rejected: IO[str], changes: IO[str]
    ) -> None:
        self.names, self.judge = reader.names, judge
        self._again = Reader({}, reader.format)  # for records that were mended; they have our names by then
        self.out, self.rejected, self.changes = out, rejected, changes
        self.counts: Counter[str] = Counter(written=0, mended=0, copies=0, rejected=0)
        self._seen: set[int] = set()
        self._as_it_was: Counter[str] = Counter()  # records written unmended, by file

    def take(self, item: Outcome | Fault) -> None:
        """Write one record, or note a fault of the file."""
        if isinstance(item, Fault):
            if item.record is None:
                self._of_file(item)
            else:
                self._reject(item.file, item.record, item.line, [item], raw=item.raw)
            return
        number, line = item.record.number, item.record.line
        mended = [done(fault) for fault in item.record.mended]
        value = renamed(item.record.value, self.names)
        reasons = self._against(self._read_again(item, value) if mended else item)
        if reasons:
            value, texts = mended_value(value)
            mended += texts
            reasons = self._against(self._read_again(item, value)) if texts else reasons
        known = without_nan(value)
        if known != value:
            mended.append(language.say("check.null"))
        text = written(known) if not reasons else ""
        if text and hash(text) in self._seen:
            self.counts["copies"] += 1
            reasons = [Fault(item.file, number, line, "copy")]
        if reasons:
            self._reject(item.file, number, line, reasons, value=item.record.value)
            return
        self._seen.add(hash(text))
        self.out.write(text + "\n")
        self.counts["written"] += 1
        if mended:
            self.counts["mended"] += 1
            reason = "; ".join(fault.reason() for fault in item.record.mended)
            self._change(item.file, number, line, "; ".join(mended), reason)
        else:
            self._as_it_was[item.file] += 1

    def _of_file(self, fault: Fault) -> None:
        """Note a fault of the file; it comes after the file's records."""
        if fault.code == "no_record":
            return
        if fault.raw:
            self._reject(fault.file, None, fault.line, [fault], raw=fault.raw)
        self._change(fault.file, None, fault.line, done(fault), fault.reason())
        if fault.code in RECODED and fault.values.get("guess") != "?":
            self.counts["mended"] += self._as_it_was.pop(fault.file, 0)

    def _read_again(self, item: Outcome, value: Any) -> Outcome:
        """What becomes of a record with a value that was mended."""
        return self._again.outcome(Record(value, item.record.number, item.record.line), item.file)

    def _against(self, outcome: Outcome) -> list[Fault]:
        """The reasons against a record."""
        record, faults = outcome.record, [fault for fault in outcome.faults if fault.dropped]
        for talk in outcome.conversations:
            notes = Notes()
            self.judge(talk, notes)
            faults += [f for f in notes.faults(outcome.file, record.number, record.line) if f.dropped]
        return faults

    def _reject(
        self, file: str, record: int | None, line: int | None, reasons: Iterable[Fault], **content: Any
    ) -> None:
        """`content`: the record as `value`, or its text as `raw`. `record`: None for a text that is none."""
        self.counts["rejected"] += 1
        told = [{"code": fault.code, "reason": fault.reason()} for fault in reasons]
        entry = {"file": file, "record": record, "line": line, "reasons": told, **without_nan(content, str)}
        self.rejected.write(written(entry) + "\n")

    def _change(self, file: str, record: int | None, line: int | None, change: str, reason: str) -> None:
        """`change`: what was done, `reason`: because of what, "" where the one says the other."""
        entry: dict[str, Any] = {"file": file, "record": record, "line": line, "change": change}
        if reason:
            entry["reason"] = reason
        self.changes.write(written(entry) + "\n")


@contextmanager
def fixer(reader: Reader, judge: Judge, out: Path) -> Iterator[Fixer]:
    """A Fixer whose three files are there, whole, when all went well, and not at all otherwise."""
    with ExitStack() as stack:
        streams = [stack.enter_context(files.atomic_file(path, "w")) for path in (out, *beside(out))]
        yield Fixer(reader, judge, *streams)


def done(fault: Fault) -> str:
    """What was done about a fault that kept nothing from being read, in the current language."""
    texts = language.area_messages("check")
    syntax = fault.values.get("syntax")
    code = f"check.done_{(syntax or fault.code).removeprefix('data.')}"
    if syntax and code not in texts:
        code = "check.done_read_on" if fault.record is None else "check.done"
    return language.say(code, **fault.values) if code in texts else fault.reason()


def mended_value(value: Any) -> tuple[Any, list[str]]:
    """A record with whole numbers where texts should be as texts; and what was changed. Of others it is not
    known how they were written (19.90, 1e5)."""
    changes: list[str] = []

    def text(inner: Any, at: str) -> Any:
        if isinstance(inner, bool) or not isinstance(inner, int):
            return inner
        changes.append(language.say("check.number", at=at))
        return str(inner)

    def turn(inner: Any, at: str) -> Any:
        if type(inner) is not dict:
            return inner
        return {k: text(v, f"{at} {k}") if k in ("content", "value") else v for k, v in inner.items()}

    if type(value) is not dict:
        return value, changes
    result = {key: text(inner, key) if key in TEXT_KEYS else inner for key, inner in value.items()}
    for key in INNER_LISTS & result.keys():
        if isinstance(result[key], list):
            result[key] = [turn(each, f"{key}[{i}]") for i, each in enumerate(result[key])]
    return result, changes


def without_nan(value: Any, instead: Callable[[float], Any] = lambda number: None) -> Any:
    """The value with null, or what `instead` gives, for the numbers JSON does not know."""
    if isinstance(value, float):
        return value if math.isfinite(value) else instead(value)
    if isinstance(value, dict):
        return {key: without_nan(inner, instead) for key, inner in value.items()}
    return [without_nan(inner, instead) for inner in value] if isinstance(value, list) else value
