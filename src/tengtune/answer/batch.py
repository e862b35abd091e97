"""A file of questions answered record by record, in order; a killed run goes on where it stopped.

`<out>.partial` holds the answers so far, a whole line each; it becomes `<out>` at the end.
`<out>.record.json` says what they were made of: other questions, another model or other settings never go
on with them.
"""

from __future__ import annotations

import codecs
import hashlib
import json
import os
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from tengtune import files
from tengtune.answer.questions import NoQuestion, conversation, parse
from tengtune.answer.speaker import Speaker
from tengtune.json_file import objects
from tengtune.ui import language
from tengtune.ui.console import Console
from tengtune.ui.problems import Problem, Stopped, os_errors


@dataclass(frozen=True)
class Job:
    """Where the questions are and where the answers go. `made_of`: what the answers depend on, as data."""

    questions: Path
    out: Path
    made_of: dict[str, Any]

    @property
    def partial(self) -> Path:
        return self.out.with_name(self.out.name + files.PARTIAL)

    @property
    def record(self) -> Path:
        return self.out.with_name(self.out.name + ".record.json")


@dataclass
class Tally:
    """What became of the records. `limit`: answers cut at their limit, with the reason of the first."""

    records: int = 0
    errors: int = 0
    limit: int = 0
    reason: str = ""


def require(path: Path) -> None:
    """Problem unless the questions can be read: twice, or more when a run goes on, so not from a pipe; and
    unless they are JSON Lines by their first one."""
    if path.is_fifo():
        raise Problem("predict.pipe", where=path)
    files.require_file(path)
    with os_errors(path), open(path, "rb") as stream:
        first = next((line.strip() for line in stream if line.strip()), b"{}").removeprefix(codecs.BOM_UTF8)
    if not first.startswith(b"{") or first == b"{":  # a list, a table, an object over several lines
        raise Problem("predict.not_lines", where=path, file=shlex.quote(str(path)))


def digest(path: Path) -> tuple[str, int]:
    """sha256 of the file and the number of its records (lines that are not blank); Problem as `require`."""
    whole, count = hashlib.sha256(), 0
    require(path)
    with os_errors(path), open(path, "rb") as stream:
        for line in stream:
            whole.update(line)
            count += bool(line.strip())
    return whole.hexdigest(), count


def begin(job: Job, force: bool = False) -> int | None:
    """How many records are answered already; None when all are. With `force` none.

    Problem: the answers that are there were made of something else, or are not ours.
    """
    ours = (job.out, job.partial, job.record)
    if job.questions.resolve() in [path.resolve() for path in ours]:
        raise Problem("predict.same_file", where=job.out)
    with os_errors(job.out):
        for path in ours if force or _nothing_answered(job) else ():
            files.remove(path)
        if job.out.exists() or job.partial.exists():
            _same(job)
        else:
            files.write_text(job.record, json.dumps(job.made_of, ensure_ascii=False, indent=1) + "\n")
        return None if job.out.exists() else _whole_lines(job.partial)


def work(job: Job, speaker: Speaker, done: int, total: int, console: Console) -> Tally:
    """Answer all records after the first `done`, several at a time. An answer is in the file as soon as it
    and all before it have ended."""
    tally = Tally(records=total)
    if done:
        console.say("predict.goes_on", done=done, total=total, partial=job.partial)
    try:
        with (
            os_errors(job.out),
            open(job.partial, "ab") as stream,
            console.progress(total, language.say("predict.progress"), done) as bar,
        ):
            lines = islice(enumerate(_lines(job.questions)), done, None)
            for record in _in_order(_answers(speaker, lines, tally), done):
                stream.write(_written(record))
                stream.flush()
                done += 1
                bar.update(done)
            os.fsync(stream.fileno())
    except KeyboardInterrupt:
        raise Stopped("predict.stopped", exit_code=130, done=done, total=total) from None
    with os_errors(job.out):
        os.replace(job.partial, job.out)
        files.sync_folder(job.out.parent)
    return tally


Numbered = tuple[int, dict[str, Any]]


