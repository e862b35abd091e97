"""A file of questions answered record by record, in order; a killed run goes on where it stopped.

`<out>.partial` holds the answers so far, a whole line each; it becomes `<out>` at the end.
`<out>.record.json` says what they were made of: other questions, another model or other settings never go
on with them. What a record of the questions calls as we call our own values is kept as `input_<name>`.
"""

from __future__ import annotations

import codecs
import errno
import hashlib
import json
import os
import shlex
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from tengtune import files
from tengtune.answer.questions import NoQuestion, conversation, parse, text_of
from tengtune.answer.speaker import Speaker
from tengtune.data.detect import marked_encoding, unmarked_utf16
from tengtune.data.encodings import encoding_guess
from tengtune.json_file import objects
from tengtune.ui import language
from tengtune.ui.console import Console
from tengtune.ui.lists import joined
from tengtune.ui.problems import Problem, Stopped, os_errors

OURS = ("record", "answer", "end", "error")
"""What is added to a record; see the head of this file."""
RECORD = ".record.json"
HEAD_BYTES = 1 << 16


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
        return self.out.with_name(self.out.name + RECORD)


@dataclass
class Tally:
    """What became of the first `done` of `total` records, whichever run answered them. errors: the numbers of
    those that could not be asked; cut: how many answers were cut at their limit; reason: the number of one
    that this run cut, and why it did not end; finished: the answers are whole and have their name."""

    total: int
    done: int = 0
    errors: list[int] = field(default_factory=list)
    cut: int = 0
    reason: tuple[int, str] | None = None
    finished: bool = False

    def take(self, row: dict[str, Any]) -> None:
        """Count the next line of the answers."""
        if "error" in row:
            self.errors.append(self.done)
        self.cut += row.get("end") == "length"
        self.done += 1


def require(path: Path) -> None:
    """Problem unless the questions can be read: twice, or more when a run goes on, so not from a pipe; and
    unless they are JSON Lines by their first one, and UTF-8 by most of those that are not ASCII."""
    if path.is_fifo():
        raise Problem("predict.pipe", where=path)
    files.require_file(path)
    with os_errors(path), open(path, "rb") as stream:
        head = stream.read(HEAD_BYTES)
        mark = marked_encoding(head)
        encoding = mark[0] if mark else unmarked_utf16(head) or "UTF-8"
        if encoding != "UTF-8":
            raise _not_utf8(path, 1, encoding)
        stream.seek(0)
        _require_utf8(path, stream)
        stream.seek(0)
        first = next((line.strip() for line in stream if line.strip()), b"{}").removeprefix(codecs.BOM_UTF8)
    if not first.startswith(b"{") or first == b"{":  # a list, a table, an object over several lines
        raise Problem("predict.not_lines", where=path, file=shlex.quote(str(path)))


def _require_utf8(path: Path, lines: Iterable[bytes]) -> None:
    """Problem where of the lines beyond ASCII more are not UTF-8 than are; fewer have an error each."""
    sound, odd, first, sample = 0, 0, 0, b""
    for number, line in enumerate(lines, 1):
        if line.isascii():
            continue
        try:
            line.decode("utf-8")
        except UnicodeDecodeError:
            odd, first = odd + 1, first or number
            sample += line[: HEAD_BYTES - len(sample)]
        else:
            sound += 1
    if odd > sound:
        raise _not_utf8(path, first, encoding_guess(sample))


def _not_utf8(path: Path, line: int, guess: str) -> Problem:
    code = "predict.encoding_unclear" if guess == "?" else "predict.not_utf8"
    return Problem(code, where=f"{path}:{line}", guess=guess, file=shlex.quote(str(path)))


def require_place(out: Path) -> None:
    """Problem unless at `out` and the names used beside it there is nothing, or a plain file."""
    for suffix in ("", files.PARTIAL, RECORD):
        path = Path(f"{out}{suffix}")
        with os_errors(path):
            try:
                mode = os.lstat(path).st_mode
            except FileNotFoundError:
                continue
            if stat.S_ISLNK(mode):
                raise Problem("io.link", where=path.absolute(), target=os.readlink(path))
            if stat.S_ISDIR(mode):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            if not stat.S_ISREG(mode):
                raise Problem("predict.out_not_plain", where=path)


def digest(path: Path) -> tuple[str, int]:
    """sha256 of the file and the number of its records (lines that are not blank); Problem as `require`."""
    whole, count = hashlib.sha256(), 0
    require(path)
    with os_errors(path), open(path, "rb") as stream:
        for line in stream:
            whole.update(line)
            count += bool(line.strip())
    return whole.hexdigest(), count


