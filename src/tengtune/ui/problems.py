"""Problem: everything that is the user's to mend ends as one of these, never as a traceback."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tengtune.ui import language
from tengtune.ui.near import did_you_mean

WRONG_INPUT = 2
UNFIT_MACHINE = 3
FAILED_RUN = 4
BUSY = 5


class Problem(Exception):
    """A fault the user can mend: what happened, where, why, and what to do.

    `code` is "area.name" in `ui/messages/<area>.yaml`; `values` fill its placeholders; `where` is
    "file:line", a record, a key. `exit_code`: 2 wrong input, 3 unfit machine, 4 failed run, 5 busy.
    """

    def __init__(
        self, code: str, *, where: object = None, exit_code: int = WRONG_INPUT, **values: object
    ) -> None:
        super().__init__(code)
        self.code = code
        self.where = None if where is None else str(where)
        self.exit_code = exit_code
        self.values = values

    def texts(self, name: language.Language | None = None) -> dict[str, str]:
        """{"what", "why", "fix"} in a language (None: the current one); a part without text is left out."""
        messages = language.area_messages(self.code.split(".", 1)[0])
        entry: dict[str, str] = messages[self.code][name or language.current()]
        parts = [part for part in ("what", "why", "fix") if entry.get(part)]
        return {part: language.fill(entry[part], self.values) for part in parts}

    def as_json(self) -> dict[str, object]:
        """The same as data, for `--json`."""
        return {"problem": self.code, "where": self.where, **self.texts(), "exit_code": self.exit_code}

    def __str__(self) -> str:
        texts = self.texts()
        place = f" [{self.where}]" if self.where else ""
        return f"{self.code}{place}: {' '.join(texts.values())}"


class Stopped(Exception):
    """The command was asked to end, by Ctrl-C or another signal, and has put its work in order.

    `code` is a one-line text that says how to go on; `exit_code` is 128 + the signal's number.
    """

    def __init__(self, code: str, *, exit_code: int, **values: object) -> None:
        super().__init__(code)
        self.code, self.exit_code, self.values = code, exit_code, values


def screen(problem: Problem, colour: bool) -> str:
    """The problem as one screen of text (plain ANSI: rich would double the answer's time)."""
    bold, red, dim, off = ("\033[1m", "\033[31m", "\033[2m", "\033[0m") if colour else ("",) * 4
    labels = language.lookup("ui.problem_labels")
    texts = problem.texts()
    lines = [f"{red}{bold}{labels['what']}{off}{bold}{texts['what']}{off}"]
    if problem.where:
        lines.append(f"  {dim}{labels['where']}{off} {problem.where}")
    lines += [
        f"  {dim}{labels[part]}{off} " + texts[part].rstrip().replace("\n", "\n    ")
        for part in ("why", "fix")
        if part in texts
    ]
    codes = language.say("ui.problem_codes", name=problem.code, exit=problem.exit_code)
    lines.append(f"  {dim}{codes}{off}")
    return "\n".join(lines)


_WRONG = ("io.not_found", "io.not_folder", "io.is_folder", "io.bad_path")


def from_os_error(error: OSError, path: object = None) -> Problem | None:
    """The Problem behind an operating-system error the user can mend; None for any other error."""
    where = path or error.filename
    code = {
        errno.ENOSPC: "io.no_space",
        errno.EDQUOT: "io.no_space",
        errno.EFBIG: "io.no_space",
        errno.EACCES: "io.not_permitted",
        errno.EPERM: "io.not_permitted",
        errno.EROFS: "io.not_permitted",
        errno.ENOENT: "io.not_found",
        errno.ENOTDIR: "io.not_folder",
        errno.EEXIST: "io.not_folder",
        errno.EISDIR: "io.is_folder",
        errno.ELOOP: "io.bad_path",
        errno.ENAMETOOLONG: "io.bad_path",
        errno.EIO: "io.device_error",
        errno.ENOMEM: "io.no_memory",
    }.get(error.errno or 0)
    if code is None:
        return None
    exit_code = WRONG_INPUT if code in _WRONG else UNFIT_MACHINE
    values = {"reason": os.strerror(error.errno or 0)}
    if code == "io.not_found":
        values["near"] = did_you_mean(Path(str(where)).absolute())
    return Problem(code, where=where, exit_code=exit_code, **values)


@contextmanager
def os_errors(path: object) -> Iterator[None]:
    """Turn operating-system errors inside the block into Problems that name `path`."""
    try:
        yield
    except OSError as error:
        problem = from_os_error(error, path)
        if problem is None:
            raise
        raise problem from error
