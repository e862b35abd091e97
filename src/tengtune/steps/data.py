"""data: the data files become rows of token ids with their label masks, for training and for scoring.

Makes `data/train/` and, unless nothing is held out, `data/heldout/` (both stores, see data/store.py), and
`data/dropped.jsonl`, a line for every record that was dropped, cut or odd.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from tengtune import files
from tengtune.data import formats
from tengtune.data.documents import Documents, Int64, Spool, heldout_split, spool
from tengtune.data.fault import Fault
from tengtune.data.judge import Judge
from tengtune.data.pack import Outcome, Plan, fit, one_per_row, pack
from tengtune.data.read import Reader
from tengtune.data.report import Report, figures_of, show_stores
from tengtune.data.store import About, Store, open_store, write_store
from tengtune.engine import Result
from tengtune.models import spec as specs
from tengtune.recipe import Recipe
from tengtune.text.chatml import default_system, render_many
from tengtune.text.conversation import Conversation, Example
from tengtune.text.template import of_folder
from tengtune.text.tokenizer import Tokenizer, open_tokenizer, text_files
from tengtune.ui.console import Console
from tengtune.ui.problems import Problem

BATCH = 512
BATCH_CHARACTERS = 1 << 18
"""Conversations rendered at a time: so many, or so much text (ids are Python lists for a moment)."""
THREADS = 2
"""Threads that render. More would wait for each other: besides encoding it is Python's own work."""

Rendered = tuple[str, int, Example | None, Outcome]
"""A conversation's source, its length in tokens before any cut, and what `fit` made of it."""

Render = Callable[[Sequence[Conversation]], list[Rendered]]

Item = TypeVar("Item")
Made = TypeVar("Made")


def inputs(recipe: Recipe) -> list[Path]:
    """The data files, tokenizer and chat template, and config.json (family and vocabulary)."""
    folder = recipe.model_folder
    return [*_named_files(recipe).values(), *text_files(folder), folder / "config.json"]


def settings(recipe: Recipe) -> dict[str, Any]:
    """The whole data group and the seed."""
    return {"seed": recipe.seed, **recipe.data.model_dump(mode="json")}


def run(recipe: Recipe, console: Console) -> Result:
    """Read, render, split, pack, write. Problem when no record can be learned from."""
    tokenizer = open_tokenizer(recipe.model_folder)
    data, folder = recipe.data, recipe.folder / "data"
    reader = Reader(_named_files(recipe), data.format, Judge(data.policy, tokenizer.control))
    render = _renderer(recipe, tokenizer, console)
    with spool(folder / f"spool{files.PARTIAL}") as pool:
        with files.atomic_file(folder / "dropped.jsonl", "w") as log:
            report = Report(log)
            _fill(pool, reader, report, render, data.seq_len, console)
        documents = pool.documents()
        if not len(documents):
            raise _nothing_left(recipe, reader, report)
        report.show(console)
        stores = _write(folder, documents, recipe, About(tokenizer.fingerprint, data.policy, data.seq_len))
    lengths = report.percentiles()
    if reader.unused:
        console.say("data.unused", keys=", ".join(f"{k} ({n})" for k, n in reader.unused.most_common(12)))
    if data.heldout and stores["heldout"] is None:
        console.say("data.no_split")
    console.say("data.lengths", records=reader.records, kept=len(documents), **lengths)
    show_stores(console, stores)
    figures = {
        "records": reader.records,
        "kept": len(documents),
        "dropped": dict(report.dropped),
        "remarks": dict(report.remarks),
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
        path = recipe.resolve(name)
        if path in named.values():
            raise Problem("data.file_twice", where=recipe.file, file=name)
        named[name] = path
    return named


def _renderer(recipe: Recipe, tokenizer: Tokenizer, console: Console) -> Render:
    """The function that renders a batch of conversations as this run wants them."""
    spec, data = specs.from_folder(recipe.model_folder), recipe.data
    tokenizer.fits(spec)
    if data.seq_len > spec.max_positions:
        console.warn("data.beyond_positions", seq_len=data.seq_len, positions=spec.max_positions)
    template = of_folder(recipe.model_folder, spec.family, tokenizer)
    system = default_system(data.system, data.policy, template)
    if not template.known:
        values = {"system": template.system, "tools": template.tools, "thinking": template.thinking}
        console.warn("tokenizer.template_unknown", **values)

    def rendered(conversations: Sequence[Conversation]) -> list[Rendered]:
        examples = render_many(conversations, tokenizer, data.policy, system, template)
        return [(e.source, len(e.ids), *fit(e, data.seq_len, data.too_long)) for e in examples]

    return rendered


def _fill(
    pool: Spool, reader: Reader, report: Report, render: Render, seq_len: int, console: Console
) -> None:
    """Render every conversation into the pool. Encoding runs in threads beside reading: it leaves
    Python's lock to the others."""
    total = sum(path.stat().st_size for path in reader.files.values())
    done = 0
    workers = min(os.cpu_count() or 1, THREADS)
    with console.progress(total, "data") as bar, ThreadPoolExecutor(workers) as threads:

        def advance(count: int) -> None:
            nonlocal done
            done += count
            bar.update(done, records=reader.records)

        batches = _batches(reader.read(advance), report)
        for batch in _ordered(threads, render, batches, ahead=2 * workers):
            for each in batch:
                _keep(pool, report, each, seq_len)


def _keep(pool: Spool, report: Report, rendered: Rendered, seq_len: int) -> None:
    """Put an example into the pool, and say what was cut or could not be used."""
    source, tokens, example, outcome = rendered
    report.length(tokens)
    if outcome != "whole":
        file, _, record = source.rpartition(":")
        values = {"tokens": tokens, "seq_len": seq_len}
        report.fault(Fault(file, int(record), None, outcome, values, dropped=example is None))
    if example is not None:
        pool.add(example)


def _batches(items: Iterable[Conversation | Fault], report: Report) -> Iterator[list[Conversation]]:
    """Conversations in lists of at most BATCH; faults go to the report."""
    batch: list[Conversation] = []
    characters = 0
    for item in items:
        if isinstance(item, Fault):
            report.fault(item)
            continue
        batch.append(item)
        characters += sum(len(message.content) for message in item.messages)
        if len(batch) == BATCH or characters >= BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def _ordered(
    threads: ThreadPoolExecutor, make: Callable[[Item], Made], items: Iterable[Item], ahead: int
) -> Iterator[Made]:
    """`make` of each item in the items' order, `ahead` of them at work at a time."""
    waiting: deque[Future[Made]] = deque()
    for item in items:
        waiting.append(threads.submit(make, item))
        if len(waiting) >= ahead:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def _write(folder: Path, documents: Documents, recipe: Recipe, about: About) -> dict[str, Store | None]:
    """Both stores, split and packed."""
    train, held = heldout_split(len(documents), recipe.data.heldout, recipe.seed)
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


def _nothing_left(recipe: Recipe, reader: Reader, report: Report) -> Problem:
    """No record could be used: with counts, reasons and the keys that were seen."""
    where = ", ".join(reader.files)
    if not reader.records:
        return Problem("data.no_records", where=where)
    keys = ", ".join(f"{key} ({count})" for key, count in reader.keys.most_common(12)) or "-"
    return Problem(
        "data.nothing_left",
        where=where,
        records=reader.records,
        reasons="\n".join(report.reasons()),
        keys=keys,
        expected=formats.expected(recipe.data.format),
        log=recipe.folder / "data" / "dropped.jsonl",
    )
