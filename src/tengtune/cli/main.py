"""The command line: a lazy table made from pipeline.py. No command's code is loaded before it is called."""

from __future__ import annotations

import importlib
import keyword
import os
import sys
import traceback
from contextlib import suppress

import click

from tengtune import __version__
from tengtune.cli.command import Group, problem_of
from tengtune.pipeline import STEPS
from tengtune.ui import language
from tengtune.ui.console import Console
from tengtune.ui.problems import FAILED_RUN, Problem, Stopped, from_os_error

TOOLS = (
    "init",
    "plan",
    "doctor",
    "docker",
    "run",
    "rehearse",
    "chat",
    "weights",
    "explain",
    "ranktable",
    "export",
    "import",
)
"""Commands that are no steps; their titles are the first lines of their helps."""

CLOSED_PIPE = 141
"""128 + SIGPIPE: what the shell reports of any program whose reader, `head` for one, has gone."""


def titles() -> dict[str, str]:
    """Every command with its title in the current language, in the order of the help."""
    zh = language.current() == "zh"
    table = {name: language.say(f"cli.{name}").splitlines()[0] for name in TOOLS}
    return table | {s.name: (s.zh if zh else s.en) for s in STEPS}


class LazyGroup(Group):
    """Loads `tengtune.cli.<name>` only when that command is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(titles())

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in titles():
            return None
        module = f"{name}_" if keyword.iskeyword(name) else name
        command: click.Command = importlib.import_module(f"tengtune.cli.{module}").command
        return command

    def titles(self, ctx: click.Context) -> list[tuple[str, str]]:
        return list(titles().items())


@click.group(cls=LazyGroup, help="cli.tengtune", context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="tengtune", help="cli.opt_version")
def cli() -> None:
    pass


def main(arguments: list[str] | None = None) -> None:
    """Entry point: every fault of the user's becomes one screen and an exit code."""
    _replace_closed_streams()
    sys.exit(_guarded(sys.argv[1:] if arguments is None else arguments))


def _replace_closed_streams() -> None:
    """What the caller closed becomes /dev/null: there is something to write to, and no file that is opened
    later takes the place of a standard stream. sys.stdin stays None."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    sys.stdout = sys.stdout or os.fdopen(1, "w", encoding="utf-8")
    sys.stderr = sys.stderr or os.fdopen(2, "w", encoding="utf-8")


def _take_language(arguments: list[str]) -> list[str]:
    """The arguments without `--lang`, wherever it stood; the language is chosen at once, so that it holds for
    the help and for problems on the way to the command, too. Problem: no language we speak."""
    rest: list[str] = []
    waiting = iter(arguments)
    for argument in waiting:
        name, equals, value = argument.partition("=")
        if argument == "--":
            return [*rest, argument, *waiting]
        if name != "--lang":
            rest.append(argument)
            continue
        chosen = value if equals else next(waiting, "")
        known = [each for each in language.LANGUAGES if each == chosen]
        if not known:
            wanted = " | ".join(language.LANGUAGES)
            raise Problem("ui.bad_value", option="--lang", value=chosen, wanted=wanted, command="tengtune")
        language.choose(known[0])
    return rest


def _guarded(arguments: list[str]) -> int:
    """Run the command; the exit code it ends with."""
    console = Console("json" if "--json" in arguments else "normal")
    try:
        code = cli.main(args=_take_language(arguments), prog_name="tengtune", standalone_mode=False)
        return code if isinstance(code, int) else 0  # a command may end with a code that is no fault
    except Problem as problem:
        return _told(problem, console)
    except Stopped as stopped:
        console.warn(stopped.code, **stopped.values)
        return stopped.exit_code
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.ClickException as error:
        return _told(problem_of(error), console)
    except (KeyboardInterrupt, click.Abort):
        console.warn("ui.interrupted")
        return 130
    except SystemExit:  # click's, in this mode for nothing but a pipe whose reader has gone
        return CLOSED_PIPE
    except MemoryError:
        return _told(Problem("ui.no_memory", exit_code=FAILED_RUN), console)
    except OSError as error:
        known = from_os_error(error)
        return _told(known, console) if known else _bug(console)
    except Exception:
        return _bug(console)


def _told(problem: Problem, console: Console) -> int:
    """Say it, if the terminal takes it (a full disk behind a redirection does not); its exit code."""
    with suppress(OSError):
        console.problem(problem)
    return problem.exit_code


def _bug(console: Console) -> int:
    """A fault of ours: the traceback, and whose fault it is."""
    traceback.print_exc()
    console.warn("ui.bug", version=__version__)
    return 1
