"""What a command says while it works: notes for a person, or JSON lines for a program.

Results go to stdout, everything said on the way goes to stderr, so that a pipe carries results only.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any, Literal, TextIO

from tengtune.ui import language
from tengtune.ui.problems import Problem, screen

if TYPE_CHECKING:
    from tengtune.ui.progress import Progress, Waiting

Mode = Literal["normal", "quiet", "json"]


class Console:
    """One command's voice. `mode`: normal, quiet (results and problems only), json (events as lines)."""

    def __init__(self, mode: Mode = "normal", out: TextIO | None = None, err: TextIO | None = None) -> None:
        self.mode = mode
        self.out = out or sys.stdout
        self.err = err or sys.stderr

    @property
    def colour(self) -> bool:
        """Whether stderr may be coloured (a terminal, and NO_COLOR not set)."""
        return self.err.isatty() and "NO_COLOR" not in os.environ

    def say(self, code: str, **values: object) -> None:
        """A line for a person; silent under --quiet, an event under --json."""
        if self.mode == "json":
            self.event("note", code=code, text=language.say(code, **values), **values)
        elif self.mode == "normal":
            self._line(self.err, language.say(code, **values))

    def warn(self, code: str, **values: object) -> None:
        """A line that is printed even under --quiet."""
        if self.mode == "json":
            self.event("warning", code=code, text=language.say(code, **values), **values)
        else:
            self._line(self.err, language.say("ui.warning", text=language.say(code, **values)))

    def heading(self, text: str) -> None:
        """A step's title."""
        if self.mode == "normal":
            self._line(self.err, f"\033[1m{text}\033[0m" if self.colour else text)

    def result(self, text: str, **data: object) -> None:
        """What the command was asked for: text on stdout, or `data` under --json."""
        if self.mode == "json":
            self.event("result", **(data or {"text": text}))
        else:
            self._line(self.out, text)

    def part(self, text: str) -> None:
        """A part of a result as it comes, on stdout; not under --json."""
        if self.mode != "json":
            self._write(self.out, text)

    def event(self, kind: str, **data: object) -> None:
        """A JSON line on stdout; nothing in the other modes."""
        if self.mode == "json":
            self._line(self.out, json.dumps({"event": kind, **data}, ensure_ascii=False, default=str))

    def problem(self, problem: Problem) -> None:
        """The problem's screen on stderr, or its data on stdout under --json."""
        if self.mode == "json":
            self.event("problem", **problem.as_json())
        else:
            self._line(self.err, screen(problem, self.colour))

    def progress(self, total: int, title: str, done: int = 0) -> Progress:
        """A progress line for `total` units of which `done` are there already; see ui/progress.py."""
        from tengtune.ui.progress import Progress

        return Progress(self, total, title, done)

    def waiting(self, what: str) -> Waiting:
        """Lines that say what is waited for while a block runs; see ui/progress.py."""
        from tengtune.ui.progress import Waiting

        return Waiting(self, what)

    def table(self, columns: list[str], rows: list[list[Any]], title: str | None = None) -> None:
        """A table on stdout (rich knows how wide Chinese characters are); not printed under --json."""
        if self.mode == "json":
            return
        from tengtune.ui.tables import table_text

        self._line(self.out, table_text(self.out, columns, rows, title))

    def _line(self, stream: TextIO, text: str) -> None:
        self._write(stream, text + "\n")

    @staticmethod
    def _write(stream: TextIO, text: str) -> None:
        """Write at once; characters the terminal's encoding lacks are replaced, never fatal."""
        encoding = getattr(stream, "encoding", None) or "utf-8"
        stream.write(text.encode(encoding, "replace").decode(encoding, "replace"))
        stream.flush()
