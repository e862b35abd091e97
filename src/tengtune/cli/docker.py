"""`tengtune docker`"""

from __future__ import annotations

import importlib.util
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tengtune.cli.command import Command, misused
from tengtune.cli.options import FOLDER, make_console, settings_option
from tengtune.ui.console import Console
from tengtune.ui.lists import joined
from tengtune.ui.problems import Problem

if TYPE_CHECKING:
    from tengtune.docker.container import Container
    from tengtune.docker.machine import Machine
    from tengtune.recipe import Recipe


@click.command("docker", cls=Command, help="cli.docker")
@click.argument("run", required=False, type=FOLDER)
@click.option("--cards", metavar="LIST", help="cli.opt_docker_cards")
@click.option("--chip", metavar="NAME", help="cli.opt_chip")
@click.option("--driver", metavar="VERSION", help="cli.opt_driver")
@click.option("-i", "--image", help="cli.opt_image")
@click.option("-n", "--name", help="cli.opt_container")
@click.option("--user", metavar="UID:GID", help="cli.opt_user")
@click.option("--compose", is_flag=True, help="cli.opt_compose")
@click.option("--explain", is_flag=True, help="cli.opt_explain_flags")
@click.option("--like", type=click.Choice(["recipe", "docker_qwen.sh"]), help="cli.opt_like")
@click.option("-c", "--checkpoint", metavar="DIR", help="cli.opt_like_checkpoint")
@settings_option
@click.option("-q", "--quiet", is_flag=True, help="cli.opt_quiet")
@click.option("--json", "as_json", is_flag=True, help="cli.opt_json")
def command(
    run: Path | None, cards: str | None, chip: str | None, driver: str | None, image: str | None,
    name: str | None, user: str | None, compose: bool, explain: bool, like: str | None,
    checkpoint: str | None, overrides: tuple[str, ...], quiet: bool, as_json: bool,
) -> None:  # fmt: skip
    """The docker command of a container for this run."""
    from tengtune import recipe as recipes
    from tengtune.cluster import card_list
    from tengtune.docker import container as containers
    from tengtune.docker import images, render
    from tengtune.docker import machine as machines

    console = make_console(quiet, as_json)
    if like is not None:
        if run or cards or chip or driver or user or compose or explain or overrides:
            raise misused("docker.like_alone")
        _reference(like, image, checkpoint, name, console)
        return
    if checkpoint is not None:
        raise misused("docker.checkpoint_alone")
    if run is None and Path("run.yaml").exists():
        run = Path("run.yaml")
    if run is None and overrides:
        raise misused("docker.set_alone")
    if chip is not None:
        named, chip = chip, images.generation(chip)
        if chip.lower() != named.lower():
            bare = chip == "A2" and re.search(r"910b(?![0-9])", named.lower())
            console.say("docker.chip_bare" if bare else "docker.chip_meant", named=named, chip=chip)
        if cards is not None:
            images.check_slots(card_list.parse(cards)[0], named)
    machine = machines.look()
    if driver is not None:
        machine = replace(machine, driver=driver.lower())
    chosen = containers.check_cards(_cards(cards, machine, console), machine)
    recipe = recipes.load(run, overrides, len(chosen)) if run else None
    if image is None:
        image = _image(chip or machine.chip, recipe, machine, console)
    container = _container(recipe, image, name, user, chosen, machine, console)
    text = render.compose(container) if compose else render.command(container)
    if explain:
        console.say("docker.flags", text=render.explanation(container))
    if recipe is not None:
        source = shlex.quote(str(containers.checkout() or "tengtune"))
        inside = recipe.called(Path(recipe.file.name))
        console.say("docker.inside", source=source, name=container.name, run=inside)
    _write(console, text, words=render.words(container), make=container.to_make)


def _container(
    recipe: Recipe | None, image: str, name: str | None, user: str | None, chosen: tuple[int, ...],
    machine: Machine, console: Console,
) -> Container:  # fmt: skip
    """The container; what a person should know of it is said."""
    from tengtune.docker import container as containers
    from tengtune.docker import places

    if not machine.cards:
        console.say("docker.no_host")
    host, lacking = containers.host_mounts(machine)
    if lacking:
        console.warn("docker.lacking", paths=joined(lacking))
    own = places.of_run(recipe) if recipe else []
    if recipe is None:
        console.say("docker.no_run")
    elif (ranks := recipe.parallel.ranks // recipe.parallel.nodes) != len(chosen):
        code = "docker.few_cards" if ranks > len(chosen) else "docker.idle_cards"
        console.warn(code, ranks=ranks, cards=len(chosen))
    if user is None:
        console.say("docker.as_root")
    elif machine.group is None:
        console.warn("docker.group_unknown")
    return containers.Container(
        image=containers.check_image(image),
        name=containers.check_name(name) if name else containers.name_of(recipe.name if recipe else ""),
        cards=chosen,
        mounts=(*host, *own),
        group=machine.group or None,
        user=None if user is None else containers.check_user(user),
        folder=own[0].target if own else None,
    )


def _cards(text: str | None, machine: Machine, console: Console) -> list[int]:
    """The cards that are named, else all there are."""
    from tengtune.cluster import card_list

    if text is None:
        if not machine.cards:
            raise Problem("docker.no_cards", where="/dev/davinci*", exit_code=3)
        return list(machine.cards)
    cards, doubtful = card_list.parse(text)
    if doubtful:
        console.warn("ranktable.half_open", text=text, cards=joined(cards))
    return cards


def _image(chip: str | None, recipe: Recipe | None, machine: Machine, console: Console) -> str:
    """The image that is known to fit, and why it was chosen."""
    from tengtune.docker import images

    backend = recipe.backend if recipe else "auto"
    if backend == "auto":  # as the back end is chosen where nothing says: torch first
        only_mindspore = not importlib.util.find_spec("torch") and importlib.util.find_spec("mindspore")
        backend = "mindspore" if only_mindspore else "torch"
    image = images.choose(chip, backend, machine)
    console.say(
        "docker.chosen",
        image=image.name,
        cann=image.cann,
        machines=joined(image.machines),
        chip=chip,
        backend=images.NAMES[backend],
        driver=images.driver_of(machine),
    )
    if machine.driver is None:
        console.warn("docker.any_driver", cann=image.cann, drivers=joined(image.drivers).upper())
    if image.install:
        console.say("docker.install", packages=image.install)
    return image.name


def _reference(
    like: str, image: str | None, checkpoint: str | None, name: str | None, console: Console
) -> None:
    """One of the reference's commands, and what it lacks."""
    from tengtune.docker import reference

    words = reference.words(like, {"image": image, "checkpoint": checkpoint, "name": name})
    if like == "docker_qwen.sh" and checkpoint is None:
        console.warn("docker.not_set")
    for code in reference.lacks(like):
        console.say(code)
    _write(console, reference.command(words), words=words, make=[])


def _write(console: Console, text: str, words: list[str], make: list[str]) -> None:
    """The text on stdout; Problem where its encoding would lose a character of a path."""
    encoding = getattr(console.out, "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError as error:
        character = ascii(error.object[error.start])
        raise Problem("docker.encoding", character=character, encoding=encoding) from error
    console.result(text, output=text, command=words, make=make)
