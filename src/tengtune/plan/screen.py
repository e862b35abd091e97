"""The answer: for a person one screen, for a program its data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tengtune.models import positions
from tengtune.plan import choices, score, sum_screen, time_screen
from tengtune.plan.columns import gb, padded
from tengtune.plan.hardware import GIB, Hardware
from tengtune.plan.judge import Plan, Verdict
from tengtune.plan.profiles import OURS, PROFILES
from tengtune.plan.remedy import LENGTH, Change, Remedy
from tengtune.plan.strategy import Range
from tengtune.plan.work import Work
from tengtune.ui import language
from tengtune.ui.layout import columns
from tengtune.ui.lists import joined

_COLOURS: dict[Verdict, str] = {
    "no": "\033[31m", "tight": "\033[33m", "unknown": "\033[35m", "fits": "\033[32m"
}  # fmt: skip


@dataclass(frozen=True)
class Beside:
    """What stands beside a plan: blocks of lines before the notes, further notes, and how many cards
    it takes where those there are cannot do it."""

    blocks: Sequence[Sequence[str]] = ()
    notes: Sequence[str] = ()
    needed: str = ""


def text(
    plan: Plan,
    name: str,
    remedies: Sequence[Remedy],
    work: Work | None,
    beside: Beside,
    explain: bool,
    colour: bool,
) -> str:
    """What is planned, whether it can be run at all, the verdicts, the time, the sum, what would fit, what
    stands beside it, and what is not certain."""
    lines = [_asked(plan, name), "", *_verdicts(plan, colour)]
    if plan.answer == "cannot":
        on, off = ("\033[31m", "\033[0m") if colour else ("", "")
        lines[1:1] = ["", f"{on}{_cannot(plan)}{off}"]
        today = [remedy_text(each, today=True) for each in remedies if not each.plan.lacking]
        lines[3:3] = [*([beside.needed] if beside.needed else []), *today]
    took = time_screen.lines(plan, work, explain)
    lines += [
        *([""] if took else []),
        *took,
        "",
        *(sum_screen.full(plan) if explain else [sum_screen.short(plan)]),
    ]
    shown = [each for each in notes_of(plan) if explain or each[0] not in _STANDING]
    notes = [*(language.say(code, **values) for code, values in shown), *beside.notes]
    notes += [] if plan.hardware.is_cpu else [score.line(plan)]
    short = _short(plan)
    lines += ["", short] if short else []
    if plan.card_verdict == "no" and not remedies:
        lines += ["", language.say("plan.none_fits")]
    if beside.needed and plan.answer != "cannot":
        lines += ["", beside.needed]
    for number, remedy in enumerate(remedies):
        if plan.answer != "cannot" or remedy.plan.lacking:
            lines += ["", remedy_text(remedy, today=number > 0 or bool(plan.lacking))]
    for block in beside.blocks:
        lines += ["", *block] if block else []
    lines += [*([""] if notes else []), *(f"- {note}" for note in notes)]
    return "\n".join([*lines, *([] if explain else ["", language.say("plan.more")])])


_STANDING = ("plan.process_memory", "plan.not_measured", "plan.peak_derived", "plan.plain_attention")
"""Notes of every plan on such cards: only where all is explained."""


def data(plan: Plan, name: str, remedies: Sequence[Remedy], work: Work | None) -> dict[str, Any]:
    """The same for --json; bytes and seconds throughout."""
    return {
        "model": name,
        "parameters": plan.spec.parameters(),
        "engine": plan.engine,
        "sum_of": plan.profile.name,
        "hardware": plan.hardware.name,
        "generation": plan.hardware.generation,
        "strategy": dict(plan.strategy.__dict__),
        "verdict": plan.answer,
        "card": {
            "verdict": plan.card_verdict,
            "needs": plan.card.total.rounded(),
            "usable": plan.hardware.usable_bytes,
            "nominal": plan.hardware.memory_bytes,
            "fullest": plan.card.point,
            "terms": {name: each.rounded() for name, each in plan.card.terms.items()},
        },
        "host": {
            "verdict": plan.host_verdict,
            "needs": plan.host.rounded(),
            "there": plan.hardware.host_bytes,
        },
        "disk": {
            "verdict": plan.disk_verdict,
            "needs": plan.disk.rounded(),
            "there": plan.hardware.disk_bytes,
        },
        "time": time_screen.data(plan, work),
        "lacking": list(plan.lacking),
        "remedies": [
            {
                "changes": {change.key: change.value for change in remedy.changes},
                "verdict": remedy.plan.answer,
                "more_cards": remedy.more_cards,
                "card": remedy.plan.card.total.rounded(),
                "host": remedy.plan.host.rounded(),
                "lacking": list(remedy.plan.lacking),
            }
            for remedy in remedies
        ],
        "notes": [language.say(code, **values) for code, values in notes_of(plan)],
    }


def notes_of(plan: Plan) -> list[tuple[str, dict[str, object]]]:
    """What the figures do not cover or rest on, as codes of texts with their values."""
    hardware = plan.hardware
    each = (hardware.count or 1) // hardware.nodes
    notes = _doubts(hardware)
    notes += positions.beyond(plan.spec, plan.strategy.row_tokens)
    if plan.lacking and plan.answer != "cannot":
        notes.append(("plan.lacking", {"features": asked_for(plan.lacking), "engine": plan.engine}))
    if not hardware.together(each):
        notes.append(("plan.odd_cards", _odd(plan, each)))
    if plan.profile.name != plan.engine:
        notes.append(("plan.stand_in", {"engine": plan.engine, "profile": plan.profile.name}))
    elif plan.strategy.offload not in PROFILES[plan.engine].offload:
        notes.append(("plan.own_offload", {"engine": plan.engine}))
    elif plan.engine not in OURS:
        notes.append(("plan.other_program", {"profile": plan.profile.name}))
    if not hardware.is_cpu:
        notes.append(("plan.process_memory", {}))
    if hardware.plain_attention:
        notes.append(("plan.plain_attention", {"name": hardware.name}))
    if plan.profile.name in OURS and not hardware.is_cpu:
        notes.append(("plan.not_measured", {}))
    return notes + time_screen.notes(plan)


def _doubts(hardware: Hardware) -> list[tuple[str, dict[str, object]]]:
    """What was read into the hardware's name, and what of it nobody measured."""
    size = (hardware.memory_bytes or 0) // GIB
    nodes, each = hardware.nodes, (hardware.count or 1) // hardware.nodes
    values: dict[str, object] = {"name": hardware.name, "memory": size, "nodes": nodes, "each": each}
    return [(code, values) for code in hardware.doubts]


