"""train: fine-tune on the rows of the data step; leaves `adapter/` (LoRA) or `full/` (full tuning).

An interrupted run goes on from its newest whole checkpoint in `checkpoints/` and ends in the same result.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from tengtune import capabilities, files
from tengtune.backends import base
from tengtune.backends.base import Array, Backend
from tengtune.backends.choice import choose
from tengtune.cluster import preflight
from tengtune.cluster.launch import launch
from tengtune.cluster.place import here
from tengtune.data.store import Store, open_store
from tengtune.engine import Result
from tengtune.models import spec as specs
from tengtune.models.targets import find_targets
from tengtune.recipe import CHANGEABLE, Recipe
from tengtune.train import checkpoints, output_tree, resume, schedule
from tengtune.train.adaptation import settle
from tengtune.train.checkpoints import Checkpoint, Parameters, Shelf
from tengtune.train.fit import Fit
from tengtune.train.forecast import Forecast, planned
from tengtune.train.loss_scale import LossScale
from tengtune.train.memory_advice import explained
from tengtune.train.metrics import Metrics, course, read
from tengtune.train.ranks import Alone, Ranks
from tengtune.train.saver import BACKGROUND_BYTES, ON_CPU_BYTES, Saver
from tengtune.train.schedule import Schedule
from tengtune.train.state import State
from tengtune.ui import language
from tengtune.ui.console import Console
from tengtune.ui.lists import size
from tengtune.ui.problems import UNFIT_MACHINE, Problem
from tengtune.weights.source import open_source
from tengtune.weights.trained import write_full, write_lora

NEWER = {
    "lora.base": "compute",
    "parallel.zero": 0,
    "parallel.offload": "none",
    "train.optimizer": "adamw",
}
"""Keys that came after runs had been recorded without them, with what those runs did."""
SLOW = 2.0
"""A compute type that takes so many times as long as float32 is worth a word."""


def inputs(recipe: Recipe) -> list[Path]:
    return [recipe.model_folder, *_stores(recipe).values()]


def settings(recipe: Recipe) -> dict[str, Any]:
    """What decides the products: what is learned, and what is written of it."""
    return {**_learned(recipe), **({"output.layout": recipe.output.layout} if _as_theirs(recipe) else {})}


def _as_theirs(recipe: Recipe) -> bool:
    """Whether mindformers' output folder is written, too."""
    return recipe.output.layout == "mindformers"


def _learned(recipe: Recipe) -> dict[str, Any]:
    """The keys on which what is learned depends, as "group.key"; the model's path is an input."""
    groups = recipe.model_dump(mode="json", include={"model", "train", "lora", "parallel"})
    keys = {f"{group}.{key}": value for group, values in groups.items() for key, value in values.items()}
    kept = {key: keys[key] for key in keys if key not in CHANGEABLE and key != "model.path"}
    kept = {key: value for key, value in kept.items() if (key, value) not in NEWER.items()}
    return {"seed": recipe.seed, **kept}


def check(recipe: Recipe) -> None:
    """Problem for what the back end lacks, for a model folder that is not whole, for targets it has not, and
    where torchrun or msrun started this command several times over."""
    if here().world > 1:
        raise Problem("cluster.foreign_launcher", where=recipe.file, world=here().world, run=recipe.called())
    spec = None if recipe.to_download else specs.from_folder(recipe.model_folder)
    capabilities.refuse(recipe, spec, choose(recipe))
    if spec is not None:
        open_source(recipe.model_folder, spec)
        if _as_theirs(recipe):
            output_tree.refuse(spec, recipe.file)
        if recipe.train.method == "lora":
            find_targets(spec, recipe.lora.targets, recipe.file)


def run(recipe: Recipe, console: Console, anew: bool) -> Result:
    """Train and write the result; Problem when the model, the data or the numbers do not allow it. With
    several ranks, start them and wait."""
    if recipe.parallel.ranks > 1 and here().world == 1:
        outputs, figures = launch(recipe, console, anew)
        return Result(outputs, figures)
    return train(recipe, console, anew)