def begin(job: Job, total: int, force: bool = False) -> Tally:
    """What is answered already; with `force` nothing.

    Problem: the answers that are there were made of something else, or are not ours.
    """
    require_place(job.out)
    ours = (job.out, job.partial, job.record)
    if job.questions.resolve() in [path.resolve() for path in ours]:
        raise Problem("predict.same_file", where=job.out)
    tally = Tally(total)
    with os_errors(job.out):
        for path in ours if force or _nothing_answered(job) else ():
            path.unlink(missing_ok=True)
        if job.out.exists():
            _same(job)
            tally.finished = True
            for row in objects(job.out, lambda row: True):
                tally.take(row or {})
        elif job.partial.exists():
            _same(job)
            _take_whole_lines(job.partial, tally)
        else:
            files.write_text(job.record, json.dumps(job.made_of, ensure_ascii=False, indent=1) + "\n")
    return tally


def work(job: Job, speaker: Speaker, tally: Tally, console: Console) -> None:
    """Answer all records after those of `tally`, several at a time. An answer is in the file as soon as it
    and all before it have ended."""
    if tally.done:
        console.say("predict.goes_on", done=tally.done, total=tally.total, partial=job.partial)
    try:
        with (
            os_errors(job.out),
            open(job.partial, "ab") as stream,
            console.progress(tally.total, language.say("predict.progress"), tally.done) as bar,
        ):
            lines = islice(enumerate(_lines(job.questions)), tally.done, None)
            for record in _in_order(_answers(speaker, lines, tally), tally.done):
                stream.write(_written(record))
                stream.flush()
                tally.take(record)
                bar.update(tally.done)
            os.fsync(stream.fileno())
    except KeyboardInterrupt:
        raise Stopped("predict.stopped", exit_code=130, done=tally.done, total=tally.total) from None
    with os_errors(job.out):
        os.replace(job.partial, job.out)
        files.sync_folder(job.out.parent)


Numbered = tuple[int, dict[str, Any]]


def _in_order(records: Iterable[Numbered], first: int) -> Iterator[dict[str, Any]]:
    """The records from number `first` on, in the order of their numbers."""
    held: dict[int, dict[str, Any]] = {}
    for number, record in records:
        held[number] = record
        while first in held:
            yield held.pop(first)
            first += 1


def _answers(speaker: Speaker, lines: Iterable[tuple[int, bytes]], tally: Tally) -> Iterator[Numbered]:
    """The records of numbered lines as they are done, each with its answer or with the reason why it has
    none."""
    asked: dict[int, dict[str, Any]] = {}
    refused: list[Numbered] = []

    def prompts() -> Iterator[tuple[int, list[int]]]:
        for number, line in lines:
            record, prompt = _read(speaker, line, number)
            if prompt is None:
                refused.append((number, record))
            else:
                asked[number] = record
                yield number, prompt

    for number, reply in speaker.replies(prompts()):
        if reply.end == "length":
            tally.reason = tally.reason or (number, speaker.why_endless(reply))
        yield number, {**asked.pop(number), "answer": reply.text, "end": reply.end}
        yield from _emptied(refused)
    yield from _emptied(refused)


def _emptied(items: list[Numbered]) -> Iterator[Numbered]:
    while items:
        yield items.pop()


def _read(speaker: Speaker, line: bytes, number: int) -> tuple[dict[str, Any], list[int] | None]:
    """The record of a line and the prompt it makes; None, and the record says why, where it makes none."""
    record: dict[str, Any] = {}
    try:
        record = _kept(parse(text_of(line)))
        prompt = speaker.prompt(conversation(record))
        if speaker.room(prompt) < 1:
            positions = speaker.backend.spec.max_positions
            raise NoQuestion(language.say("predict.no_room", tokens=len(prompt), positions=positions))
    except NoQuestion as fault:
        return {**record, "record": number, "error": str(fault)}, None
    return record, prompt


def _kept(record: dict[str, Any]) -> dict[str, Any]:
    """The record with names that are none of ours; in its order."""

    def free(name: str) -> str:
        name = f"input_{name}"
        return free(name) if name in record else name

    return {free(name) if name in OURS else name: value for name, value in record.items()}


def _lines(path: Path) -> Iterator[bytes]:
    """The records' lines."""
    with open(path, "rb") as stream:
        yield from (line for line in stream if line.strip())


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
        raise Problem("predict.changed", where=job.out, changed=joined(names))


def _take_whole_lines(path: Path, tally: Tally) -> None:
    """Count the whole lines of the file; what follows the last of them is cut off."""
    end = 0
    with open(path, "r+b") as stream:
        for line in stream:
            row = _row(line) if line.endswith(b"\n") else None
            if row is None:
                break
            tally.take(row)
            end += len(line)
        stream.truncate(end)


def _row(line: bytes) -> dict[str, Any] | None:
    """The object in a line; None where there is none, as in the line of zeros a power cut can leave."""
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None
