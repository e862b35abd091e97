"""What `data check` shows: faults by kind, copies, contradictions, languages, lengths, what a row cuts."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from tengtune.data.fault import place
from tengtune.ui import language
from tengtune.ui.console import Console
from tengtune.ui.lists import clauses, joined

if TYPE_CHECKING:
    from tengtune.data.check import Account, Place, RowLength
    from tengtune.data.documents import Int64
    from tengtune.data.read import Reader

BAR = 40
"""Characters of the histogram's longest bar."""


def show(console: Console, account: Account, reader: Reader, rows: list[RowLength], in_tokens: bool) -> None:
    """Show everything; under --json as one result."""
    report = account.report
    copies, copied = account.copies()
    contradictions, contradicted = account.contradictions()
    lengths, total = report.percentiles(), int(report.all_lengths().sum())
    dropped = report.dropped.total()
    say = language.say
    counts = {
        "files": len(reader.files),
        "records": reader.records,
        "usable": report.kept,
        "dropped": dropped,
    }
    lines = [say("check.files", **counts)] if reader.records or report.of_files else []
    lines += _faults(account, report.of_files, "check.of_files")
    lines += _faults(account, report.dropped, "check.unusable")
    lines += _faults(account, report.remarks, "check.odd")
    lines += [""] if len(lines) > 1 else []
    if reader.unused:
        lines.append(say("check.unused", keys=joined(f"{k} ({n})" for k, n in reader.unused.most_common(12))))
    if copies:
        lines.append(say("check.copies", count=copies, pairs=_pairs(copied, copies)))
    if contradictions:
        lines.append(
            say("check.contradictions", count=contradictions, pairs=_pairs(contradicted, contradictions))
        )
    if report.kept and not (report.of_files or report.dropped or report.remarks or copies or contradictions):
        lines.append(say("check.clean"))
    if lengths:
        shares = account.languages.most_common()
        told = joined(
            f"{say(f'check.{name}')} {count / sum(account.languages.values()):.0%}" for name, count in shares
        )
        lines.append(say("check.languages", shares=told))
        code = "check.lengths" if in_tokens else "check.characters"
        lines.append(say(code, total=f"{total:,}", **{name: f"{n:,}" for name, n in lengths.items()}))
        lines += histogram(report.all_lengths())
    if lines and console.mode != "json":
        console.result("\n".join(lines))
    _row_table(console, rows)
    console.event(
        "account",
        **counts,
        file_faults=dict(report.of_files),
        kinds=dict(report.dropped),
        remarks=dict(report.remarks),
        unused_keys=dict(reader.unused),
        copies=copies,
        contradictions=contradictions,
        languages=dict(account.languages),
        unit="tokens" if in_tokens else "characters",
        lengths=lengths,
        total=total,
        rows=[row._asdict() for row in rows],
    )


def _faults(account: Account, counts: Counter[str], title: str) -> list[str]:
    """Each kind of fault: how often, what to do, and the first places with their reasons."""
    lines: list[str] = []
    for code, count in counts.most_common():
        first = account.report.first[code]
        lines += [] if lines else ["", language.say(title)]
        lines.append("  " + language.say("check.kind", name=code, count=count))
        lines += [f"    {fault.told()}" for fault in first]
        if count > len(first):
            lines.append("    " + language.say("check.more", count=count - len(first)))
        if first[0].fix():
            lines.append("    " + language.say("check.fix", fix=first[0].fix()))
    return lines


def _pairs(pairs: list[tuple[Place, Place]], count: int) -> str:
    """ "a.json, record 5 / a.json, record 1; ..." """
    told = [f"{place(*later)} / {place(*earlier)}" for later, earlier in pairs]
    return clauses(told + (["..."] if count > len(told) else []))


def histogram(lengths: Int64) -> list[str]:
    """Lines of bars over powers of two."""
    powers = np.ceil(np.log2(np.maximum(lengths, 1))).astype(np.int64)
    counts = np.bincount(powers)
    lines = []
    for power in range(int(powers.min()), len(counts)):
        bar = "█" * round(BAR * counts[power] / counts.max())
        most = language.say("check.up_to", most=f"{1 << power:>9,}")
        lines.append(f"  {most}  {bar:<{BAR}} {counts[power]:,}")
    return lines


def _row_table(console: Console, rows: list[RowLength]) -> None:
    """What lengths of a row would mean."""
    if rows and console.mode == "normal":
        cells = [
            [f"{r.seq_len:,}", f"{r.longer:,}", f"{r.beyond:,}", f"{r.rows:,}", f"{r.fill:.1%}"] for r in rows
        ]
        console.table(language.say("check.columns").split("|"), cells, language.say("check.rows_title"))