def train(recipe: Recipe, console: Console, anew: bool) -> Result:
    """Train in this process, which may be one rank of several: of these, rank 0 writes."""
    ranks, log = base.join(recipe), recipe.folder / "log"
    preflight.check_folder(ranks, log)
    recipe = settle(recipe, console)
    stores = {name: open_store(folder) for name, folder in _stores(recipe).items()}
    store, heldout = stores["train"], stores.get("heldout")
    if recipe.train.early_stop and heldout is None:
        raise Problem("train.nothing_held_out", where=recipe.file)
    plan = schedule.plan(recipe, store.rows)
    shelf, same = Shelf(recipe.folder / "checkpoints"), _same(recipe)
    files.refuse_taken(shelf.folder, recipe.folder / ("adapter" if recipe.train.method == "lora" else "full"))
    if _as_theirs(recipe):  # a model from a hub was not there when it was asked before
        output_tree.refuse(specs.from_folder(recipe.model_folder), recipe.file)
    preflight.check_run(ranks, {**same, **_data_settings(recipe)}, log, console)
    found = None if anew else resume.find(shelf, same, console)
    if ranks.rank == 0:  # no earlier than here, where nothing refuses the run any more
        output_tree.clear(recipe.folder / output_tree.FOLDER, _as_theirs(recipe))
    name = choose(recipe)
    with explained(recipe), Forecast() as forecast:
        with console.waiting(language.say("ui.loading", model=recipe.model_folder.name)):
            base.load(name)
            forecast.begin()
            backend = base.open_backend(recipe, recipe.model_folder)
        shards = [(s.kind, s.array.size, s.array.nbytes) for s in backend.named_shards()]
        held = [sum(n for kind, n, _ in shards if kind == "param"), sum(b for *_, b in shards)]
        parameters, nbytes = map(int, ranks.total(held))
        _announce(console, store, plan, backend, parameters)
        source = open_source(recipe.model_folder, backend.spec)
        forecast.announce(planned(recipe, name, backend, source), backend, console)
        _check_space(recipe, shelf, nbytes)
        about = {"backend": name, "device": backend.device, "dtype": backend.dtype}
        state = _begin(backend, shelf, found, plan, about, console)
        step = state.step if found else None
        with closing(Metrics(_metrics_file(recipe, ranks), state.step)) as metrics:
            if found:
                was = " · ".join(str(found.about.get(key, "-")) for key in about)
                other = {} if was == " · ".join(about.values()) else {"reason": "elsewhere", "was": was}
                metrics.event(state.step, "resumed", saved=found.about["saved"], **other)
                if metrics.damaged:
                    console.warn("train.metrics_damaged", file="metrics.jsonl", count=metrics.damaged)
            writers = ranks if backend.sharded else Alone() if ranks.rank == 0 else None
            told = {**about, "ranks": ranks.world}
            limit = ON_CPU_BYTES if backend.device == "cpu" else BACKGROUND_BYTES
            saver = Saver(shelf, same, told, recipe.train.keep, nbytes, step, metrics.sync, writers, limit)
            figures = Fit(backend, store, plan, recipe, console, metrics, saver, state, heldout).run()
    chosen = _choose_weights(recipe, backend, shelf, state, console)
    made = _write(recipe, backend, shelf.path(chosen), plan) if ranks.rank == 0 else []
    if output_tree.FOLDER in made:
        console.say("train.tree", folder=recipe.folder / output_tree.FOLDER)
    console.say(
        "train.done",
        course=_course(_metrics_file(recipe, ranks)),
        speed=figures["tokens_per_s"],
        memory=f"{figures['peak_memory_bytes'] / 1e9:.2f}",
    )
    figures |= forecast.figures(backend, console)
    told = {"trainable_parameters": parameters, "weights_of_step": chosen, "checkpoints": shelf.steps()}
    return Result([*made, "metrics.jsonl"], {**figures, **about, **told})


def _course(path: Path) -> str:
    """How the loss went, told by what says most: held-out rows, means of many batches, single batches."""
    records = list(read(path))
    held = [each for each in records if each.get("heldout_loss") is not None]
    if len(held) > 1:
        values = {f"{name}_step": each["step"] for name, each in (("first", held[0]), ("last", held[-1]))}
        first, last = (_number(held[i]["heldout_loss"]) for i in (0, -1))
        return language.say("train.course_heldout", first=first, last=last, **values)
    losses = [each["loss"] for each in records if each.get("loss") is not None]
    if (means := course(losses)) is not None:
        first, last = (_number(mean) for mean in means[:2])
        return language.say("train.course_means", first=first, last=last, count=means[2])
    first, last = (_number(losses[i] if losses else None) for i in (0, -1))
    return language.say("train.course_batches", first=first, last=last)


def _metrics_file(recipe: Recipe, ranks: Ranks) -> Path:
    """metrics.jsonl is rank 0's; the others' figures are the same, their events may be their own."""
    if ranks.rank == 0:
        return recipe.folder / "metrics.jsonl"
    folder = recipe.folder / "log"
    folder.mkdir(exist_ok=True)
    return folder / f"metrics_rank_{ranks.rank}.jsonl"


def _stores(recipe: Recipe) -> dict[str, Path]:
    """The folders of rows that there are: `train`, and `heldout` unless nothing is held out."""
    folders = {name: recipe.folder / "data" / name for name in ("train", "heldout")}
    return {name: folder for name, folder in folders.items() if name == "train" or folder.exists()}


def _same(recipe: Recipe) -> dict[str, Any]:
    """What a checkpoint must have in common with this run: settings, rows and base weights."""
    digests = {f"data/{name}": resume.data_digest(folder) for name, folder in _stores(recipe).items()}
    source = open_source(recipe.model_folder, specs.from_folder(recipe.model_folder))
    return {**_learned(recipe), **digests, "base weights": resume.model_digest(source)}


def _data_settings(recipe: Recipe) -> dict[str, Any]:
    """The keys of the data step, by which another run file is told even where rank 0 alone made the rows."""
    return {f"data.{key}": value for key, value in recipe.data.model_dump(mode="json").items()}


