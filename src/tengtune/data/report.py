"""The account of a data run: every record that was dropped, cut or odd, and the figures of what was made."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from tengtune.data.documents import Int64
from tengtune.data.fault import Fault
from tengtune.data.render import Rendered
from tengtune.data.store import Store
from tengtune.ui import language
from tengtune.ui.console import Console
from tengtune.ui.lists import joined

PERCENTILES = (50, 90, 99, 100)
SHOWN = 3
"""Records named on the screen for each reason; all of them are in the file."""


class Report:
    """Takes faults and lengths as they come; hands each fault on to `each`."""

    def __init__(self, each: Callable[[Fault], object], shown: int = SHOWN) -> None:
        """`shown`: how many of each kind of fault are kept in `first`."""
        self._each, self._shown = each, shown
        self.dropped: Counter[str] = Counter()
        self.remarks: Counter[str] = Counter()
        self.of_files: Counter[str] = Counter()  # faults and remarks of files as a whole
        self.broken = False  # one of those was a fault: the file is not what it should be
        self.kept = 0  # records that became at least one document
        self.first: dict[str, list[Fault]] = {}  # the first few of each code
        self._lengths = array("q")
        self._last: tuple[str, int | None] | None = None  # the record that was dropped last

    def fault(self, fault: Fault) -> None:
        """Count one fault and write it down. A record that is dropped for several reasons counts once, under
        the first of them; all are handed on."""
        self._each(fault)
        if fault.record is None:
            counts = self.of_files
            self.broken |= fault.dropped
        elif fault.dropped:
            place = fault.file, fault.record
            if place == self._last:
                return
            self._last, counts = place, self.dropped
        else:
            counts = self.remarks
        counts[fault.code] += 1
        first = self.first.setdefault(fault.code, [])
        if len(first) < self._shown:
            first.append(fault)

    def rendered(self, made: Rendered) -> None:
        """Take the figures and faults of a rendered batch."""
        self.kept += len(set(made.records.tolist()))
        self.lengths(made.tokens)
        for fault in made.faults:
            self.fault(fault)

    def lengths(self, lengths: Int64) -> None:
        """Take the lengths of conversations."""
        self._lengths.frombytes(lengths.tobytes())

    def percentiles(self) -> dict[str, int]:
        """Lengths of the rendered conversations in tokens: {"p50": ..., "p100": the longest}."""
        if not self._lengths:
            return {}
        values = np.percentile(self.all_lengths(), PERCENTILES, method="higher")
        return {f"p{p}": int(value) for p, value in zip(PERCENTILES, values, strict=True)}

    def all_lengths(self) -> Int64:
        """The lengths of all conversations, int64."""
        return np.array(self._lengths, np.int64)

    def reasons(self) -> list[str]:
        """For each reason a record was dropped for: how many, which first, and why; most frequent first."""
        return [self._line(code, count) for code, count in self.dropped.most_common()]

    def show(self, console: Console) -> None:
        """Dropped records as warnings, remarks as notes."""
        for code, count in self.of_files.most_common():
            console.say("data.of_file", line=self._line(code, count))
        for line in self.reasons():
            console.warn("data.dropped", line=line)
        for code, count in self.remarks.most_common():
            console.say("data.remark", line=self._line(code, count))

    def _line(self, code: str, count: int) -> str:
        first = self.first[code]
        also = [fault.where for fault in first[1:]] + (["..."] if count > len(first) else [])
        more = language.say("data.also", places=joined(also)) if also else ""
        reason = f"{first[0].told()}{more}"
        return language.say("data.reason_line", count=count, name=code, reason=reason)


def figures_of(store: Store | None) -> dict[str, Any] | None:
    """A store's counts, for the step's record."""
    if store is None:
        return None
    return {
        "rows": store.rows,
        "documents": store.documents,
        "tokens": store.tokens,
        "trained_tokens": store.trained_tokens,
        "fill": round(store.fill, 4),
    }


def show_stores(console: Console, stores: dict[str, Store | None]) -> None:
    """The stores side by side, as a table."""
    columns = [figures_of(store) for store in stores.values()]
    names = ("rows", "documents", "tokens", "trained_tokens", "fill")
    rows = [
        [language.say(f"data.{name}"), *("-" if c is None else _number(c[name]) for c in columns)]
        for name in names
    ]
    console.table(["", *(language.say(f"data.{name}") for name in stores)], rows)


def _number(value: float) -> str:
    return f"{value:.1%}" if isinstance(value, float) else f"{value:,}"
