"""Commands that explain themselves in the language in force.

The help of a command or an option is a code of ui/messages/cli.yaml, looked up when it is shown.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import click

from tengtune.ui import language
from tengtune.ui.layout import columns, wrapped
from tengtune.ui.problems import Problem


class Formatter(click.HelpFormatter):
    """click's, with its own few words in the language in force."""

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        """The first line, "Usage: tengtune ..."."""
        super().write_usage(prog, args, language.say("cli.usage") if prefix is None else prefix)

    def write_heading(self, heading: str) -> None:
        """A heading: cli.options, cli.commands."""
        self.write(f"{'':>{self.current_indent}}{language.say(heading)}\n")

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        """As click does, by the columns that letters take: names on the left, their texts beside them."""
        rows = list(rows)
        left = min(max(columns(name) for name, _ in rows), col_max) + col_spacing
        margin = " " * self.current_indent
        for name, text in rows:
            lines = list(wrapped(text, max(self.width - left - 2, 10)))
            gap = left - columns(name)
            beside = lines.pop(0) if lines and gap >= col_spacing else ""
            self.write(f"{margin}{name}{' ' * gap}{beside}".rstrip() + "\n")
            for line in lines:
                self.write(f"{margin}{' ' * left}{line}\n")


_LINE = "tengtune.line"
"""Where a context keeps the words it was made of."""


class Context(click.Context):
    """click's, with our formatter."""

    formatter_class = Formatter


class Command(click.Command):
    """A command whose help and options' helps are codes."""

    context_class = Context

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does; what is left over is a Problem in our words."""
        ctx.allow_extra_args = True
        ctx.meta[_LINE] = list(args)
        try:
            rest = super().parse_args(ctx, args)
        except click.UsageError as error:
            error.ctx = error.ctx or ctx  # click's parser leaves it out here and there
            raise
        if rest:
            raise Problem("ui.extra_arguments", arguments=" ".join(rest), command=ctx.command_path)
        return rest

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """The parameters, and --lang, which main.py takes out of the line; it is here for the help."""
        return [*super().get_params(ctx), _LANG]

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """What may follow the command, click's own placeholders in the language in force."""
        words: dict[str, str] = language.lookup("cli.placeholders")
        return [words.get(piece, piece) for piece in super().collect_usage_pieces(ctx)]

    def get_short_help_str(self, limit: int = 45) -> str:
        """The first line of the help."""
        return language.say(self.help or "").splitlines()[0]

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The help as it stands in the file, line by line."""
        formatter.write_paragraph()
        for line in language.say(self.help or "").splitlines():
            formatter.write(f"  {line}".rstrip() + "\n")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The options and their helps."""
        rows = []
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None and isinstance(parameter, click.Option):
                own = parameter.help or ""
                code = own if own.startswith("cli.") else "cli.opt_help"  # the one option that is click's
                text = record[1].replace(own, language.say(code), 1)
                rows.append((_named(record[0], parameter, ctx), text))
        with formatter.section("cli.options"):
            formatter.write_dl(rows)


class Group(Command, click.Group):
    """A command with commands below it; named alone it shows its help."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does; with nothing to do, the help."""
        if not args:
            click.echo(ctx.get_help())
            ctx.exit()
        return click.Group.parse_args(self, ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that is named; Problem with the nearest names when there is none."""
        if self.get_command(ctx, args[0]) is None:
            raise unknown_command(args[0], self.list_commands(ctx), ctx.command_path)
        return super().resolve_command(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The options, then the commands."""
        super().format_options(ctx, formatter)
        self.format_commands(ctx, formatter)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The commands and their titles."""
        with formatter.section("cli.commands"):
            formatter.write_dl(self.titles(ctx))

    def titles(self, ctx: click.Context) -> list[tuple[str, str]]:
        """Every command with its title."""
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        return [(name, command.get_short_help_str()) for name, command in found if command]


_LANG = click.Option(
    ["--lang"], type=click.Choice(language.LANGUAGES), help="cli.opt_lang", expose_value=False
)


def _named(names: str, option: click.Option, ctx: click.Context) -> str:
    """An option's names with what it takes, where that is one of click's words, in the language in force."""
    metavar = option.make_metavar(ctx)
    words: dict[str, str] = language.lookup("cli.placeholders")
    known = metavar in words and not option.is_flag
    return names.removesuffix(metavar) + words[metavar] if known else names


def unknown_command(name: str, known: list[str], path: str) -> Problem:
    """There is no such command; the nearest is suggested."""
    import difflib

    near = difflib.get_close_matches(name, known, n=1)
    suggestion = language.say("ui.did_you_mean", near=near[0]) if near else ""
    return Problem("ui.unknown_command", name=name, suggestion=suggestion, command=path)


def misused(code: str) -> Problem:
    """The options given do not go together; `code` is the text that says why."""
    path = click.get_current_context().command_path
    return Problem("ui.wrong_option", message=language.say(code), command=path)


def problem_of(error: click.ClickException) -> Problem:
    """What click found wrong with the command line, in our words."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    command = context.command_path if context else "tengtune"
    if isinstance(error, click.NoSuchOption):
        near = error.possibilities or []
        suggestion = language.say("ui.did_you_mean", near=" / ".join(near)) if near else ""
        return Problem("ui.no_such_option", option=error.option_name, suggestion=suggestion, command=command)
    if isinstance(error, click.BadOptionUsage):
        flags = (
            [p for p in context.command.get_params(context) if isinstance(p, click.Option)] if context else []
        )
        flag = any(p.is_flag and error.option_name in (*p.opts, *p.secondary_opts) for p in flags)
        code = "ui.unwanted_value" if flag else "ui.value_missing"
        return Problem(code, option=error.option_name, command=command)
    if isinstance(error, click.MissingParameter) and error.param and context:
        return Problem("ui.missing_argument", argument=error.param.make_metavar(context), command=command)
    if isinstance(error, click.BadParameter) and error.param and context:
        option = " / ".join(error.param.opts) if isinstance(error.param, click.Option) else error.param.name
        value, wanted = _refused(error.param, context), _wanted(error.param.type)
        return Problem("ui.bad_value", option=option, value=value, wanted=wanted, command=command)
    return Problem("ui.wrong_option", message=error.format_message(), command=command)


def _refused(param: click.Parameter, ctx: click.Context) -> str:
    """The value on the command line that a parameter does not take, which click's error does not tell."""
    given, _, _ = ctx.command.make_parser(ctx).parse_args(list(ctx.meta[_LINE]))
    values = given.get(param.name)
    for value in values if isinstance(values, (list, tuple)) else [values]:
        try:
            param.type.convert(value, param, ctx)
        except click.BadParameter:
            return str(value)
    return ""


def _wanted(kind: click.ParamType[Any]) -> str:
    """What an option takes."""
    if isinstance(kind, click.Choice):
        return " | ".join(str(choice) for choice in kind.choices)
    if isinstance(kind, (click.IntRange, click.FloatRange)):
        name = "whole_number" if isinstance(kind, click.IntRange) else "number"
        low = "" if kind.min is None else f"{kind.min:g} {'<' if kind.min_open else '<='} "
        high = "" if kind.max is None else f" {'<' if kind.max_open else '<='} {kind.max:.10g}"
        return language.say("ui.within", kind=language.say(f"ui.{name}"), span=f"{low}x{high}")
    if isinstance(kind, click.Path):
        return language.say("ui.readable_path")
    return language.say(getattr(kind, "wanted", "ui.another_value"))
