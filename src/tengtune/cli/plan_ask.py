"""What `tengtune plan` is asked: of a run file, or of a model's name with options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tengtune.cli.command import misused
from tengtune.plan.profiles import OURS, PROFILES
from tengtune.plan.strategy import Strategy
from tengtune.ui.problems import Problem

if TYPE_CHECKING:
    from tengtune.models.spec import ModelSpec
    from tengtune.plan.hardware import Hardware
    from tengtune.plan.judge import Plan
    from tengtune.plan.search import Question, Way
    from tengtune.plan.work import Work
    from tengtune.recipe import Recipe


@dataclass(frozen=True)
class Asked:
    """The question, and the plan that is shown.

    name: what the model is called. recipe: of a run file, whose own plan is shown then; else it is the best
    way's, or where there is none the nearest to one. ways: best first; none where another program is asked
    about. work: what there is to train, if that is known.
    """

    name: str
    question: Question
    ways: list[Way]
    plan: Plan
    work: Work | None = None
    recipe: Recipe | None = None


def of_run(
    run: Path, overrides: tuple[str, ...], there: Hardware, engine: str | None, tokens: float | None
) -> Asked:
    """The plan of a run file, and the other ways to do the same. tokens: of its data, one epoch's, if
    that is not known."""
    from tengtune import recipe as recipes
    from tengtune.plan import asked, judge, work
    from tengtune.plan.search import Question, search

    recipe = recipes.load(run, overrides, (there.count or 1) // there.nodes)
    ranks = recipe.parallel.ranks
    if there.is_cpu:  # ranks on a CPU are processes: as many as are asked for
        there = replace(there, count=ranks, nodes=recipe.parallel.nodes)
    if there.count is not None and ranks > there.count:
        raise Problem("plan.more_ranks", where=recipe.file, ranks=ranks, cards=there.count)
    spec = named(recipe.model.path, recipe.model_folder)
    train, dtype = recipe.train, recipe.model.dtype
    strategy = asked.strategy(recipe, asked.width_bytes(recipe, there.is_cpu))
    chosen = engine or ("torch" if recipe.backend == "auto" else recipe.backend)
    plan = judge.make(spec, strategy, chosen, there, dtype)
    cards = there.count or ranks
    question = Question(spec, strategy, there, cards, train.global_batch, _engines(engine), dtype=dtype)
    given = None if tokens is None else work.Work(tokens * train.epochs, train.epochs)
    found = given or work.of_run(recipe)
    return Asked(recipe.model.path, question, search(question), plan, found, recipe)


def of_model(
    model: str,
    there: Hardware,
    engine: str | None,
    given: Mapping[str, Any],
    global_batch: int | None,
    tokens: float | None,
) -> Asked:
    """The best way to train a model. given: fields of Strategy that options name; tokens: of one epoch, of as
    many as a run file has."""
    from tengtune.plan import judge
    from tengtune.plan.search import search
    from tengtune.plan.work import EPOCHS, Work

    question = question_of(named(model), there, engine, given, global_batch)
    ways = search(question)
    strategy, zero = question.strategy, given.get("zero")
    if zero is None and strategy.offload == "all":
        zero = 3
    if ways:
        plan = ways[0].plan
    elif engine is None:
        plan = judge.choose(question.spec, strategy, there, zero)
    else:
        plan = judge.make(question.spec, replace(strategy, zero=zero or 0), engine, there)
    work = None if tokens is None else Work(tokens * EPOCHS, EPOCHS)
    return Asked(model, question, ways, plan, work)


def question_of(
    spec: ModelSpec, there: Hardware, engine: str | None, given: Mapping[str, Any], global_batch: int | None
) -> Question:
    """What options ask; what none of them names may be chosen."""
    from tengtune.plan.search import Question, batch_for

    if given.get("offload") == "all" and given.get("zero") not in (None, 3):
        raise misused("plan.offload_all")
    cards = there.most_together(max((there.count or 1) // there.nodes, 1)) * there.nodes
    tensor = given.get("tensor", 1)
    if tensor > 1 and (cards % tensor or not PROFILES[engine or "torch"].splits):
        raise misused("plan.no_split")
    rows = given.get("rows", 1)
    if global_batch is not None and global_batch % rows:
        raise misused("plan.batch_apart")
    batch = global_batch or batch_for(cards, rows)
    width = 4 if there.is_cpu else 2
    strategy = replace(Strategy(), **given, cards=cards, nodes=there.nodes, width_bytes=width)
    strategy = replace(strategy, accumulate=max(batch // (strategy.replicas * strategy.rows), 1))
    return Question(spec, strategy, there, cards, batch, _engines(engine), frozenset(given))


def _engines(engine: str | None) -> tuple[str, ...]:
    """Whose ways are looked for: other programs' are not ours to run."""
    if engine is None:
        return OURS
    return (engine,) if engine in OURS else ()


def named(model: str, folder: Path | None = None) -> ModelSpec:
    """The model's shape: of its folder or its config.json alone where they are there, else by its name."""
    from tengtune.json_file import read_object
    from tengtune.models import known, spec

    path = folder or Path(model)
    if path.is_file():
        return spec.from_config(read_object(path, "model.bad_json"), path)
    if (path / "config.json").is_file():
        return spec.from_folder(path)
    found = known.spec(model)
    if found is None and model and path.is_dir():
        return spec.from_folder(path)  # which says what is not there
    if found is None:
        unfit = known.unfit(model)
        raise Problem(f"plan.{unfit or 'unknown'}_model", where=model, near=known.near(model))
    return found


def machine(text: str | None, host_memory: float | None, disk: float | None) -> Hardware:
    """What --hardware names, else this machine's cards, with what was said of its memory and disk in GB;
    Problem where there are none."""
    from tengtune.plan import hardware

    found = hardware.here() if text is None else hardware.find(text)
    if found is None:
        raise Problem("plan.needs_hardware")
    if found.is_cpu:
        found = hardware.with_this_host(found)
    if host_memory is not None:
        found = replace(found, host_bytes=int(host_memory * 1e9))
    return found if disk is None else replace(found, disk_bytes=int(disk * 1e9))
