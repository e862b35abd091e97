"""The run file of ours that a reading of theirs makes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from tengtune import recipe as recipes
from tengtune.mindformers.notes import Note, one_line
from tengtune.mindformers.reading import Reading, shown
from tengtune.models import spec as specs
from tengtune.models.folder import PLACEHOLDER
from tengtune.models.layouts import MINDFORMERS
from tengtune.run_yaml import parse_scalar
from tengtune.ui.language import say
from tengtune.weights.mindformers_yaml import shape

DATA = "path/to/data.json"
"""What stands for a file that was not named."""

_WORD = re.compile(r"[A-Za-z_./][\w./-]*", re.ASCII)


def compare(reading: Reading, folder: Path) -> list[Note]:
    """Where the file and the model's config.json differ; Problem for a folder that is no model's."""
    spec = specs.from_folder(folder)
    if spec.family != reading.family:
        return [Note("trap", "model", "read_family", {"found": spec.family, "said": reading.family})]
    notes = []
    for key, own in shape(spec, MINDFORMERS).items():
        said = reading.at(f"model.model_config.{key}")
        if said is not None and said != own and key not in ("rotary_emb_base", "qkv_concat"):
            values: dict[str, object] = {"said": shown(said), "own": shown(own)}
            notes.append(Note("trap", f"model.model_config.{key}", "read_shape", values))
    return notes


def run_file(reading: Reading, notes: list[Note], model: str | None, data: str | None) -> str:
    """The text: what is told as a comment, then the keys in our order."""
    values = {"data.files": [DATA], **reading.values, "model.path": model or PLACEHOLDER}
    if data:
        values["data.files"] = [data]
    tree: dict[str, Any] = {}
    for key in recipes.keys():  # noqa: SIM118
        if values.get(key) is not None:
            group, _, name = key.rpartition(".")
            (tree.setdefault(group, {}) if group else tree)[name] = values[key]
    head = [one_line(say("mindformers.made_of", file=reading.path.name)), *comments(notes)]
    text = yaml.dump(
        tree, Dumper=_Dumper, sort_keys=False, default_flow_style=False, allow_unicode=True, width=10**6
    )
    return "".join(f"# {line}\n" for line in head) + text


def comments(notes: list[Note]) -> list[str]:
    """What is told, a line each."""
    return [one_line(f"{say(f'mindformers.kind_{note.kind}')} {note.key}: {note.text}") for note in notes]


class _Dumper(yaml.SafeDumper):
    """Lists in one line; texts in quotes unless they are plain words to our reader, too."""

    def represent_sequence(
        self, tag: str, sequence: Any, flow_style: bool | None = None
    ) -> yaml.SequenceNode:
        return super().represent_sequence(tag, sequence, flow_style=True)


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    word = (
        _WORD.fullmatch(text)
        and parse_scalar(text) == text
        and text.lower() not in ("yes", "no", "on", "off")
    )
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if word else '"')


_Dumper.add_representer(str, _text)
