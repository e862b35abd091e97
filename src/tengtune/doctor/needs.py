"""What a run needs of this machine: its files, and by plan's sum memory and disk."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from tengtune.doctor import choice
from tengtune.doctor.finding import Case, Finding, block, ok, unknown, warn
from tengtune.recipe import Recipe
from tengtune.ui import language
from tengtune.ui.lists import joined
from tengtune.ui.problems import Problem

if TYPE_CHECKING:  # the planner is loaded where there is a sum to make
    from tengtune.models.spec import ModelSpec
    from tengtune.plan.hardware import Hardware
    from tengtune.plan.judge import Plan
    from tengtune.plan.strategy import Range


def check(case: Case, recipe: Recipe, backend: str) -> Iterator[Finding]:
    """All of it; nothing of a bundle's own run, whose bundle tells."""
    if case.inputs == "told":
        return
    if case.inputs == "here":
        yield from _files(recipe)
    else:
        yield unknown("doctor.need_elsewhere", model=recipe.model.path, files=joined(recipe.data.files))
    try:
        spec = _spec(recipe)
    except Problem as problem:
        yield block("doctor.need_model_read", reason=problem.texts()["what"], folder=recipe.model_folder)
        return
    if spec is None:
        yield unknown("doctor.need_unreckoned", model=recipe.model.path, run=recipe.called())
    elif (there := _hardware(case, recipe)) is None:
        yield unknown("doctor.need_cards_unknown", run=recipe.called())
    else:
        yield from _sum(case, recipe, backend, spec, there)


def _files(recipe: Recipe) -> Iterator[Finding]:
    """Data, questions and model: there, or to be downloaded."""
    names = [*recipe.data.files, *recipe.output.evaluate]
    missing = [name for name in names if not recipe.resolve(name).is_file()]
    if missing:
        yield block("doctor.need_data", files=joined(missing), folder=recipe.file.parent)
    if recipe.to_download:
        yield ok("doctor.need_download", model=recipe.hub_model, folder=recipe.model_folder)
    elif not (recipe.model_folder / "config.json").is_file():
        yield block("doctor.need_model", folder=recipe.model_folder)
    elif not missing:
        yield ok("doctor.need_files", model=recipe.model.path, files=joined(names))


def _spec(recipe: Recipe) -> ModelSpec | None:
    """The model's shape, by its folder or else by its name."""
    from tengtune.models import known, spec

    folder = recipe.model_folder
    return spec.from_folder(folder) if (folder / "config.json").is_file() else known.spec(recipe.model.path)


def _hardware(case: Case, recipe: Recipe) -> Hardware | None:
    """As many cards as the run asks for, all as small as the smallest that it would take, or the CPU; None
    where a card's size or generation is not known, or it is none to train on."""
    from tengtune.plan import hardware

    machine, cards = case.host.machine, choice.taken(case)
    if not case.host.has_cards:
        found = hardware.find("cpu")
    elif cards and (generation := cards[0].generation) and generation.trainable:
        sizes = [card.total_mb for card in cards if card.total_mb is not None]
        if len(sizes) < len(cards):
            return None
        name = "A3" if generation.name == "A3" else cards[0].chip.name
        found = replace(hardware.ascend(name, round(min(sizes) / 1024)), count=choice.asked(recipe))
    else:
        return None
    return replace(found, host_bytes=machine.memory, disk_bytes=machine.disk_free)


