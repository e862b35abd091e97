"""data: the data files become rows of token ids with their label masks, for training and for scoring.

Makes `data/train/` and, unless nothing is held out, `data/heldout/` (both stores, see data/store.py), and
`data/dropped.jsonl`, a line for every record that was dropped, cut or odd.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tengtune import files
from tengtune.data import mindrecord
from tengtune.data.documents import Documents, Int64, Spool, spool
from tengtune.data.json_value import written
from tengtune.data.judge import Judge
from tengtune.data.mindrecord import MindRecord
from tengtune.data.ordered import ordered
from tengtune.data.pack import Plan, one_per_row, pack
from tengtune.data.read import Reader
from tengtune.data.recorded import Recorded, Vocabulary
from tengtune.data.render import Renderer, Style, batches, style_of
from tengtune.data.report import Report, figures_of, show_stores
from tengtune.data.split import groups_of, heldout_split, repeated
from tengtune.data.store import About, Store, open_store, write_store
from tengtune.engine import Result
from tengtune.hub.meter import meter
from tengtune.models import positions
from tengtune.models import spec as specs
from tengtune.models.folder import require
from tengtune.recipe import Recipe
from tengtune.text.tokenizer import text_files
from tengtune.ui.console import Console
from tengtune.ui.lists import joined
from tengtune.ui.problems import Problem


def inputs(recipe: Recipe) -> list[Path]:
    """The data files, tokenizer and chat template, and config.json (family and vocabulary)."""
    folder = recipe.model_folder
    data = [part for path in _named_files(recipe).values() for part in mindrecord.parts(path)]
    return [*data, *text_files(folder), folder / "config.json"]


def settings(recipe: Recipe) -> dict[str, Any]:
    """The whole data group and the seed."""
    return {"seed": recipe.seed, **recipe.data.model_dump(mode="json")}


def check(recipe: Recipe) -> None:
    """Problem for a model folder or a data file that is not there."""
    if recipe.hub_model is None:  # else the download step brings it
        require(recipe.model_folder)
    for path in _named_files(recipe).values():
        files.require_file(path)


def run(recipe: Recipe, console: Console) -> Result:
    """Read, render, split, pack, write. Problem when no record can be learned from."""
    style = _style(recipe, console)
    data, folder = recipe.data, recipe.folder / "data"
    named = _named_files(recipe)
    stored = _stored(recipe, named, Vocabulary.of(style.tokenizer))
    texts = {name: path for name, path in named.items() if name not in stored}
    reader = Reader(texts, data.format, data.map, recipe.file)
    for name, file in stored.items():
        console.say("data.as_stored", file=name, records=file.records)
    judge = Judge(data.policy, style.tokenizer.control, style.template.tools)
    renderer = Renderer(style, judge, data.seq_len, data.too_long)
    with spool(folder / f"spool{files.PARTIAL}") as pool:
        with files.atomic_file(folder / "dropped.jsonl", "w") as log:
            report = Report(lambda fault: log.write(f"{written(fault.as_json())}\n"))
            _fill(pool, list(named), reader, stored, report, renderer, console)
        documents = pool.documents()
        records = reader.records + sum(file.records for file in stored.values())
        if not len(documents):
            raise _nothing_left(recipe, records, reader, report)
        report.show(console)
        about = About(style.tokenizer.fingerprint, data.policy, data.seq_len)
        stores = _write(folder, documents, groups_of(pool.hashes()), recipe, about, console)
    lengths = report.percentiles()
    if reader.unused:
        console.say("data.unused", keys=joined(f"{k} ({n})" for k, n in reader.unused.most_common(12)))
    console.say("data.lengths", records=records, kept=report.kept, **lengths)
    show_stores(console, stores)
    figures = {
        "records": records,
        "kept": report.kept,
        "dropped": dict(report.dropped),
        "remarks": dict(report.of_files + report.remarks),
        "unused_keys": dict(reader.unused),
        "lengths": lengths,
        **{name: figures_of(store) for name, store in stores.items()},
    }
    made = [f"data/{name}" for name, store in stores.items() if store]
    return Result([*made, "data/dropped.jsonl"], figures)


def _named_files(recipe: Recipe) -> dict[str, Path]:
    """Data files by the name the run file gives them; a file named twice would count twice unseen."""
    named: dict[str, Path] = {}
    for name in recipe.data.files:
        path = mindrecord.first_shard(recipe.resolve(name))
        if path in named.values():
            raise Problem("data.file_twice", where=recipe.file, file=name)
        named[name] = path
    unknown = [name for name in recipe.data.weights if name not in named]
    if unknown:
        raise Problem("data.weight_unknown", where=recipe.file, file=unknown[0], files=joined(named))
    return named


def _stored(recipe: Recipe, named: dict[str, Path], vocabulary: Vocabulary) -> dict[str, Recorded]:
    """Those of the files that hold ids, not text. Problem when two of them are shards of one MindRecord."""
    found: dict[str, Recorded] = {}
    seen: set[Path] = set()
    for name, path in named.items():
        if not mindrecord.is_mindrecord(path):
            continue
        file = MindRecord(path)
        if not seen.isdisjoint(file.shards):
            raise Problem("data.shard_twice", where=recipe.file, file=name)
        seen.update(file.shards)
        found[name] = Recorded(file, vocabulary, recipe.data.seq_len, recipe.data.too_long)
    return found


def _style(recipe: Recipe, console: Console) -> Style:
    """How this run's model wants conversations written."""
    folder, data = recipe.model_folder, recipe.data
    spec = specs.from_folder(folder)
    style = style_of(folder, spec, data.policy, data.system)
    for code, told in positions.beyond(spec, data.seq_len):
        console.warn(code, **told)
    template = style.template
    if not template.known:
        values = {"system": template.system, "tools": template.tools, "thinking": template.thinking}
        console.warn("tokenizer.template_unknown", **values)
    return style


