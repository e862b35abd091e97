"""tengtune import"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tengtune import files
from tengtune.cli.command import Command
from tengtune.cli.init import check_data, check_names, check_out, written
from tengtune.cli.options import FOLDER, make_console
from tengtune.ui import language
from tengtune.ui.console import Console
from tengtune.ui.lists import joined
from tengtune.ui.problems import Problem

if TYPE_CHECKING:
    from tengtune.mindformers.notes import Note
    from tengtune.mindformers.reading import Reading


@click.command("import", cls=Command, help="cli.import")
@click.argument("file", type=FOLDER)
@click.option("--model", type=FOLDER, help="cli.opt_import_model")
@click.option("--data", type=FOLDER, help="cli.opt_import_data")
@click.option("-o", "--out", type=FOLDER, default="run.yaml", help="cli.opt_out_file")
@click.option("--keys", is_flag=True, help="cli.opt_import_keys")
@click.option("-q", "--quiet", is_flag=True, help="cli.opt_quiet")
@click.option("--json", "as_json", is_flag=True, help="cli.opt_json")
def command(
    file: Path, model: Path | None, data: Path | None, out: Path, keys: bool, quiet: bool, as_json: bool
) -> None:
    """A run file of ours from one of mindformers'."""
    from tengtune.mindformers import compose
    from tengtune.mindformers.notes import Note
    from tengtune.mindformers.read import read

    console = make_console(quiet, as_json)
    check_names(*filter(None, (model, data, out)))
    check_out(out)
    if data:
        check_data(data)
    reading = read(file, data)
    notes = reading.notes + (compose.compare(reading, model) if model else [])
    missing = [] if model else ["model.path"]
    if not (data or "data.files" in reading.values):
        missing.append("data.files")
    if missing:
        notes.append(Note("changed", joined(missing), "read_placeholders"))
    names = [written(path, out.parent) if path else None for path in (model, data)]
    text = compose.run_file(reading, notes, *names)
    _write(out, text, file)
    _tell(reading, notes, keys, console)
    console.result(str(out), file=str(out))


def _write(out: Path, text: str, file: Path) -> None:
    """Write the run file, if it is one: what their file says may be beyond what ours takes."""
    from tengtune import recipe as recipes

    with files.atomic_file(out, "w") as stream:
        stream.write(text)
        stream.flush()
        try:
            recipes.load(Path(stream.name))
        except Problem as problem:
            told = problem.texts()
            reason = " ".join(told[part] for part in ("what", "why") if part in told)
            raise Problem("mindformers.not_ours", where=file, reason=reason) from problem


def _tell(reading: Reading, notes: list[Note], keys: bool, console: Console) -> None:
    """What differs and what to beware of, behind how much was taken over; key by key under `keys`."""
    from tengtune.mindformers.reading import gathered, shown

    taken, left = reading.taken, reading.left()
    for each in taken:
        console.event("taken", key=each.theirs, value=each.value, ours=each.ours, own=each.own)
    for other in left:
        reason = language.say(f"mindformers.why_{other.why}")
        console.event("left", key=other.theirs, value=other.value, why=other.why, text=reason)
    if keys and console.mode == "normal":
        rows = [
            [t.theirs, shown(t.value), t.ours if t.ours == "-" else f"{t.ours}: {shown(t.own)}"]
            for t in taken
        ]
        console.table(language.say("mindformers.taken_columns").split("|"), rows)
        table = [
            [language.say(f"mindformers.why_{why}"), "\n".join(names)]
            for why, names in gathered(left, taken).items()
        ]
        console.table(language.say("mindformers.left_columns").split("|"), table)
    if not keys:
        console.say("mindformers.counted", file=reading.path.name, taken=len(taken), left=len(left))
    for note in notes:
        mark = language.say(f"mindformers.kind_{note.kind}")
        console.say("mindformers.line", mark=mark, key=note.key, told=note.text)
