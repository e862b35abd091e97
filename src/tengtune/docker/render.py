"""A container as a docker command, as a compose file, and as an explanation of its flags."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import yaml

from tengtune.docker.container import SHELL, Container
from tengtune.docker.places import Mount
from tengtune.ui.language import say


@dataclass(frozen=True)
class Flag:
    """Words of the command that belong together; `why`: docker.why_<why>."""

    words: tuple[str, ...]
    why: str


def flags(container: Container) -> list[Flag]:
    """What stands between `docker run` and the image."""
    cards = len(container.cards)
    listed = [
        Flag(("-it",), "terminal"),
        Flag((f"--name={container.name}",), "name"),
        Flag(("--network=host",), "network"),
        Flag(("--ipc=host",), "ipc"),
        *(Flag((f"--device={node}",), "card") for node in container.devices[:cards]),
        *(Flag((f"--device={node}",), "manager") for node in container.devices[cards:]),
    ]
    if container.user is not None:
        listed.append(Flag((f"--user={container.user}",), "user"))
    if container.group is not None:
        listed.append(Flag((f"--group-add={container.group}",), "group"))
    whys = ("visible_outside", "visible_inside")
    for (key, value), why in zip(container.environment.items(), whys, strict=True):
        listed.append(Flag(("-e", f"{key}={value}"), why))
    listed += [Flag(("--mount", mount_value(mount)), mount.why) for mount in container.mounts]
    if container.folder is not None:
        listed.append(Flag(("-w", container.folder), "folder"))
    return listed


def mount_value(mount: Mount) -> str:
    """What --mount takes: fields of a CSV line. -v would split paths at colons, and make what is missing."""
    fields = ["type=bind", f"source={mount.source}", f"target={mount.target}"]
    if not mount.writable:
        fields.append("readonly")
    return ",".join(map(_csv_field, fields))


def _csv_field(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if set(text) & set('",') else text


def words(container: Container) -> list[str]:
    """The command as a list of arguments."""
    inner = [word for flag in flags(container) for word in flag.words]
    return ["docker", "run", *inner, container.image, SHELL]


def command(container: Container) -> str:
    """The command for a shell, a flag a line; what has to be made before it is made by it."""
    lines = ["docker run", *(shlex.join(flag.words) for flag in flags(container))]
    lines.append(shlex.join((container.image, SHELL)))
    if container.to_make:
        lines[0] = f"mkdir -p {shlex.join(container.to_make)} && {lines[0]}"
    return over_lines(lines)


def over_lines(parts: Iterable[str]) -> str:
    """Parts of one command, a line each."""
    return " \\\n  ".join(parts)


def compose(container: Container) -> str:
    """A compose file with the one service `train`."""
    service: dict[str, Any] = {
        "image": container.image,
        "container_name": container.name,
        "command": [SHELL],
        "stdin_open": True,
        "tty": True,
        "network_mode": "host",
        "ipc": "host",
        "devices": [f"{node}:{node}" for node in container.devices],
        "environment": container.environment,
        "volumes": [_volume(mount) for mount in container.mounts],
    }
    if container.user is not None:
        service["user"] = container.user
    if container.group is not None:
        service["group_add"] = [str(container.group)]
    if container.folder is not None:
        service["working_dir"] = container.folder
    tree = {"services": {"train": _escaped(service)}}
    return yaml.safe_dump(tree, sort_keys=False, allow_unicode=True, width=10**6).rstrip("\n")


def _volume(mount: Mount) -> dict[str, Any]:
    volume: dict[str, Any] = {"type": "bind", "source": mount.source, "target": mount.target}
    if not mount.writable:
        volume["read_only"] = True
    return {**volume, "bind": {"create_host_path": mount.absent}}


def _escaped(value: Any) -> Any:
    """Compose fills in variables at every `$`, save where it is doubled."""
    if isinstance(value, str):
        return value.replace("$", "$$")
    if isinstance(value, dict):
        return {key: _escaped(inner) for key, inner in value.items()}
    return [_escaped(inner) for inner in value] if isinstance(value, list) else value


def explanation(container: Container) -> str:
    """Every flag and what it is for; what is there for one reason stands together."""
    groups: dict[str, list[str]] = {}
    for flag in flags(container):
        groups.setdefault(flag.why, []).append(shlex.join(flag.words))
    groups["image"] = [shlex.join((container.image, SHELL))]
    return "\n".join(
        "\n".join([*lines, f"    {say(f'docker.why_{why}', name=container.name)}"])
        for why, lines in groups.items()
    )
