"""A value that an option does not take is repeated in the message, of every option of every command."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout

import click
import pytest

from tengtune.cli.main import cli, main
from tengtune.ui import language

WRONG = "-7,5x"
TYPES = (click.Choice, click.IntRange, click.FloatRange)


def options(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The words of a command and one of its options that takes a number or one of several words."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from options(command, (*path, name))
            continue
        for each in command.params:
            if isinstance(each, click.Option) and isinstance(each.type, TYPES) and not each.is_flag:
                yield (*path, name, each.opts[0])


@pytest.fixture(autouse=True)
def language_of_its_own() -> Iterator[None]:
    yield
    language.choose(None)


@pytest.mark.parametrize("words", list(options(cli)), ids=" ".join)
def test_the_value_is_repeated(words: tuple[str, ...]) -> None:
    for lang in language.LANGUAGES:
        err = io.StringIO()
        with redirect_stdout(io.StringIO()), redirect_stderr(err), pytest.raises(SystemExit) as ended:
            main(["--lang", lang, *words[:-1], f"{words[-1]}={WRONG}"])
        assert ended.value.code == 2
        assert WRONG in err.getvalue().splitlines()[0]