def _sum(case: Case, recipe: Recipe, backend: str, spec: ModelSpec, there: Hardware) -> Iterator[Finding]:
    from tengtune.plan import asked, judge

    width = asked.width_bytes(recipe, there.is_cpu)
    plan = judge.make(spec, asked.strategy(recipe, width), backend, there, recipe.model.dtype)
    if plan.lacking:  # said already, and nothing to reckon
        return
    found = [*_card(plan, recipe), *_memory(case, plan, recipe), *_disk(case, plan, recipe)]
    if found:
        yield from found
        return
    amounts = {"host": _gb(plan.host), "memory": _there(there.host_bytes)}
    amounts |= {"disk": _gb(plan.disk), "free": _there(there.disk_bytes)}
    if there.is_cpu:
        yield ok("doctor.need_fits_cpu", **amounts)
        return
    size = _there(there.usable_bytes or there.memory_bytes)
    usable = language.say("doctor.need_usable" if there.usable_bytes else "doctor.need_nominal", size=size)
    amounts |= {"card": _gb(plan.card.total), "usable": usable}
    wanted, count = choice.asked(recipe), len(choice.taken(case))
    if wanted > count:  # which is said before, and is in the way
        yield ok("doctor.need_fits_more", wanted=wanted, count=count, **amounts)
    else:
        yield ok("doctor.need_fits", **amounts)


def _card(plan: Plan, recipe: Recipe) -> Iterator[Finding]:
    there = plan.hardware
    if there.is_cpu or (verdict := plan.card_verdict) == "fits":
        return
    card = f'"{there.count}x {there.name}"'
    values = {"need": _gb(plan.card.total), "span": _span(plan.card.total), "card": card}
    values |= {"there": _there(there.usable_bytes or there.memory_bytes), "run": recipe.called()}
    if verdict == "no":
        yield block("doctor.need_card", **values)
    elif verdict == "tight":
        yield warn("doctor.need_card_tight", **values)
    else:
        yield unknown("doctor.need_card_unmeasured", **values)


def _memory(case: Case, plan: Plan, recipe: Recipe) -> Iterator[Finding]:
    free = case.host.machine.available
    values = {"need": _gb(plan.host), "span": _span(plan.host), "run": recipe.called()}
    values |= {"there": _there(plan.hardware.host_bytes), "free": _there(free)}
    if plan.host_verdict == "no":
        yield block("doctor.need_memory", **values)
    elif plan.host_verdict == "tight":
        yield warn("doctor.need_memory_tight", **values)
    elif free is not None and free < plan.host.expected:
        yield warn("doctor.need_memory_now", **values)


def _disk(case: Case, plan: Plan, recipe: Recipe) -> Iterator[Finding]:
    """What lies here already, the model and an earlier start of the run, needs no room any more. Fewer
    checkpoints are advised where the rest has room then."""
    from tengtune.plan.judge import judged
    from tengtune.plan.machine import disk_bytes
    from tengtune.plan.strategy import Range

    there = _size(recipe) if case.inputs == "here" else 0
    need = Range(*(max(0.0, each - there) for each in plan.disk.bounds))
    verdict = judged(need, plan.hardware.disk_bytes)
    values = {"need": _gb(need), "span": _span(need), "free": _there(plan.hardware.disk_bytes)}
    if verdict == "no":
        one = disk_bytes(plan.spec, replace(plan.strategy, checkpoints=1), plan.profile)
        saved = plan.disk.expected - one.expected
        free = plan.hardware.disk_bytes or 0
        code = "doctor.need_disk_keep" if saved and need.expected - saved <= free else "doctor.need_disk"
        missing = math.ceil((need.expected - free) / 1e8) * 10**8  # to a tenth, and enough
        values |= {"missing": _there(missing), "saved": _there(round(saved))}
        yield block(code, **values, folder=recipe.folder)
    elif verdict == "tight":
        yield warn("doctor.need_disk_tight", **values, folder=recipe.folder)


def _size(recipe: Recipe) -> int:
    """Bytes of the model's folder and of the run's."""
    folders = [folder for folder in (recipe.model_folder, recipe.folder) if folder.is_dir()]
    return sum(each.stat().st_size for folder in folders for each in folder.rglob("*") if each.is_file())


def _gb(amount: Range) -> str:
    return f"{amount.expected / 1e9:.1f} GB"


def _span(amount: Range) -> str:
    return f"{amount.low / 1e9:.1f} - {amount.high / 1e9:.1f}"


def _there(amount: int | None) -> str:
    return language.say("doctor.need_unknown") if amount is None else f"{amount / 1e9:.1f} GB"
