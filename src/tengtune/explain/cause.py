"""Which of the errors in the logs is the cause, and which only follow from it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import pairwise

from tengtune.explain.details import Detail, absent_ranks, detail_of
from tengtune.explain.known import Error, exception_of_a_rank
from tengtune.explain.scan import Hit
from tengtune.explain.suspicious import HINT

QUIET = timedelta(hours=2)
"""After so long without an error what comes is another failure: plog folders keep those of weeks. HCCL waits
for others half an hour at most before it says so."""
LATER = timedelta(minutes=1)
"""A cause comes before what follows from it; so much for clocks."""
SUSPECTS = 3
CERTAIN = 5
"""How suspicious a line is that ends a program: an exception, a crash."""
CLOSE = 20
"""Lines above an error in which an exception is that error, in Python's words."""
CHAIN = 60
"""Lines within which a rank's exceptions are taken as one that led to the next."""
WAITING = ("collectives", "missing_ranks", "absent")
"""Computations on errors of those who wait for other ranks."""
_NEVER = datetime.max


@dataclass(frozen=True)
class Diagnosis:
    """error: the cause, None when no error we know is one. evidence: the line that was first, then those
    that say the same; without a cause the most suspicious lines. also: a line of each other error, in order
    of time; without a cause the warnings. wrappers: ids that say that something failed and not what. earlier:
    errors of failures before. unexplained: beside a symptom, exceptions before it that we do not know."""

    error: Error | None
    evidence: Sequence[Hit]
    detail: Detail | None
    also: Sequence[Hit]
    wrappers: Sequence[str]
    earlier: Sequence[Hit]
    unexplained: Sequence[Hit] = ()


def diagnose(hits: Iterable[Hit]) -> Diagnosis:
    """The cause, from all lines of all logs, each log's in their order."""
    everything = _dated(hits)
    known = [hit for hit in everything if hit.error and hit.error.kind != "wrapper"]
    latest, before = _last_failure(known)
    wrappers = sorted({hit.error.id for hit in everything if hit.error and hit.error.kind == "wrapper"})
    first = _first(latest)
    strange = _exceptions(everything, latest)
    if first is None or first.error is None or (first.error.kind == "warning" and strange):
        return Diagnosis(None, _suspects(everything), None, _one_of_each(latest), wrappers, [])
    own = _own_error(first, latest, strange) if first.error.kind == "symptom" else []
    if own:
        first, latest = own[0], [*own, *(hit for hit in latest if hit not in own)]
    error = first.error
    same = [hit for hit in latest if hit.error is error]
    evidence = [first, *(hit for hit in same if hit is not first)]
    elsewhere = (hit for hit in latest if (hit.file, hit.line) != (first.file, first.line))
    others = [hit for hit in _one_of_each(elsewhere) if hit.error is not error]
    symptom = error is not None and error.kind == "symptom"
    unexplained = _suspects(_before(first, strange)) if symptom else []
    detail = Detail("explain.own_rank", {"rank": first.rank}) if own else detail_of(evidence)
    return Diagnosis(error, evidence, detail, others, wrappers, _one_of_each(before), unexplained)


def _dated(hits: Iterable[Hit]) -> list[Hit]:
    """All lines by time; one without takes that of the line before it in its log, else of the one after."""
    by_file: dict[str, list[Hit]] = {}
    for hit in hits:
        by_file.setdefault(hit.file, []).append(hit)
    dated: list[Hit] = []
    for each in by_file.values():
        each.sort(key=lambda hit: hit.line)
        when = next((hit.when for hit in each if hit.when), None)
        for hit in each:
            when = hit.when or when
            dated.append(replace(hit, when=when))
    return sorted(dated, key=lambda hit: hit.when or _NEVER)


def _last_failure(hits: Sequence[Hit]) -> tuple[list[Hit], list[Hit]]:
    """The lines of the last failure, and those of earlier ones; lines without a time belong to the last. If
    there is more than warnings, these neither make a failure nor keep two together."""
    failing = [hit for hit in hits if hit.error and hit.error.kind != "warning"] or hits
    begin = None
    for before, now in pairwise(hit.when for hit in failing):
        if now and before and now - before > QUIET:
            begin = now
    if begin is None:
        return list(hits), []
    latest = [hit for hit in hits if hit.when is None or hit.when >= begin]
    return latest, [hit for hit in hits if hit.when is not None and hit.when < begin]


