"""A model into a folder: room first, config.json last, and a record that says it is whole."""

from __future__ import annotations

import fcntl
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tengtune.hub.base import RemoteFile
from tengtune.hub.choose import CONFIG, SAFE
from tengtune.hub.meter import meter
from tengtune.hub.plan import Plan, Wish, make_plan, whole_record
from tengtune.hub.record import Record, entry_of, unchanged, write_record
from tengtune.hub.transfer import Source, Watch, fetch, link, partial_of
from tengtune.ui.console import Console
from tengtune.ui.lists import size
from tengtune.ui.problems import BUSY, UNFIT_MACHINE, Problem, os_errors
from tengtune.weights.source import read_folder, weight_files

WORKERS = 4
"""Files fetched at once: a hub limits each connection."""


def bring(wish: Wish, console: Console) -> dict[str, Any]:
    """Make the folder hold the whole model; figures of what was done.

    A folder that is whole by its record causes no traffic. Problem: anything that keeps it from being whole;
    what is verified by then stays, and the same call goes on from there.
    """
    start = time.monotonic()
    record = whole_record(wish, console)
    missing: list[RemoteFile] = []
    if record is not None:
        console.say("download.whole", model=record.model, folder=wish.folder)
    else:
        plan = make_plan(wish, console)
        missing = plan.missing
        record = _carry_out(wish, plan, console)
    return {
        "folder": str(wish.folder),
        "model": record.model,
        "source": record.endpoint,
        "revision": record.revision,
        "files": len(record.files),
        "bytes": record.bytes,
        "fetched": len(missing),
        "fetched_bytes": sum(file.size for file in missing),
        "checked": record.checked,
        "seconds": round(time.monotonic() - start, 3),
    }


def _carry_out(wish: Wish, plan: Plan, console: Console) -> Record:
    """Fetch what is missing and note that the folder is whole."""
    if plan.need > plan.free:
        raise Problem(
            "download.no_space",
            where=wish.folder,
            exit_code=UNFIT_MACHINE,
            total=size(plan.choice.bytes),
            need=size(plan.need),
            free=size(plan.free),
        )
    if wish.folder.exists() and not wish.folder.is_dir():
        raise Problem("download.not_a_folder", where=wish.folder)
    with os_errors(wish.folder):
        wish.folder.mkdir(parents=True, exist_ok=True)
    checked = all(file.sha256 or file.git for file in plan.choice.needed)
    record = Record(wish.repo, plan.hub.name, plan.hub.endpoint, plan.revision, plan.pin, checked=checked)
    record.files.update(plan.old | plan.have)
    with _alone(wish.folder):
        write_record(wish.folder, record)
        _make_whole(wish, plan, record, console)
        record.whole = True
        write_record(wish.folder, record)
    figures = {"folder": wish.folder, "size": size(record.bytes), "files": len(record.files)}
    if checked:
        console.say("download.done", **figures)
    else:
        console.warn("download.unchecked", source=plan.hub.endpoint)
        console.say("download.done_unchecked", **figures)
    return record


def _make_whole(wish: Wish, plan: Plan, record: Record, console: Console) -> None:
    """Bring all missing files, several at once, and take away what does not belong there; config.json comes
    after all that, so that no program takes the folder for a model before it is one."""
    todo = [file for file in plan.missing if file.name != CONFIG]
    last = [file for file in plan.choice.needed if file.name == CONFIG and plan.missing]
    if last:
        _set_config_aside(wish.folder, plan, record)
    source = Source(plan.hub, wish.repo, plan.pin)
    with meter(console, sum(file.size for file in todo + last), "download.progress") as advance:
        watch = Watch(advance, console.say, threading.Event())

        def one(file: RemoteFile) -> tuple[str, str]:
            original = plan.hub.path(wish.repo, file.name)
            sha256 = link(original, file, wish.folder, watch) if original is not None else None
            return file.name, sha256 or fetch(source, file, wish.folder, watch)

        def all_of(batch: list[RemoteFile]) -> None:
            for name, sha256 in _at_once(one, batch, watch.stop):
                record.files[name] = entry_of(wish.folder / name, sha256)
                write_record(wish.folder, record)

        all_of(todo)
        _sweep(wish.folder, plan, record, console)
        if any(file.name.endswith(SAFE) for file in plan.choice.needed):
            # Problem where a shard of the index is not among the files; headers where there were no hashes.
            (weight_files if record.checked else read_folder)(wish.folder)
        all_of(last)


def _set_config_aside(folder: Path, plan: Plan, record: Record) -> None:
    """Take config.json away: as its own partial file where it is right, so that it costs no request."""
    record.files.pop(CONFIG, None)
    with os_errors(folder):
        if CONFIG in plan.have:
            os.replace(folder / CONFIG, partial_of(folder, CONFIG))
        else:
            (folder / CONFIG).unlink(missing_ok=True)


def _sweep(folder: Path, plan: Plan, record: Record, console: Console) -> None:
    """Remove what an earlier revision had and this one has not: an old model.safetensors beside new shards
    would be the one that is loaded. Files somebody has changed stay."""
    needed = {file.name for file in plan.choice.needed}
    for name in sorted(record.files.keys() - needed):
        entry = record.files.pop(name)
        if unchanged(folder / name, entry):
            console.say("download.removed", file=name)
            with os_errors(folder):
                (folder / name).unlink()


def _at_once(
    function: Callable[[RemoteFile], tuple[str, str]], batch: list[RemoteFile], stop: threading.Event
) -> Iterator[tuple[str, str]]:
    """The results as they come. The first failure stops the others and is raised.

    The threads are daemons, so that Ctrl-C does not wait for a server that is silent.
    """
    todo: queue.SimpleQueue[RemoteFile] = queue.SimpleQueue()
    done: queue.SimpleQueue[tuple[str, str] | BaseException] = queue.SimpleQueue()
    for file in batch:
        todo.put(file)

    def work() -> None:
        while not stop.is_set():
            try:
                done.put(function(todo.get_nowait()))
            except queue.Empty:
                return
            except BaseException as error:
                done.put(error)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(min(WORKERS, len(batch)))]
    for thread in threads:
        thread.start()
    try:
        for _ in batch:
            result = done.get()
            if isinstance(result, BaseException):
                raise result
            yield result
    except KeyboardInterrupt:
        stop.set()
        raise
    except BaseException:
        stop.set()
        for thread in threads:
            thread.join()
        raise


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep a second download out of the folder; the lock goes with the process."""
    with os_errors(folder):
        descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Problem("download.busy", where=folder, exit_code=BUSY) from error
        except OSError:
            pass  # a file system without locks
        yield
    finally:
        os.close(descriptor)