def _fill(
    pool: Spool,
    names: list[str],
    reader: Reader,
    stored: dict[str, Recorded],
    report: Report,
    renderer: Renderer,
    console: Console,
) -> None:
    """Put the documents of all files into the pool: conversations are rendered in threads beside reading,
    what is `stored` as ids is taken as it is."""
    total = sum(path.stat().st_size for path in reader.files.values())
    total += sum(file.bytes for file in stored.values())
    with meter(console, total, "data.progress") as advance:
        for name in names:
            if name in stored:
                made = stored[name].read(name, advance)
            else:
                made = ordered(renderer, batches(reader.read_file(name, advance), report.fault))
            for each in made:
                pool.add(each.file, each.ids, each.train, each.lengths, each.records, each.hashes)
                report.rendered(each)


def _write(
    folder: Path, documents: Documents, groups: Int64, recipe: Recipe, about: About, console: Console
) -> dict[str, Store | None]:
    """Both stores, split and packed."""
    data = recipe.data
    train, held = heldout_split(groups, data.heldout, recipe.seed)
    if data.heldout and not len(held):
        console.say("data.no_split")
    copies = len(groups) - int(groups.max()) - 1
    if copies:
        console.say("data.copies", count=copies)
    if data.weights:
        weights = [data.weights.get(name, 1.0) for name in documents.file_names]
        train = repeated(train, documents.source[train, 0], weights, recipe.seed)
    stores: dict[str, Store | None] = {}
    for name, chosen in (("train", train), ("heldout", held)):
        target = folder / name
        if not len(chosen):
            files.remove(target)
            stores[name] = None
            continue
        write_store(target, documents, _plan(documents, chosen, recipe), about)
        stores[name] = open_store(target)
    return stores


def _plan(documents: Documents, chosen: Int64, recipe: Recipe) -> Plan:
    """Rows for the chosen documents, numbered as in `documents`."""
    data = recipe.data
    if data.pack:
        plan = pack(documents.lengths[chosen], data.seq_len, recipe.seed)
    else:
        plan = one_per_row(len(chosen))
    return Plan(chosen[plan.documents], plan.starts)


def _nothing_left(recipe: Recipe, records: int, reader: Reader, report: Report) -> Problem:
    """No record could be used: with counts, reasons and the keys that were seen."""
    where = ", ".join(recipe.data.files)
    if not records:
        return Problem("data.no_records", where=where)
    keys = joined(f"{key} ({count})" for key, count in reader.keys.most_common(12))
    return Problem(
        "data.nothing_left" if keys else "data.no_row_left",  # those of a MindRecord have none
        where=where,
        records=records,
        reasons="\n".join(report.reasons()),
        keys=keys,
        log=recipe.folder / "data" / "dropped.jsonl",
    )