def _first(hits: Sequence[Hit]) -> Hit | None:
    """The line of the cause: the first that is a cause by itself, unless all these come after others had
    already felt it; else the first symptom, else the first warning."""
    present = {hit.error.id: hit.error for hit in hits if hit.error}
    followers = {id for error in present.values() for id in error.over}
    by_kind: dict[str, Hit] = {}
    for hit in hits:
        if hit.error and hit.error.id not in followers:
            by_kind.setdefault(hit.error.kind, hit)
    root, symptom = by_kind.get("root"), by_kind.get("symptom")
    if root and symptom and root.when and symptom.when and root.when - symptom.when > LATER:
        return symptom
    return root or symptom or by_kind.get("warning")


def _own_error(symptom: Hit, latest: Sequence[Hit], strange: Sequence[Hit]) -> list[Hit]:
    """What the ranks that others waited for died of before, if the logs tell: an error that we know, else the
    exceptions of the last chain of them."""
    waiting = [hit for hit in latest if hit.error and hit.error.detail in WAITING]
    absent = absent_ranks(waiting)
    if not absent:
        return []
    told = [hit for hit in latest if hit.error and hit.error.kind == "symptom" and not hit.error.detail]
    for hits in (told, strange):
        of_those = [hit for hit in hits if hit.rank in absent and _is_before(hit, symptom)]
        if of_those and hits is told:
            return of_those[:1]
        if of_those:
            last = of_those[-1]
            chain = [hit for hit in of_those if hit.file == last.file and last.line - hit.line < CHAIN]
            error = exception_of_a_rank()
            return [replace(hit, error=error) for hit in chain]
    return []


def _is_before(hit: Hit, symptom: Hit) -> bool:
    """Whether another rank's line may have come before a symptom."""
    if hit.file == symptom.file:
        return hit.line < symptom.line
    return hit.when is None or symptom.when is None or hit.when <= symptom.when


def _exceptions(everything: Iterable[Hit], latest: Sequence[Hit]) -> list[Hit]:
    """The lines of the last failure that end a program and tell of no error that we know."""
    told = {(hit.file, hit.line) for hit in everything if hit.error}
    begin = min((hit.when for hit in latest if hit.when), default=None)
    return [
        hit
        for hit in everything
        if hit.score >= CERTAIN
        and (hit.file, hit.line) not in told
        and not (begin and hit.when and begin - hit.when > QUIET)
    ]


def _before(symptom: Hit, hits: Iterable[Hit]) -> list[Hit]:
    """Those that may have come before a symptom and are not its own exception."""
    found = []
    for hit in hits:
        if hit.file == symptom.file:
            early = hit.line < symptom.line - CLOSE
        else:
            early = hit.when is None or symptom.when is None or hit.when <= symptom.when
        if early:
            found.append(hit)
    return found


def _one_of_each(hits: Iterable[Hit]) -> list[Hit]:
    """The first line of each error."""
    first: dict[str, Hit] = {}
    for hit in hits:
        if hit.error:
            first.setdefault(hit.error.id, hit)
    return list(first.values())


def _suspects(hits: Sequence[Hit]) -> list[Hit]:
    """The most suspicious lines, the earlier of two alike; the same but for numbers is the same. What is told
    as an error that we know is not among them, and mere hints are only where there is nothing else."""
    told = {(hit.file, hit.line) for hit in hits if hit.error and hit.error.kind != "wrapper"}
    strange = [hit for hit in hits if hit.error is None and (hit.file, hit.line) not in told]
    strange = [hit for hit in strange if hit.score > HINT] or strange
    chosen: dict[str, Hit] = {}
    for hit in sorted(strange, key=lambda hit: -hit.score):
        chosen.setdefault("".join(c for c in hit.text if not c.isdigit()), hit)
    return list(chosen.values())[:SUSPECTS]


def ranks(hits: Iterable[Hit]) -> list[int]:
    """The ranks these lines are of."""
    return sorted({hit.rank for hit in hits if hit.rank is not None})
