"""What the figures say: did it learn, what did it forget, what went wrong, what to do next.

Every threshold of the page is here. Findings carry codes and values, their words are in ui/messages.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from tengtune.evaluate.forgetting import wording
from tengtune.report.evidence import Evidence
from tengtune.train.metrics import course

Level = Literal["good", "note", "warn", "bad"]
LEVELS: tuple[Level, ...] = ("good", "note", "warn", "bad")

CLEARLY, BARELY = 0.05, 0.005
"""The held-out loss fell by so great a share of itself: learned; by so small a one: no change."""
ENOUGH_TOKENS = 100
"""With fewer held-out tokens a change of the loss says nothing. From token to token it scatters by about one
nat, so that its mean over n tokens is known to 1 / sqrt(n): 0.1 with 100, which is CLEARLY of a loss of 2."""
ENOUGH_STEPS = 10
"""With fewer optimizer steps hardly anything was tried: the learning rate rises and sinks within them."""
OVERFITTED = 0.02
"""The best held-out loss of the training lies below the last by more than this share."""
MANY_DROPPED = 0.05


@dataclass(frozen=True)
class Finding:
    """One line of the verdict, "report.<code>" with its values; advice: codes of what to do about it."""

    level: Level
    code: str
    values: dict[str, Any] = field(default_factory=dict)
    advice: tuple[str, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """headline: the one or two sentences that stand first; findings: what supports and qualifies them."""

    headline: list[Finding]
    findings: list[Finding]

    @property
    def level(self) -> Level:
        """The worst of the headline's."""
        return max((each.level for each in self.headline), key=LEVELS.index)

    @property
    def advice(self) -> list[str]:
        """What to do next, each once, the most pressing first; none that contradicts another."""
        ordered = sorted(
            [*self.headline, *self.findings], key=lambda each: LEVELS.index(each.level), reverse=True
        )
        codes = [code for each in ordered for code in each.advice]
        if "more_steps" in codes:  # "gentler" is also fewer epochs
            codes = ["lower_lr" if code == "gentler" else code for code in codes]
        if {"gentler", "lower_lr"} & set(codes):
            codes = [code for code in codes if code != "train_more"]
        return list(dict.fromkeys(codes))


def judge(evidence: Evidence) -> Verdict:
    """The verdict on a run, finished or not."""
    if "train" not in evidence.records:
        return Verdict([_unfinished(evidence)], [*_training(evidence), *_data(evidence)])
    headline = [_learned(evidence)]
    if "evaluate" in evidence.records:
        headline.append(_forgotten(evidence.figures("evaluate")["general"]))
    findings = [*_overfitting(evidence), *_sets(evidence), *_training(evidence), *_data(evidence)]
    if evidence.failure:
        findings.insert(0, Finding("bad", "failed_later", {"step": evidence.failure.get("step")}))
    return Verdict(headline, findings)


def _unfinished(evidence: Evidence) -> Finding:
    """Training has not ended, or never began."""
    last = evidence.metrics[-1] if evidence.metrics else None
    if evidence.failure:
        return Finding("bad", "failed", {"step": evidence.failure.get("step")})
    if last is None:
        return Finding("note", "not_trained")
    stopped = last.get("event") == "stopped"
    return Finding(
        "warn" if stopped else "note", "stopped" if stopped else "going_on", {"step": last["step"]}
    )


def _learned(evidence: Evidence) -> Finding:
    scores, train = evidence.figures("evaluate"), evidence.figures("train")
    before, after = scores.get("loss_before"), scores.get("loss_after")
    if scores.get("tokens") and (before is None or after is None):
        told = {"before": _loss(before), "after": _loss(after)}
        return Finding("bad", "heldout_not_finite", told, ("lower_lr", "look_at_data"))
    if before is None or after is None:
        if train.get("last_loss") is None:
            return Finding("bad", "no_loss", {}, ("lower_lr", "look_at_data"))
        means = course([line["loss"] for line in evidence.steps])
        held = bool(evidence.figures("data").get("heldout"))
        ending, advice = ("_unscored", ("score_it",)) if held else ("", ("hold_out",))
        if means is None:
            return Finding("note", f"train_loss_short{ending}", {}, advice)
        values = {"first": f"{means[0]:.3f}", "last": f"{means[1]:.3f}", "count": means[2]}
        return Finding("note", f"train_loss_only{ending}", values, advice)
    values = {"before": f"{before:.3f}", "after": f"{after:.3f}"}
    tokens, steps = scores["tokens"], train["steps"]
    if lacking := too_little(tokens, steps):
        return Finding("note", "too_little", {**values, "tokens": tokens, "steps": steps}, lacking)
    fall = (before - after) / before
    values["percent"] = f"{abs(fall):.0%}"
    if fall >= CLEARLY:
        return Finding("good", "learned", values, ("ask_it",))
    if fall >= BARELY:
        return Finding("warn", "learned_little", values, ("train_more", "look_at_data"))
    if fall > -BARELY:
        return Finding("warn", "learned_nothing", values, ("train_more", "look_at_data"))
    return Finding("bad", "got_worse", values, ("lower_lr", "look_at_data"))