def read_into(hardware: Hardware) -> list[str]:
    """Of these what holds for this name and not for every such card, in words."""
    return [language.say(code, **values) for code, values in _doubts(hardware) if code not in _STANDING]


def _odd(plan: Plan, cards: int) -> dict[str, object]:
    return {"cards": cards, "name": plan.hardware.name, "counts": joined(map(str, plan.hardware.counts))}


def _cannot(plan: Plan) -> str:
    """Why it can't be run: so many cards can't work together, or the back end lacks something."""
    if plan.odd_cards:
        return language.say("plan.cannot_cards", **_odd(plan, plan.strategy.cards // plan.strategy.nodes))
    return language.say("plan.cannot", features=asked_for(plan.lacking), engine=plan.engine)


def _short(plan: Plan) -> str:
    """What the host's memory and the disk are short of; empty where they are enough, or not known."""
    names = language.lookup("plan.resources")
    hardware = plan.hardware
    pairs = {"host": (plan.host, hardware.host_bytes), "disk": (plan.disk, hardware.disk_bytes)}
    missing = [
        names[name].format(missing=gb(need.expected - (there or 0)))
        for name, (need, there) in pairs.items()
        if name in plan.short
    ]
    return language.say("plan.short", missing=names["and"].join(missing)) if missing else ""


def asked_for(features: Sequence[str]) -> str:
    """Features as the keys of a run file that ask for them."""
    return joined(_KEYS.get(name, name) for name in features)


_KEYS = {
    "lora": "train.method: lora",
    "full": "train.method: full",
    "float16": "model.dtype: float16",
    "bfloat16": "model.dtype: bfloat16",
    "ranks": "parallel.ranks",
    "nodes": "parallel.nodes",
    "train_embeddings": "lora.train_embeddings: true",
    "qwen1_lora": "train.method: lora",
    "qwen1_long": "data.seq_len",
    "recompute_full": "train.recompute: full",
    "zero_1": "parallel.zero: 1",
    "zero_2": "parallel.zero: 2",
    "zero_3": "parallel.zero: 3",
    "offload_optimizer": "parallel.offload: optimizer",
    "offload_all": "parallel.offload: all",
    "int8_base": "lora.base: int8",
    "int8_all": "lora.base: int8-all",
}


def remedy_text(remedy: Remedy, today: bool) -> str:
    """What to change, and what is needed then. today: beside something that cannot be run yet."""
    plan = remedy.plan
    code = "plan.remedy_later" if plan.lacking else "plan.remedy_today" if today else "plan.remedy"
    return language.say(
        "plan.remedy_more" if remedy.more_cards else code,
        changes=joined(_change(each, plan) for each in remedy.changes),
        verdict=language.lookup("plan.verdicts")[plan.verdict],
        card=gb(plan.card.total.expected),
        host=gb(plan.host.expected),
        features=asked_for(plan.lacking),
    )


def _change(change: Change, plan: Plan) -> str:
    """A key and its value, and that rows are still longer than the model was made for."""
    beyond = change.key == LENGTH and positions.beyond(plan.spec, plan.strategy.row_tokens)
    if not beyond:
        return str(change)
    return language.say("plan.beyond", change=change, positions=plan.spec.max_positions)


def _asked(plan: Plan, name: str) -> str:
    strategy = plan.strategy
    kind = "plan.asked_lora" if strategy.method == "lora" else "plan.asked_full"
    return language.say(
        kind,
        model=name,
        parameters=f"{plan.spec.parameters() / 1e9:.2f}",
        place=choices.place(plan),
        rank=strategy.rank,
        base=_base(plan),
        rows=strategy.rows,
        tokens=strategy.row_tokens,
        recompute=language.lookup("plan.recomputes")["full" if choices.recomputes(plan) else "none"],
        engine=plan.engine,
        share=_shared(plan),
        offload=language.lookup("plan.offloads")[strategy.offload],
    )


def _base(plan: Plan) -> str:
    """The type of LoRA's frozen weights."""
    if plan.strategy.base != "compute":
        return plan.strategy.base
    return plan.computes_in if plan.engine in OURS else language.say("plan.sixteen_bits")


def _shared(plan: Plan) -> str:
    strategy = plan.strategy
    if plan.profile.shards and strategy.cards > 1:
        return language.say("plan.shards", count=strategy.cards)
    if strategy.tensor > 1:
        return language.say("plan.tensor", count=strategy.tensor, zero=strategy.zero)
    return f"ZeRO-{strategy.zero}" if strategy.zero else language.say("plan.kept_whole")


def _verdicts(plan: Plan, colour: bool) -> list[str]:
    names: dict[Verdict, str] = language.lookup("plan.verdicts")
    hardware = plan.hardware
    card = hardware.usable_bytes or hardware.memory_bytes or hardware.host_bytes
    there = [card, hardware.host_bytes, hardware.disk_bytes]
    rows = list(
        zip(
            language.lookup("plan.places"),
            (plan.card_verdict, plan.host_verdict, plan.disk_verdict),
            (plan.card.total, plan.host, plan.disk),
            there,
            strict=True,
        )
    )
    labels = max(columns(label) for label, *_ in rows)
    tags = max(columns(names[verdict]) for _, verdict, _, _ in rows)
    lines = []
    for label, verdict, need, has in rows:
        on, off = (_COLOURS[verdict], "\033[0m") if colour else ("", "")
        known = language.say("plan.of", there=gb(has)) if has else language.say("plan.of_unknown")
        tag = padded(names[verdict], tags)
        lines.append(f"{padded(label, labels)}  {on}{tag}{off}  {_need(need)}  {known}")
    return lines


def _need(need: Range) -> str:
    low, expected, high = map(gb, need.bounds)
    code = "plan.needs_exactly" if low == high else "plan.needs"
    return language.say(code, low=low, expected=expected, high=high)
