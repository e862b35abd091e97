"""The command line: a lazy table made from pipeline.py. No command's code is loaded before it is called."""

from __future__ import annotations

import difflib
import importlib
import os
import sys
import traceback
from contextlib import suppress
from typing import Any

import click

from tengtune import __version__
from tengtune.pipeline import STEPS
from tengtune.ui import language
from tengtune.ui.console import Console
from tengtune.ui.problems import FAILED_RUN, Problem, Stopped, from_os_error

TOOLS: dict[str, tuple[str, str]] = {
    "init": ("写出一份运行文件", "write a run file"),
    "run": ("按顺序执行所需的全部步骤", "do all the steps that are needed, in order"),
    "chat": ("和模型对话，可并排对比训练前后", "talk to the model, before and after side by side"),
    "weights": ("查看和核对权重", "look at weights and check them"),
}
"""Commands that are no steps: name -> (zh, en) title."""


def titles() -> dict[str, str]:
    """Every command with its title in the current language, in the order of the help."""
    zh = language.current() == "zh"
    table = {name: pair[0 if zh else 1] for name, pair in TOOLS.items()}
    return table | {s.name: (s.zh if zh else s.en) for s in STEPS}


class LazyGroup(click.Group):
    """Loads `tengtune.cli.<name>` only when that command is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(titles())

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in titles():
            near = difflib.get_close_matches(name, list(titles()), n=1)
            suggestion = language.say("ui.did_you_mean", near=near[0]) if near else ""
            raise Problem("ui.unknown_command", name=name, suggestion=suggestion)
        command: click.Command = importlib.import_module(f"tengtune.cli.{name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("命令" if language.current() == "zh" else "Commands"):
            formatter.write_dl(list(titles().items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="tengtune")
@click.option("--lang", type=click.Choice(["zh", "en"]), help="语言 / language")
def cli(lang: Any) -> None:
    """Fine-tune Qwen on Ascend cards, rehearsed on a CPU first / 在昇腾卡上微调 Qwen，先在 CPU 上预演。"""
    if lang:
        language.choose(lang)


def main(arguments: list[str] | None = None) -> None:
    """Entry point: every fault of the user's becomes one screen and an exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    _choose_early(arguments)
    sys.exit(_guarded(arguments))


def _choose_early(arguments: list[str]) -> None:
    """`--lang` must hold for the help and for problems on the way to the command, too."""
    for i, argument in enumerate(arguments):
        value = argument.partition("=")[2] if argument.startswith("--lang=") else None
        if argument == "--lang" and i + 1 < len(arguments):
            value = arguments[i + 1]
        if value in ("zh", "en"):
            language.choose("zh" if value == "zh" else "en")


def _guarded(arguments: list[str]) -> int:
    """Run the command; the exit code it ends with."""
    console = Console("json" if "--json" in arguments else "normal")
    try:
        code = cli.main(args=arguments, prog_name="tengtune", standalone_mode=False)
        return code if isinstance(code, int) else 0  # a command may end with a code that is no fault
    except Problem as problem:
        return _told(problem, console)
    except Stopped as stopped:
        console.warn(stopped.code, **stopped.values)
        return stopped.exit_code
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.ClickException as error:
        path = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "tengtune"
        return _told(Problem("ui.wrong_option", message=error.format_message(), command=path), console)
    except (KeyboardInterrupt, click.Abort):
        console.warn("ui.interrupted")
        return 130
    except BrokenPipeError:
        # The reader of the pipe has gone; keep Python from complaining about it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
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