def _loss(value: float | None) -> str:
    return "NaN" if value is None else f"{value:.3f}"


def too_little(tokens: int, steps: int) -> tuple[str, ...]:
    """The advice for a run with too few held-out tokens or optimizer steps to judge it; () for any other."""
    lacking = {"more_heldout": tokens < ENOUGH_TOKENS, "more_steps": steps < ENOUGH_STEPS}
    return tuple(code for code, lacks in lacking.items() if lacks)


def _forgotten(general: dict[str, Any]) -> Finding:
    levels: dict[str, Level] = {"kept": "good", "weakened": "warn", "lost": "bad", "unknown": "note"}
    verdict = general["verdict"]
    code = f"general_{wording(verdict, general['known'], general['lost'])}"
    values = {
        "known": general["known"],
        "total": general["questions"],
        "still": general["known"] - general["lost"],
        "lost": general["lost"],
        "gained": general["gained"],
        "rise": "NaN" if general["loss_rise"] is None else f"{general['loss_rise']:+.2f}",
    }
    advice = ("mix_general", "gentler") if verdict in ("weakened", "lost") else ()
    return Finding(levels[verdict], code, values, advice)


def _overfitting(evidence: Evidence) -> Iterator[Finding]:
    train, after = evidence.figures("train"), evidence.figures("evaluate").get("loss_after")
    best, step = train.get("best_heldout_loss"), train.get("best_step")
    if best is None or after is None or step == train.get("weights_of_step"):
        return
    if evidence.figures("evaluate")["tokens"] < ENOUGH_TOKENS:
        return
    if best < after * (1 - OVERFITTED):
        yield Finding("warn", "overfitted", {"step": step, "best": f"{best:.3f}"}, ("early_stop",))


def _sets(evidence: Evidence) -> Iterator[Finding]:
    for each in evidence.figures("evaluate").get("sets", []):
        for name, (before, after) in list(each["measures"].items())[:1]:
            values = {
                "name": each["name"],
                "before": f"{before:.1%}",
                "after": f"{after:.1%}",
                "gained": each["gained"],
                "lost": each["lost"],
            }
            if each["by_chance"]:
                yield Finding("note", f"set_{name}_same", values)
            elif after > before:
                yield Finding("good", f"set_{name}_better", values)
            else:
                yield Finding("warn", f"set_{name}_worse", values, ("gentler",))


def _training(evidence: Evidence) -> Iterator[Finding]:
    """What the guards saw, by the events; figures of the train step where there are none."""
    counts = {"skipped": 0, "spike": 0, "rewound": 0, "resumed": 0, "slow": 0, "rank_failed": 0}
    for line in evidence.events:
        if line["event"] in counts:
            counts[line["event"]] += 1
    rules: dict[str, tuple[Level, tuple[str, ...]]] = {
        "skipped": ("warn", ("skipped_steps",)),
        "spike": ("note", ()),
        "rewound": ("warn", ("lower_lr",)),
        "resumed": ("note", ()),
        "slow": ("warn", ()),
        "rank_failed": ("warn", ()),
    }
    for name, (level, advice) in rules.items():
        if counts[name]:
            yield Finding(level, name, {"count": counts[name]}, advice)
    if evidence.metrics and not any(counts[name] for name in counts if name != "resumed"):
        yield Finding("good", "quiet")


def _data(evidence: Evidence) -> Iterator[Finding]:
    data = evidence.figures("data")
    if not data:
        return
    dropped, records = sum(data["dropped"].values()), max(data["records"], 1)
    values = {"dropped": dropped, "records": data["records"], "percent": f"{dropped / records:.1%}"}
    if dropped:
        many = dropped / records > MANY_DROPPED
        yield Finding("warn" if many else "note", "dropped", values, ("mend_data",))
    else:
        yield Finding("good", "all_kept", values)
    cut = sum(data["remarks"].get(code, 0) for code in ("cut", "split_with_loss"))
    if cut:
        longest = data.get("lengths", {}).get("p100")
        values = {"count": cut, "seq_len": evidence.recipe.data.seq_len, "longest": longest}
        yield Finding("warn", "cut", values, ("longer_rows",))
