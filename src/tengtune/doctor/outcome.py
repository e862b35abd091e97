"""What probes gave, as findings: cards with the same result share a line."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tengtune import capabilities
from tengtune.backends.probe import LOAD
from tengtune.doctor.finding import Finding, Level
from tengtune.doctor.trial import End, Probe
from tengtune.ui import language
from tengtune.ui.lists import joined


@dataclass(frozen=True)
class Outcome:
    """How one trial ended. reason and advice are empty where the texts of `code` say all."""

    level: Level
    code: str
    trial: str
    reason: str = ""
    advice: str = ""


@dataclass(frozen=True)
class _Of:
    """Whose outcome: the card, its probe, and how far a result was off."""

    card: int
    probe: Probe
    device: str = ""
    error: float = 0.0
    limit: float = 0.0


def findings(ends: Iterable[tuple[int, End]], seconds: float) -> Iterator[Finding]:
    """A line for each trial and what came of it, of all cards it came of."""
    groups: dict[Outcome, list[_Of]] = {}
    for card, end in ends:
        for outcome, of in _outcomes(card, end):
            groups.setdefault(outcome, []).append(of)
    for outcome, members in groups.items():
        first = members[0]
        cards = joined(dict.fromkeys(str(of.card) for of in members))
        on_cpu = first.probe.device == "cpu"
        place = (
            language.say("doctor.probe_on_cpu") if on_cpu else language.say("doctor.probe_on", cards=cards)
        )
        trials: dict[str, str] = language.lookup("doctor.probe_trials")
        yield Finding(
            outcome.level,
            outcome.code,
            {
                "place": place,
                "framework": capabilities.NAMES[first.probe.backend],
                "trial": trials.get(outcome.trial, outcome.trial),
                "device": first.device,
                "error": f"{max(of.error for of in members):.1e}",
                "limit": f"{first.limit:.1e}",
                "seconds": f"{seconds:g}",
                "reason": outcome.reason,
                "advice": outcome.advice or language.say("doctor.probe_by_hand", command=first.probe.line()),
            },
        )


def _outcomes(card: int, end: End) -> Iterator[tuple[Outcome, _Of]]:
    for trial in (LOAD, *end.probe.trials):
        answer = end.answers.get(trial)
        if answer is None:
            continue
        if trial == LOAD and end.probe.ranks:
            continue  # it was told of each card alone
        if trial == LOAD:
            device = f"{answer['version']} ({answer['name']})"
            yield Outcome("ok", "doctor.probe_load", trial, device), _Of(card, end.probe, device)
        elif "failed" in answer:
            yield _failed(trial, str(answer["failed"]), str(answer["text"])), _Of(card, end.probe)
        else:
            of = _Of(card, end.probe, "", float(answer["error"]), float(answer["limit"]))
            yield _measured(trial, of.error <= of.limit), of
    if not end.whole:
        yield _broken(end), _Of(card, end.probe)


def _measured(trial: str, right: bool) -> Outcome:
    if right:
        return Outcome("ok", "doctor.probe_right", trial)
    return Outcome("warn" if trial == "fused" else "block", "doctor.probe_wrong", trial)


def _failed(trial: str, short: str, text: str) -> Outcome:
    """A trial that raised. Without the fused operator or bfloat16 a training goes on by another way."""
    reason, advice = _cause(text.encode())
    if trial == "fused":
        return Outcome("warn", "doctor.probe_no_fused", trial, reason or short, advice)
    if trial == "product_bfloat16":
        return Outcome("warn", "doctor.probe_no_bf16", trial, reason or short)
    return Outcome("block", "doctor.probe_failed", trial, reason or short, advice)


def _broken(end: End) -> Outcome:
    """A process that did not end well: it hangs, was killed by a signal, or could not load."""
    if end.code is None:
        return Outcome("unknown", "doctor.probe_hangs", end.during)
    reason, advice = _cause(end.said)
    if not reason:
        lines = end.said.decode("utf-8", "replace").strip().splitlines()
        reason = lines[-1][:300] if lines else language.say("doctor.probe_silent")
    if end.code < 0:
        reason = f"{signal.strsignal(-end.code)}: {reason}"
    return Outcome("block", "doctor.probe_died", end.during, reason, advice)


def _cause(text: bytes) -> tuple[str, str]:
    """What `tengtune explain` says of it, and what to do; else its most suspicious line, or nothing."""
    from tengtune.explain import known
    from tengtune.explain.cause import diagnose
    from tengtune.explain.scan import scan
    from tengtune.explain.screen import told
    from tengtune.explain.suspicious import HINT

    found = diagnose(scan([text], known.load(), "probe").hits)
    if found.error:
        values = {"means": found.error.means, "line": found.evidence[0].text[:200]}
        return language.say("doctor.probe_reason", **values), told(found)[1]
    strange = [hit for hit in found.evidence if hit.score > HINT]
    return (strange[0].text[:300], "") if strange else ("", "")
