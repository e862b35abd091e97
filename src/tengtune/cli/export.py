"""`tengtune export mindformers`"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import click

from tengtune import files
from tengtune.cli.command import Command, Group
from tengtune.cli.options import FOLDER, run_file
from tengtune.lock import beside, held
from tengtune.ui.console import Console

COMMANDS = "commands.sh"


@click.group("export", cls=Group, help="cli.export")
def command() -> None:
    """Write a run in another program's form."""


@command.command("mindformers", cls=Command, help="cli.export_mindformers")
@run_file
@click.option("--form", type=click.Choice(["r1.0", "new"]), help="cli.opt_form")
@click.option("--hardware", metavar="CARDS", help="cli.opt_hardware")
@click.option("--out", type=FOLDER, required=True, help="cli.opt_out_folder")
def mindformers(
    recipe: Any, console: Console, form: Literal["r1.0", "new"] | None, hardware: str | None, out: Path
) -> None:
    """run_qwen.yaml, or finetune_*.yaml and predict_*.yaml, and the commands."""
    from tengtune.mindformers import commands, losses, write
    from tengtune.mindformers import hardware as cards
    from tengtune.mindformers.compose import comments
    from tengtune.mindformers.notes import one_line
    from tengtune.models import spec as specs
    from tengtune.ui import language
    from tengtune.weights.output import refuse_here

    refuse_here(out)
    files.refuse_full(out, "mindformers")
    chosen = cards.parse(hardware) if hardware else cards.of_run(recipe)
    spec = specs.from_folder(recipe.model_folder)
    job = write.job(recipe, spec, form, chosen, Path(out).absolute())
    trees, notes, script = write.trees(job), losses.notes(job), commands.script(job)
    made = language.say("mindformers.made_for", run=recipe.file.name, form=job.form, cards=job.hardware)
    top = "".join(f"# {line}\n" for line in [one_line(made), *comments(notes)])
    with held(beside(out), console):
        files.refuse_full(out, "mindformers")
        with files.atomic_folder(out) as partial:
            for name, tree in trees.items():
                files.write_text(partial / name, top + write.dump(tree))
            files.write_text(partial / COMMANDS, script)
    for note in notes:
        mark = language.say(f"mindformers.kind_{note.kind}")
        console.say("mindformers.line", mark=mark, key=note.key, told=note.text)
    written = [str(out / name) for name in (*trees, COMMANDS)]
    console.result("\n".join([script, *written]), folder=str(out), files=written, commands=script)
