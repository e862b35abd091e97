"""The answer: for a person, and for a program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tengtune.explain.cause import Diagnosis, ranks
from tengtune.explain.known import Error
from tengtune.explain.logs import Account
from tengtune.explain.scan import Hit
from tengtune.ui import language
from tengtune.ui.lists import SHOWN, joined, listed, size

EVIDENCE = 3
NOTHING = {"empty": "explain.empty", "binary": "explain.no_text", "text": "explain.no_failure"}
"""What is said where there is neither an error nor a suspicious line."""


def text(account: Account) -> str:
    """One screen: cause, evidence, what to do, what else there was; or the most suspicious lines."""
    found = account.diagnosis
    read = language.say(
        "explain.read", logs=account.logs, lines=f"{account.lines:,}", size=size(account.bytes)
    )
    if found.error is None:
        return "\n".join([*_unknown(account), read])
    labels = language.lookup("explain.labels")
    means, fix = told(found)
    head, *more = means.splitlines()
    lines = [f"{labels['cause']}{head}", *(f"  {line}" for line in more)]
    lines += [f"  {labels['where']} {line}" for line in _places(found.evidence[:1])]
    if len(seen := ranks(found.evidence)) > 1:
        lines.append(f"  {labels['ranks']} {listed(seen)}")
    lines += [f"  {labels['fix']} {fix}", f"  {labels['error']} {found.error.id}"]
    if found.also:
        lines += ["", labels["also"], *_others(found.also)]
    if found.unexplained:
        lines += ["", language.say("explain.unexplained")]
        lines += [f"  {line}" for line in _places(found.unexplained)]
    if found.wrappers:
        lines.append(language.say("explain.wrappers", ids=joined(found.wrappers)))
    if found.earlier:
        ids = joined(hit.error.id for hit in found.earlier if hit.error)
        lines.append(language.say("explain.earlier", ids=ids))
    return "\n".join([*lines, read])


def told(found: Diagnosis) -> tuple[str, str]:
    """What it means and what to do, with what was computed."""
    error, detail = found.error, found.detail
    if error is None:
        return "", ""
    if detail is None:
        return error.means, error.fix
    said: dict[str, str] = language.lookup(detail.code)
    parts = {part: language.fill(template, detail.values) for part, template in said.items()}
    return f"{error.means}\n{parts['means']}", parts.get("fix", error.fix)


def data(account: Account) -> dict[str, Any]:
    """The same for --json."""
    found = account.diagnosis
    means, fix = told(found)
    answer: dict[str, Any] = {"explained": found.error is not None}
    if found.error:
        answer |= {"id": found.error.id, "type": found.error.kind, "means": means, "fix": fix}
        answer |= {"source": found.error.source, "ranks": ranks(found.evidence)}
        answer["computed"] = dict(found.detail.data) if found.detail else None
    return answer | {
        "evidence": [_line(hit) for hit in found.evidence[: EVIDENCE + SHOWN]],
        "also": [_line(hit) | {"id": hit.error.id} for hit in found.also if hit.error],
        "unexplained": [_line(hit) for hit in found.unexplained],
        "wrappers": list(found.wrappers),
        "earlier": [_line(hit) | {"id": hit.error.id} for hit in found.earlier if hit.error],
        "logs": account.logs,
        "lines": account.lines,
        "bytes": account.bytes,
        "content": account.content,
    }


def for_launcher(found: Diagnosis) -> str:
    """A paragraph to put below a rank's last lines."""
    if found.error is None:
        return ""
    means, fix = (part.replace("\n", "\n  ") for part in told(found))
    return language.say(
        "explain.launcher", id=found.error.id, line=found.evidence[0].text, means=means, fix=fix
    )


def _unknown(account: Account) -> list[str]:
    found = account.diagnosis
    if not (found.wrappers or found.also or found.evidence):
        return [language.say(NOTHING[account.content]), "  " + language.say("explain.other_log")]
    lines = [language.say("explain.unknown")]
    if found.wrappers:
        lines.append("  " + language.say("explain.only_wrappers", ids=joined(found.wrappers)))
    if found.also:
        ids = joined(hit.error.id for hit in found.also if hit.error)
        lines.append("  " + language.say("explain.only_warnings", ids=ids))
    if found.evidence:
        lines += [language.say("explain.suspicious"), *(f"  {line}" for line in _places(found.evidence))]
    else:
        lines.append("  " + language.say("explain.nothing"))
    return [*lines, "  " + language.say("explain.ask")]


def _places(hits: Sequence[Hit]) -> list[str]:
    """file:line with rank and time, and the line itself below."""
    lines = []
    for hit in hits:
        place = [f"{hit.file}:{hit.line}"]
        place += [f"rank {hit.rank}"] if hit.rank is not None else []
        place += [f"{hit.when:%Y-%m-%d %H:%M:%S}"] if hit.when else []
        lines.append(f"{language.lookup('explain.comma').join(place)}\n      {hit.text}")
    return lines


def _others(hits: Sequence[Hit]) -> list[str]:
    lines = [f"  {_short(hit.error)} ({hit.file}:{hit.line})" for hit in hits[:SHOWN] if hit.error]
    if len(hits) > SHOWN:
        lines.append("  " + language.say("ui.and_more", count=len(hits) - SHOWN))
    return lines


def _short(error: Error) -> str:
    return f"{error.id}: {error.means}"


def _line(hit: Hit) -> dict[str, Any]:
    when = hit.when.isoformat(sep=" ") if hit.when else None
    return {"file": hit.file, "line": hit.line, "text": hit.text, "rank": hit.rank, "time": when}
