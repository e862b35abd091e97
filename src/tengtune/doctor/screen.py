"""The answer: for a person one screen, for a program its data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tengtune.doctor.cards import gigabytes, holders
from tengtune.doctor.finding import Case, Finding, Level
from tengtune.host.survey import Card
from tengtune.ui import language
from tengtune.ui.layout import columns

ORDER: tuple[Level, ...] = ("block", "warn", "unknown", "ok")
_COLOURS = {"block": "\033[31m", "warn": "\033[33m", "unknown": "\033[35m", "ok": "\033[32m"}


def text(case: Case, findings: Sequence[Finding], colour: bool, quiet: bool = False) -> str:
    """The cards, then the findings, the worst first, then the verdict. quiet: without cards and
    what is well."""
    shown = [each for each in findings if not quiet or each.level != "ok"]
    lines = [] if quiet else _table([_row(case, card) for card in case.host.cards])
    if lines:
        lines.append("")
    tags: dict[str, str] = language.lookup("doctor.levels")
    width = max(map(columns, tags.values()))
    for finding in sorted(shown, key=lambda each: ORDER.index(each.level)):
        lines += _finding(finding, tags[finding.level], width, colour)
    return "\n".join([*lines, *([""] if lines else []), verdict(findings)])


def verdict(findings: Sequence[Finding]) -> str:
    """Whether something is in the way."""
    counts: dict[str, object] = {level: sum(f.level == level for f in findings) for level in ORDER}
    code = "doctor.blocked" if counts["block"] else "doctor.clear"
    return language.say(code, **counts)


def data(case: Case, findings: Sequence[Finding]) -> dict[str, Any]:
    """The same for --json."""
    return {
        "fit": all(finding.level != "block" for finding in findings),
        "cards": [_card(case, card) for card in case.host.cards],
        "findings": [finding.as_json() for finding in findings],
    }


def _card(case: Case, card: Card) -> dict[str, Any]:
    chip = card.chip
    return {
        "card": card.number,
        "npu": chip.npu,
        "chip": chip.chip,
        "name": chip.name,
        "generation": card.generation.name if card.generation else None,
        "health": chip.health,
        "codes": list(card.codes),
        "memory_mb": {"used": card.used_mb, "total": card.total_mb},
        "in_use": card.in_use,
        "processes": [
            {"pid": each.pid, "name": each.name, "memory_mb": each.memory_mb}
            for each in case.host.table.on(chip)
        ],
    }


def _row(case: Case, card: Card) -> list[str]:
    used, total = card.used_mb, card.total_mb
    memory = ["?"] * 3
    if used is not None and total is not None:
        memory = [gigabytes(each).removesuffix(" GB") for each in (total, used, total - used)]
    generation = card.generation.name if card.generation else "?"
    held = holders(case, card) or ("-" if card.in_use is False else "?")
    return [str(card.number), card.chip.name, generation, card.chip.health or "?", *memory, held]


def _table(rows: list[list[str]]) -> list[str]:
    if not rows:
        return []
    heads: list[str] = language.lookup("doctor.columns")
    widths = [max(columns(row[i]) for row in [heads, *rows]) for i in range(len(heads))]
    return ["  ".join(map(_padded, row, widths)).rstrip() for row in [heads, *rows]]


def _finding(finding: Finding, tag: str, width: int, colour: bool) -> list[str]:
    on, off = (_COLOURS[finding.level], "\033[0m") if colour else ("", "")
    texts = finding.texts()
    lines = [f"{on}{_padded(tag, width)}{off}  {texts['what']}"]
    if finding.level != "ok":
        labels = language.lookup("ui.problem_labels")
        margin = " " * (width + 2)
        lines += [f"{margin}{labels[part]} {texts[part]}" for part in ("why", "fix") if texts.get(part)]
    return lines


def _padded(text: str, width: int) -> str:
    return text + " " * (width - columns(text))