def _announce(console: Console, store: Store, plan: Schedule, backend: Backend, parameters: int) -> None:
    console.say(
        "train.start",
        parameters=f"{parameters:,}",
        rows=store.rows,
        seq_len=store.seq_len,
        steps=plan.steps,
        global_batch=plan.global_batch,
        trained=store.trained_tokens,
        dtype=backend.dtype,
        device=backend.device,
    )
    if backend.slowdown > SLOW:
        console.warn("train.slow_type", dtype=backend.dtype, times=f"{backend.slowdown:.0f}")
    if store.rows <= plan.global_batch and plan.steps > 1:
        console.warn("train.few_rows", rows=store.rows, global_batch=plan.global_batch)


def _check_space(recipe: Recipe, shelf: Shelf, nbytes: int) -> None:
    """Room for the checkpoints that will lie there at a time; better said before the training than in it."""
    present = sum(file.stat().st_size for file in shelf.folder.rglob("*") if file.is_file())
    wanted = nbytes * (recipe.train.keep + 1 + (recipe.train.eval_every is not None))
    free = files.free_bytes(recipe.folder)
    if wanted > free + present:
        raise Problem(
            "checkpoint.no_space",
            where=shelf.folder,
            exit_code=UNFIT_MACHINE,
            wanted=size(wanted),
            one=size(nbytes),
            keep=recipe.train.keep,
            free=size(free + present),
        )


def _begin(
    backend: Backend,
    shelf: Shelf,
    found: Checkpoint | None,
    plan: Schedule,
    about: dict[str, str],
    console: Console,
) -> State:
    """Where the run begins: at the checkpoint that was found, whose tensors the back end takes, or at the
    beginning, without what lies there from earlier."""
    scale = LossScale(enabled=backend.dtype == "float16")
    backend.ranks.most(0)  # so that every rank has seen what lies there before rank 0 clears it
    if backend.ranks.rank == 0:
        shelf.sweep()
    if found is None:
        if backend.ranks.rank == 0:
            if shelf.steps():
                console.say("checkpoint.cleared", folder=shelf.folder)
            shelf.clear()
        return State(scale)
    state = found.state
    backend.load_shards(found.shards(), state.applied)
    console.say(
        "checkpoint.resumed" if state.step < plan.steps else "checkpoint.complete",
        step=state.step,
        next=state.step + 1,
        steps=plan.steps,
        folder=found.folder,
        saved=found.about["saved"],
        loss=_number(state.last_loss),
    )
    if state.scale.enabled != scale.enabled:
        state.scale = scale
    before, now = found.about.get("ranks", 1), backend.ranks.world
    if before != now:
        console.say("cluster.other_count", before=before, now=now)
    old = {key: str(found.about.get(key, "-")) for key in about}
    if old != about:
        console.warn("checkpoint.elsewhere", old=" ".join(old.values()), new=" ".join(about.values()))
    return state


def _choose_weights(recipe: Recipe, backend: Backend, shelf: Shelf, state: State, console: Console) -> int:
    """Under early stopping give the back end the weights of the best evaluation; the step of the weights."""
    best = state.best
    if best.step is None or best.step == state.step or not best.worse:
        return state.step
    folder = shelf.path(best.step)
    values = {"step": best.step, "loss": _number(best.loss), "folder": folder, "last": state.step}
    if recipe.train.early_stop is None:
        console.say("train.was_better" if folder.is_dir() else "train.was_better_lost", **values)
        return state.step
    try:
        chosen = checkpoints.read(folder)
    except Problem as problem:
        if problem.code != checkpoints.DAMAGED:
            raise
        reason = language.say("data.reason_at", where=problem.where, reason=problem.values["reason"])
        console.warn("train.best_lost", **values, reason=reason)
        return state.step
    backend.load_shards(chosen.shards(), chosen.state.applied)
    console.say("train.best_taken", **values)
    return best.step


def _number(loss: float | None) -> str:
    return "-" if loss is None else f"{loss:.4f}"


def _write(recipe: Recipe, backend: Backend, checkpoint: Path, plan: Schedule) -> list[str]:
    """Write what was trained, which stands in `checkpoint`, too; the names of the folders inside the run
    folder."""
    tensors: Mapping[str, Array] = {s.name: s.array for s in backend.named_shards() if s.kind == "param"}
    whole = checkpoints.read(checkpoint) if backend.sharded or _as_theirs(recipe) else None
    if whole and backend.sharded:  # no rank has all of it
        tensors = Parameters(whole)
    made = ["adapter" if recipe.train.method == "lora" else "full"]
    if recipe.train.method == "lora":
        write_lora(recipe.folder / "adapter", backend.spec, recipe.lora, tensors, recipe.model_folder)
    else:
        write_full(recipe.folder / "full", backend.spec, tensors, recipe.model_folder)
    if whole and _as_theirs(recipe):
        base, ranks = open_source(recipe.model_folder, backend.spec), backend.ranks.world
        tree = recipe.folder / output_tree.FOLDER
        output_tree.write(tree, backend.spec, base, whole, ranks, plan.steps_per_epoch)
        made.append(output_tree.FOLDER)
    return made
