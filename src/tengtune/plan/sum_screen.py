"""The sum of a card: on one line, or with each term's formula and figures."""

from __future__ import annotations

from tengtune.plan import memory
from tengtune.plan.columns import gb, padded
from tengtune.plan.judge import Plan
from tengtune.ui import language
from tengtune.ui.layout import columns


def short(plan: Plan) -> str:
    """The expected sum, and at which moment of a step it is that; what is below 0.05 GB is not named."""
    titles: dict[str, str] = language.lookup("plan.terms")
    named = [(name, each.expected) for name, each in plan.card.terms.items() if each.expected >= 0.05e9]
    terms = " + ".join(f"{titles[name]} {gb(size)}" for name, size in named)
    total = gb(plan.card.total.expected)
    return language.say("plan.one_line", point=_point(plan), terms=terms, total=total)


def full(plan: Plan) -> list[str]:
    """Low, expected, high of each term, its formula below it, the moment of a step, the program's figures."""
    titles: dict[str, str] = language.lookup("plan.terms")
    formulas: dict[str, str] = language.lookup("plan.formulas")
    terms = [*plan.card.terms.items(), ("total", plan.card.total)]
    labels = max(columns(titles[name]) for name, _ in terms)
    heads = language.lookup("plan.columns")
    lines = [
        f"{padded(heads[0], labels)}  " + "  ".join(" " * (8 - columns(head)) + head for head in heads[1:])
    ]
    for name, each in terms:
        figures = "  ".join(f"{value / 1e9:8.2f}" for value in each.bounds)
        lines.append(f"{padded(titles[name], labels)}  {figures}")
        if name in formulas:
            lines.append("    " + formulas[name])
        if name == "buffers" and plan.profile.gathers == "mindspore" and plan.card.point != "step":
            lines += ["    " + _gathered(plan)] if each.expected else []
        if name == "step" and plan.profile.gathers == "deepspeed" and each.expected:
            lines.append("    " + _updated(plan))
    return [*lines, language.say("plan.fullest", point=_point(plan)), "", _constants(plan)]


def _point(plan: Plan) -> str:
    """The moment of a step whose sum it is, and what is not there then."""
    return str(language.lookup("plan.points")[plan.card.point])


def _gathered(plan: Plan) -> str:
    """What our MindSpore back end brings together, in figures: the largest term of full tuning."""
    count = memory.counts(plan.spec)
    code = "plan.gathered_full" if plan.strategy.method == "full" else "plan.gathered_lora"
    billions = {"outer": count.embeddings, "one": count.embedding, "block": count.block}
    sizes = {name: f"{size / 1e9:.2f}" for name, size in billions.items()}
    return language.say(code, **sizes, link=f"{plan.hardware.link_bytes / 1e9:.2f}")


def _updated(plan: Plan) -> str:
    """What DeepSpeed's update of all weights takes, in figures: its bound, where a card has as many."""
    part = memory.share(plan.strategy, plan.profile, 1) * memory.stage(plan.spec, plan.strategy)
    own = memory.counts(plan.spec).total * part
    return language.say("plan.updated", own=f"{own / 1e9:.2f}", most=f"{memory.LIVE_PARAMETERS / 1e9:g}")


def _constants(plan: Plan) -> str:
    """The figures in the formulas for this plan's program."""
    profile, strategy = plan.profile, plan.strategy
    states = profile.full if strategy.method == "full" else profile.adapter
    return language.say(
        "plan.constants",
        profile=profile.name,
        weights=f"{states.weights:g}",
        gradients=f"{states.gradients.expected:g}",
        optimizer=f"{states.optimizer:g}",
        step=f"{states.step:g}",
        hidden=f"{profile.kept.hidden:g}",
        query=f"{profile.kept.query:g}",
        key_value=f"{profile.kept.key_value:g}",
        ffn=f"{profile.kept.ffn:g}",
        logit="{:g} / {:g} / {:g}".format(*profile.logit_bytes.bounds),
        slack="{:g} / {:g} / {:g}".format(*profile.fragmentation.bounds),
        factor="{:g} / {:g} / {:g}".format(*profile.offload_factor.bounds),
    )