def _in_order(records: Iterable[Numbered], first: int) -> Iterator[dict[str, Any]]:
    """The records from number `first` on, in the order of their numbers."""
    held: dict[int, dict[str, Any]] = {}
    for number, record in records:
        held[number] = record
        while first in held:
            yield held.pop(first)
            first += 1


def _answers(speaker: Speaker, lines: Iterable[tuple[int, str]], tally: Tally) -> Iterator[Numbered]:
    """The records of numbered lines as they are done, each with its answer or with the reason why it has
    none."""
    asked: dict[int, dict[str, Any]] = {}
    refused: list[Numbered] = []

    def prompts() -> Iterator[tuple[int, list[int]]]:
        for number, line in lines:
            record, prompt = _read(speaker, line, number)
            if prompt is None:
                tally.errors += 1
                refused.append((number, record))
            else:
                asked[number] = record
                yield number, prompt

    for number, reply in speaker.replies(prompts()):
        if reply.end == "length":
            tally.limit += 1
            tally.reason = tally.reason or speaker.why_endless(reply)
        yield number, {**asked.pop(number), "answer": reply.text, "end": reply.end}
        yield from _emptied(refused)
    yield from _emptied(refused)


def _emptied(items: list[Numbered]) -> Iterator[Numbered]:
    while items:
        yield items.pop()


def _read(speaker: Speaker, line: str, number: int) -> tuple[dict[str, Any], list[int] | None]:
    """The record of a line and the prompt it makes; None, and the record says why, where it makes none."""
    record: dict[str, Any] = {"record": number}
    try:
        record = parse(line)
        prompt = speaker.prompt(conversation(record))
        if speaker.room(prompt) < 1:
            positions = speaker.backend.spec.max_positions
            raise NoQuestion(language.say("predict.no_room", tokens=len(prompt), positions=positions))
    except NoQuestion as fault:
        return {**record, "error": str(fault)}, None
    return record, prompt


def _lines(path: Path) -> Iterator[str]:
    """The records' lines; bytes that are no UTF-8 become U+FFFD."""
    with open(path, "rb") as stream:
        yield from (line.decode("utf-8-sig", "replace") for line in stream if line.strip())


def _written(value: dict[str, Any]) -> bytes:
    """The value as a line. (A lone surrogate, which a JSON escape can hold, has no UTF-8.)"""
    try:
        return f"{json.dumps(value, ensure_ascii=False)}\n".encode()
    except UnicodeEncodeError:
        return f"{json.dumps(value)}\n".encode()


def _record(job: Job) -> dict[str, Any] | None:
    """What the answers that are there were made of; None where no record of ours says so."""
    try:
        before = json.loads(job.record.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    return before if isinstance(before, dict) else None


def _nothing_answered(job: Job) -> bool:
    """Whether what is there is ours and holds no answer, so that nothing is lost with it."""
    there = [path for path in (job.out, job.partial) if path.exists()]
    if not there or _record(job) is None:
        return False
    rows = (row for path in there for row in objects(path, lambda row: {"answer", "end"} <= row.keys()))
    return not any(rows)


def _same(job: Job) -> None:
    """Problem unless what is there was made of the same."""
    before = _record(job)
    if before is None:
        raise Problem("predict.not_ours", where=job.out, record=job.record)
    now = json.loads(json.dumps(job.made_of))
    changed = sorted(key for key in now if now[key] != before.get(key))
    if changed:
        names = [language.say(f"predict.made_of_{key.replace(' ', '_')}") for key in changed]
        raise Problem("predict.changed", where=job.out, changed=", ".join(names))


def _whole_lines(path: Path) -> int:
    """The number of whole lines in the file, 0 without one; what follows the last whole one is cut off."""
    if not path.exists():
        return 0
    count = end = 0
    with open(path, "r+b") as stream:
        for line in stream:
            if not line.endswith(b"\n") or not _is_json(line):
                break
            count, end = count + 1, end + len(line)
        stream.truncate(end)
    return count


def _is_json(line: bytes) -> bool:
    """Whether the line is one; a power cut can leave a line of zeros."""
    try:
        json.loads(line)
    except ValueError:
        return False
    return True
