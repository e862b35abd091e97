"""The docker commands of the reference, as they are."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from tengtune import facts
from tengtune.docker.render import over_lines
from tengtune.ui.problems import Problem

NAMES = ("recipe", "docker_qwen.sh")


def words(name: str, given: Mapping[str, str | None]) -> list[str]:
    """The arguments of one of NAMES. `given`: image, checkpoint, name, None for the reference's own; Problem
    for one that this command does not take."""
    known = facts.tree("docker.yaml")["reference"][name]
    for key, value in given.items():
        if value is not None and key not in known["takes"]:
            raise Problem("docker.not_taken", where=f"--{key}", name=name)
    values = {key: given.get(key) or known[key] for key in known["takes"]}
    return [word.format_map(values) for word in known["words"]]


def command(words: list[str]) -> str:
    """The same for a shell, an option a line."""
    first = words.index(next(word for word in words if word.startswith("--device")))
    parts, waiting = [shlex.join(words[:first])], list(words[first:-2])
    while waiting:
        count = 2 if waiting[0] == "-v" else 1
        parts.append(shlex.join(waiting[:count]))
        waiting = waiting[count:]
    return over_lines([*parts, shlex.join(words[-2:])])


def lacks(name: str) -> list[str]:
    """What it lacks, as codes of messages."""
    return [f"docker.lacks_{each}" for each in facts.tree("docker.yaml")["reference"][name]["lacks"]]
